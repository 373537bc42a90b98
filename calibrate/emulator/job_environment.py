"""Environment variables that give a job an emulated GPU, and a check whether this process has one."""

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from calibrate.emulator.build import Build, ensure_built
from calibrate.emulator.devices import EmulatedGpu, find_gpu
from calibrate.emulator.injection import Injection, refuse_inside_another
from predictor.allocator.completion import NEVER, launches_until_complete
from predictor.common.errors import InputError

#: Environment variable that csrc/device.c reads. Only jobs on an emulated GPU have it.
SETTING = "PEAKCAST_EMULATED_GPU"

_MOST_DEVICES = 64  # csrc/emulator.h
#: Holds the entry point through which `import torch` starts the integer tracker, and the module that finds our
#: packages. They are not on the path themselves: their directory may hold another torch than the job's.
_AUTOLOAD = Path(__file__).resolve().parent / "autoload"


@dataclass(frozen=True)
class Machine:
    """An emulated machine with GPUs of one model.

    Attributes:
        gpu: name of the GPU model.
        capacity_bytes: memory of each GPU; None for the model's own.
        context_bytes: memory in use from the start (by the CUDA context and anything else but PyTorch).
        events: when CUDA events complete: `immediate`, `launches:N` (after N later launches), or only at a
            `synchronization`. On a real GPU they complete between the first and the last. Blocks used on two streams
            are reusable only after their events.
        devices: number of GPUs that the job sees.
        inject: differences from the GPU model (see `injection`).
    """

    gpu: str = "h100-80gb"
    capacity_bytes: int | None = None
    context_bytes: int = 0
    events: str = "immediate"
    devices: int = 1
    inject: Injection = Injection()

    @property
    def gpu_model(self) -> EmulatedGpu:
        """The GPU model.

        Raises:
            InputError: the name is unknown.
        """
        return find_gpu(self.gpu)

    @property
    def total_bytes(self) -> int:
        """The memory of one GPU in bytes."""
        return self.gpu_model.gpu.capacity_bytes if self.capacity_bytes is None else self.capacity_bytes

    @property
    def taken_bytes(self) -> int:
        """Memory of one GPU that is in use from the start, with injected memory."""
        return self.context_bytes + self.inject.context_bytes

    def check(self) -> None:
        """Checks the numbers.

        Raises:
            InputError: no machine can have them.
        """
        if not 0 <= self.taken_bytes < self.total_bytes:
            raise InputError(f"context_bytes {self.taken_bytes} must be from 0 to below the capacity, "
                             f"{self.total_bytes}")
        if not 1 <= self.devices <= _MOST_DEVICES:
            raise InputError(f"devices {self.devices} must be from 1 to {_MOST_DEVICES}")
        launches_until_complete(self.events, "events")

    def setting(self, built: Build) -> dict[str, str | int]:
        """The values that the emulator's libraries read (csrc/device.c)."""
        gpu, architecture = self.gpu_model.gpu, self.gpu_model.architecture
        major, minor = gpu.compute_capability
        return {
            "name": self.gpu_model.product,
            "capacity_bytes": self.total_bytes,
            "context_bytes": self.taken_bytes,
            "l2_bytes": architecture.l2_bytes,
            "devices": self.devices,
            "major": major,
            "minor": minor,
            "binary_version": _binary_version(major * 10 + minor, built.binary_versions),
            "multiprocessors": gpu.multiprocessors,
            "threads_per_multiprocessor": gpu.threads_per_multiprocessor,
            "blocks_per_multiprocessor": architecture.blocks_per_multiprocessor,
            "shared_per_block": 48 * 1024,
            "shared_per_block_optin": gpu.shared_memory_block_bytes,
            "shared_per_multiprocessor": gpu.shared_memory_bytes,
            "driver_version": built.torch.cuda_number,
            "runtime_version": built.torch.cuda_number,
            "event_launches": launches_until_complete(self.events, "events"),
            **(self.inject.device_values() if self.inject.stated() else {}),
        }


H100 = Machine()
"""A machine with one H100 and no changes."""


def environment(
    machine: Machine = H100, *, track_integers: bool = True, shadow_real_gpu: bool = False,
    interpreter: str = sys.executable,
) -> dict[str, str]:
    """The environment variables to add or replace for a job on an emulated machine.

    The first use builds the emulator's libraries.

    Args:
        machine: the emulated machine.
        track_integers: keep true values of integer and boolean tensors (see `host_values`).
        shadow_real_gpu: also allow this on a machine with an NVIDIA driver, whose GPU the job then does not see.
        interpreter: the Python whose PyTorch the job runs.

    Raises:
        InputError: the machine cannot be emulated here.
    """
    refuse_inside_another()
    find_gpu(machine.gpu)
    if not shadow_real_gpu and has_real_driver():
        raise InputError(
            "this machine has an NVIDIA driver; an emulated GPU would hide it: "
            "say --shadow-real-gpu (shadow_real_gpu=True) if that is meant"
        )
    machine.check()
    built = ensure_built(interpreter)
    setting = machine.setting(built)
    own_path = [str(_AUTOLOAD)] if track_integers else []
    # Our directory comes last, so that none of our modules hides one of the job's.
    python_path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *own_path]))
    return {
        SETTING: ";" + ";".join(f"{key}={value}" for key, value in setting.items()),
        "LD_PRELOAD": _prepend("LD_PRELOAD", *map(str, built.libraries)),
        "LD_LIBRARY_PATH": _prepend("LD_LIBRARY_PATH", str(built.directory)),
        "PYTHONPATH": python_path,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(machine.devices))),
        "TRITON_LIBCUDA_PATH": str(built.directory),
        # Kernels "compiled" here are empty. They must not get into the cache that a real GPU uses.
        "USE_PYTORCH_KERNEL_CACHE": "0",
        # CUPTI does not work here, and PyTorch's profiler says so in three lines unless only fatal errors are logged.
        "KINETO_LOG_LEVEL": os.environ.get("KINETO_LOG_LEVEL", "5"),
        # The profiler also warns of memory on the CPU that is older than itself.
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
        **(machine.inject.variables() if machine.inject.stated() else {}),
    }


def is_emulated() -> bool:
    """Whether this process itself runs on the emulator's libraries."""
    try:
        return ctypes.CDLL(None).peakcast_is_emulated() == 1
    except AttributeError:
        return False


def events_complete_at_once() -> bool:
    """Whether events of this process's emulated GPU are complete as soon as they are recorded."""
    return event_completion() == "immediate"


def event_completion() -> str:
    """The ``events`` of this process's :class:`Machine`: when its CUDA events complete."""
    count = int(os.environ[SETTING].partition(";event_launches=")[2].partition(";")[0])
    return {0: "immediate", NEVER: "synchronization"}.get(count, f"launches:{count}")


def has_real_driver() -> bool:
    """Whether an NVIDIA kernel driver is loaded on this machine."""
    return Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/version").exists()


def _binary_version(capability: int, compiled: tuple[int, ...]) -> int:
    """The compute capability of the compiled kernels that a GPU runs. CUB's buffer sizes depend on it."""
    usable = [version for version in compiled if version <= capability]
    if not usable:
        raise InputError(
            f"the installed PyTorch has no kernels for compute capability {capability / 10}: it has "
            + ", ".join(str(version / 10) for version in compiled)
        )
    return max(usable)


def _prepend(variable: str, *values: str) -> str:
    present = os.environ.get(variable)
    return os.pathsep.join([*values, present] if present else values)
