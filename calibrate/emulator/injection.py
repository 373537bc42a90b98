"""Differences injected into an emulated GPU, to test whether a calibration finds them.

    inject = Injection(attention_backward_fixed_bytes=1 << 20, attention_backward_bytes_per_element=Fraction(3, 2))
    measure(workload, inject=inject).job.device.injected

Each injection changes these counters:

- Workspaces of cuDNN, `cublas_workspace_config`, `cublaslt_workspace_kib`: PyTorch allocates them itself, so they
  change requested, allocated and reserved bytes, with PyTorch's own lifetimes.
- `roundup_power2_divisions`: changes allocated and reserved bytes, not requested bytes.
- `address_step_bytes`, `address_seed`: change allocated and reserved bytes, not requested bytes.
- `cuda_malloc_granularity_bytes`, `context_bytes`, and memory of the libraries: change only the used memory of
  cudaMemGetInfo and NVML. PyTorch's counters stay the same until the device is full.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from calibrate.emulator.devices import MIB
from predictor.common.errors import InputError
from predictor.common.suggestions import nearest, quoted

#: Environment variable of a job on a device with injections: the injected values, and the user's own values of the
#: variables that they replace (JSON).
INJECTED = "PEAKCAST_EMULATED_INJECTION"

#: PyTorch reads the first of these that is set (2.11: c10/core/AllocatorConfig.h).
_ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_OPERATIONS = ("attention_forward", "attention_backward", "convolution")
_PAGE_BYTES = 2 * MIB  # BOOKING_UNIT of csrc/emulator.h


@dataclass(frozen=True)
class Injection:
    """Differences to inject. Values are bytes unless noted; the defaults inject nothing.

    A cuDNN workspace has `fixed_bytes + bytes_per_element * elements` bytes, rounded up. The elements are those of
    attention's result (forward), of the gradient of attention's query (backward), and of the output of a convolution:
    its result, the gradient of its input, or the gradient of its weight, which are three operations.

    Attributes:
        cublas_workspace_config: value of `CUBLAS_WORKSPACE_CONFIG`, pairs of `:KiB:count`.
        cublaslt_workspace_kib: value of `CUBLASLT_WORKSPACE_SIZE`, in KiB.
        context_bytes: memory in use before the job starts.
        cublas_bytes, cudnn_bytes: memory that the library takes when its first handle is made on a device. It is never
            freed.
        nccl_bytes, nccl_bytes_per_rank: memory of every NCCL communicator, fixed and for each of its ranks, until the
            communicator ends. A `fake` process group makes no communicator.
        roundup_power2_divisions: value of this key of `PYTORCH_CUDA_ALLOC_CONF`, a power of 2. Sizes above 512 bytes
            times this value are rounded up to the next of this many steps between powers of 2.
        cuda_malloc_granularity_bytes: cudaMalloc allocates whole multiples of this value, which is a multiple of
            2 MiB. The default is 2 MiB. Expandable segments do not use cudaMalloc.
        address_step_bytes: addresses go down from the highest, each at a multiple of this value, which is a multiple of
            2 MiB: 32 MiB on an H200. The default, 0, goes up without gaps. Of free blocks of one size PyTorch's
            allocator takes the lowest, so this changes allocated and reserved bytes.
        address_seed: addresses are drawn at random, beginning with this number, if it is not 0. No driver does that: it
            shows how far reserved bytes depend on the order of the driver's addresses.
    """

    attention_forward_fixed_bytes: int = 0
    attention_forward_bytes_per_element: Fraction = Fraction(0)
    attention_backward_fixed_bytes: int = 0
    attention_backward_bytes_per_element: Fraction = Fraction(0)
    convolution_fixed_bytes: int = 0
    convolution_bytes_per_element: Fraction = Fraction(0)
    cublas_workspace_config: str = ""
    cublaslt_workspace_kib: int = 0
    context_bytes: int = 0
    cublas_bytes: int = 0
    cudnn_bytes: int = 0
    nccl_bytes: int = 0
    nccl_bytes_per_rank: int = 0
    roundup_power2_divisions: int = 0
    cuda_malloc_granularity_bytes: int = 0
    address_step_bytes: int = 0
    address_seed: int = 0

    def __post_init__(self) -> None:
        """Converts whole numbers and text ("3/2") to the fields' types.

        Raises:
            InputError: a value cannot be injected.
        """
        for field in fields(self):
            read = _READERS[type(field.default)]
            object.__setattr__(self, field.name, read(field.name, getattr(self, field.name)))
        divisions = self.roundup_power2_divisions
        if divisions & (divisions - 1):
            raise InputError(f"inject: roundup_power2_divisions {divisions} must be a power of 2")
        for name in ("cuda_malloc_granularity_bytes", "address_step_bytes"):
            if getattr(self, name) % _PAGE_BYTES:
                raise InputError(f"inject: {name} {getattr(self, name)} must be a multiple of {_PAGE_BYTES}")
        if self.address_step_bytes and self.address_seed:
            raise InputError("inject: address_step_bytes and address_seed contradict each other: give one")
        if not re.fullmatch(r"(:[0-9]+:[0-9]+)*", self.cublas_workspace_config):
            raise InputError(f"inject: cublas_workspace_config {quoted(self.cublas_workspace_config)} must be pairs of "
                             ":KiB:count")

    @classmethod
    def read(cls, values: Mapping[str, int | str]) -> Injection:
        """Makes an injection from names and values, the inverse of :meth:`stated`.

        Raises:
            InputError: a name is unknown, or a value cannot be injected.
        """
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise InputError(f"inject: unknown key {quoted(name)}{nearest(name, known)}")
        arguments: dict[str, Any] = dict(values)  # __post_init__ converts them
        return cls(**arguments)

    @classmethod
    def from_words(cls, words: Iterable[str]) -> Injection:
        """Makes an injection from `key=value` words of a command line.

        Raises:
            InputError: a word is not `key=value`, a key is unknown, or a value cannot be injected.
        """
        pairs = [word.partition("=") for word in words]
        for key, equals, _ in pairs:
            if not equals:
                raise InputError(f"inject: {quoted(key)} must be key=value")
        return cls.read({key: value for key, _, value in pairs})

    def stated(self) -> dict[str, int | str]:
        """The injected values without the defaults; fractions as text. Empty if nothing is injected."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: str(value) if isinstance(value, Fraction) else value for name, value in values.items() if value}

    def device_values(self) -> dict[str, int]:
        """The values that the emulator's libraries read (csrc/device.c)."""
        values = {name: getattr(self, name) for name in _OF_THE_DEVICE}
        for operation in _OPERATIONS:
            values[f"{operation}_fixed_bytes"] = getattr(self, f"{operation}_fixed_bytes")
            ratio = getattr(self, f"{operation}_bytes_per_element")
            values |= {f"{operation}_numerator": ratio.numerator, f"{operation}_denominator": ratio.denominator}
        return values

    def variables(self) -> dict[str, str]:
        """Environment variables for a job. They replace the user's own values, which INJECTED keeps."""
        changes = {}
        if self.cublas_workspace_config:
            changes["CUBLAS_WORKSPACE_CONFIG"] = self.cublas_workspace_config
        if self.cublaslt_workspace_kib:
            changes["CUBLASLT_WORKSPACE_SIZE"] = str(self.cublaslt_workspace_kib)
        if self.roundup_power2_divisions:
            own = next((os.environ[name] for name in _ALLOCATOR_VARIABLES if name in os.environ), "")
            rounding = f"roundup_power2_divisions:{self.roundup_power2_divisions}"
            # PyTorch uses the last of equal keys.
            changes[_ALLOCATOR_VARIABLES[0]] = ",".join(filter(None, [own, rounding]))
        hidden = {name: os.environ.get(name) for name in changes}
        return changes | {INJECTED: json.dumps({"injected": self.stated(), "hidden": hidden})}


