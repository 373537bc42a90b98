"""The environment in which a job finds the emulated GPU, and the question
whether this process is in one."""

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from calibrate.emulator.build import Build, ensure_built
from calibrate.emulator.devices import EmulatedGpu, find_gpu
from calibrate.emulator.injection import Injection, refuse_inside_another
from predictor.common.errors import InputError

#: Read by csrc/device.c; present in no process that was not started for it.
SETTING = "PEAKCAST_EMULATED_GPU"

_MOST_DEVICES = 64  # csrc/emulator.h
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
#: Holds the entry point through which `import torch` starts the integer tracker.
_AUTOLOAD = Path(__file__).resolve().parent / "autoload"


@dataclass(frozen=True)
class Machine:
    """The machine that a job finds: GPUs of one kind that are not there.

    Attributes:
        capacity_bytes: replaces the GPU's own capacity.
        context_bytes: taken of it from the start (CUDA context and whatever else is not PyTorch's).
        events: complete `immediate`ly, after `launches:N` later launches, or only at `synchronization`: a real GPU
            lies between, and blocks used on two streams are reusable only then.
        devices: how many such GPUs the job sees.
        inject: makes the device another than it should be (see `injection`).
    """

    gpu: str = "h100-80gb"
    capacity_bytes: int | None = None
    context_bytes: int = 0
    events: str = "immediate"
    devices: int = 1
    inject: Injection = Injection()

    @property
    def kind(self) -> EmulatedGpu:
        """Which GPU it has; InputError for one that is not known."""
        return find_gpu(self.gpu)

    @property
    def total_bytes(self) -> int:
        """The capacity of a GPU."""
        return self.kind.gpu.capacity_bytes if self.capacity_bytes is None else self.capacity_bytes

    @property
    def taken_bytes(self) -> int:
        """What is taken of it from the start, injected memory too."""
        return self.context_bytes + self.inject.context_bytes

    def check(self) -> None:
        """InputError for a machine that cannot be."""
        if not 0 <= self.taken_bytes < self.total_bytes:
            raise InputError(f"context_bytes {self.taken_bytes} must be from 0 to below the capacity, "
                             f"{self.total_bytes}")
        if not 1 <= self.devices <= _MOST_DEVICES:
            raise InputError(f"devices {self.devices} must be from 1 to {_MOST_DEVICES}")
        launches(self.events)

    def setting(self, built: Build) -> dict[str, str | int]:
        """What the stand-in libraries are told (csrc/device.c)."""
        gpu, architecture = self.kind.gpu, self.kind.architecture
        major, minor = gpu.compute_capability
        return {
            "name": self.kind.product,
            "capacity_bytes": self.total_bytes,
            "context_bytes": self.taken_bytes,
            "l2_bytes": architecture.l2_bytes,
            "devices": self.devices,
            "major": major,
            "minor": minor,
            "binary_version": _binary_version(major * 10 + minor, built.binary_versions),
            "multiprocessors": gpu.multiprocessors,
            "threads_per_multiprocessor": architecture.threads_per_multiprocessor,
            "blocks_per_multiprocessor": architecture.blocks_per_multiprocessor,
            "shared_per_block": 48 * 1024,
            "shared_per_block_optin": gpu.shared_memory_block_bytes,
            "shared_per_multiprocessor": gpu.shared_memory_bytes,
            "driver_version": built.torch.cuda_number,
            "runtime_version": built.torch.cuda_number,
            "event_launches": launches(self.events),
            **(self.inject.device_values() if self.inject.stated() else {}),
        }


H100 = Machine()
"""One of them, as it is sold."""


def environment(
    machine: Machine = H100, *, track_integers: bool = True, shadow_real_gpu: bool = False
) -> dict[str, str]:
    """Variables to set, over the present ones, for a job on an emulated machine.

    Builds the stand-in libraries on first use. `track_integers` keeps true
    values for integer and boolean tensors (see `twins`). On a machine with an
    NVIDIA driver this refuses, unless `shadow_real_gpu`.
    """
    refuse_inside_another()
    find_gpu(machine.gpu)
    if not shadow_real_gpu and has_real_driver():
        raise InputError(
            "this machine has an NVIDIA driver; an emulated GPU would hide it: "
            "say --shadow-real-gpu (shadow_real_gpu=True) if that is meant"
        )
    machine.check()
    built = ensure_built()
    setting = machine.setting(built)
    python_path = [str(_PACKAGE_ROOT), *([str(_AUTOLOAD)] if track_integers else [])]
    # Last, so that nothing of ours hides a module of the job's.
    python_path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *python_path]))
    return {
        SETTING: ";" + ";".join(f"{key}={value}" for key, value in setting.items()),
        "LD_PRELOAD": _prepend("LD_PRELOAD", *map(str, built.libraries)),
        "LD_LIBRARY_PATH": _prepend("LD_LIBRARY_PATH", str(built.directory)),
        "PYTHONPATH": python_path,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(machine.devices))),
        "TRITON_LIBCUDA_PATH": str(built.directory),
        # Kernels "compiled" here are empty: they must not reach the cache of a real GPU.
        "USE_PYTORCH_KERNEL_CACHE": "0",
        **(machine.inject.variables() if machine.inject.stated() else {}),
    }


def is_emulated() -> bool:
    """True only if this very process runs on the stand-in libraries."""
    try:
        return ctypes.CDLL(None).peakcast_is_emulated() == 1
    except AttributeError:
        return False


def events_complete_at_once() -> bool:
    """Whether events of this process's emulated GPU are complete as soon as they are recorded."""
    return event_completion() == "immediate"


def event_completion() -> str:
    """When events of this process's emulated GPU complete, as its :class:`Machine` says."""
    after = int(os.environ[SETTING].partition(";event_launches=")[2].partition(";")[0])
    return {0: "immediate", -1: "synchronization"}.get(after, f"launches:{after}")


def has_real_driver() -> bool:
    """Whether an NVIDIA kernel driver is loaded on this machine."""
    return Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/version").exists()


def _binary_version(capability: int, compiled: tuple[int, ...]) -> int:
    """Which of PyTorch's compiled kernels that GPU runs: CUB sizes its buffers by it."""
    usable = [version for version in compiled if version <= capability]
    if not usable:
        raise InputError(
            f"the installed PyTorch has no kernels for compute capability {capability / 10}: it has "
            + ", ".join(str(version / 10) for version in compiled)
        )
    return max(usable)


def launches(events: str) -> int:
    """Launches after which an event completes: 0 at once, -1 never before a synchronization.

    Raises:
        InputError: none of what :class:`Machine` names.
    """
    if events == "immediate":
        return 0
    if events == "synchronization":
        return -1
    kind, _, count = events.partition(":")
    if kind == "launches" and count.isdigit() and int(count) > 0:
        return int(count)
    raise InputError(f"events: {events!r} is none of immediate, launches:N, synchronization")


def _prepend(variable: str, *values: str) -> str:
    present = os.environ.get(variable)
    return os.pathsep.join([*values, present] if present else values)