def injected_values() -> dict[str, int | str] | None:
    """The values injected into the device of this process (:meth:`Injection.stated`); None if there are none."""
    return json.loads(os.environ[INJECTED])["injected"] if INJECTED in os.environ else None


def settings_without_injection(names: Iterable[str]) -> dict[str, str]:
    """Those of the environment variables that are set, with the values that they had before an injection."""
    hidden = json.loads(os.environ[INJECTED])["hidden"] if INJECTED in os.environ else {}
    values = {name: hidden.get(name, os.environ.get(name)) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def refuse_inside_another() -> None:
    """Rejects a process on a device with injections: a job that it starts would inherit their settings.

    Raises:
        InputError: this process runs on such a device.
    """
    if INJECTED in os.environ:
        raise InputError("this shell is inside an emulated GPU that something was injected into: start the job "
                         "from one that is not")


def _whole(name: str, value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()) or int(text) >= 1 << 62:
        raise InputError(f"inject: {name} {quoted(value)} must be a whole number from 0 to below 2**62")
    return int(text)


def _fraction(name: str, value: Any) -> Fraction:
    ratio: Fraction | None = None
    with contextlib.suppress(TypeError, ValueError, ZeroDivisionError, OverflowError):
        ratio = Fraction(value)
    if ratio is None or ratio < 0 or max(ratio.numerator, ratio.denominator) >= 1 << 62:
        raise InputError(f'inject: {name} {quoted(value)} must be a number, 0 or more, such as "3/2"')
    return ratio


_READERS = {int: _whole, Fraction: _fraction, str: lambda _, value: str(value)}
_OF_THE_DEVICE = ("cublas_bytes", "cudnn_bytes", "nccl_bytes", "nccl_bytes_per_rank", "cuda_malloc_granularity_bytes",
                  "address_step_bytes", "address_seed")
