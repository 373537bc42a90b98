"""What makes an emulated GPU differ from what a predictor knows, to see whether a calibration finds it.

    inject = Injection(attention_backward_fixed_bytes=1 << 20, attention_backward_bytes_per_element=Fraction(3, 2))
    measure(workload, inject=inject).job.device.injected

Which counters each shows in:

- Workspaces of cuDNN, `cublas_workspace_config`, `cublaslt_workspace_kib`: PyTorch allocates them itself, so they are
  in requested, allocated and reserved bytes, with PyTorch's own lifetimes.
- `roundup_power2_divisions`: allocated and reserved bytes; requested ones are as before.
- `cuda_malloc_granularity_bytes`, `context_bytes`, and what the libraries take: only in what cudaMemGetInfo and NVML
  call used; PyTorch's counters are as before until the device is full.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction

from calibrate.emulator.devices import MIB
from predictor.common.errors import InputError
from predictor.common.suggestions import nearest, show

#: Set for a job on a device that something was injected into: what it was, and the variables that it hides.
INJECTED = "PEAKCAST_EMULATED_INJECTION"

#: PyTorch reads the first of these that is set (2.11: c10/core/AllocatorConfig.h).
_ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_OPERATIONS = ("attention_forward", "attention_backward", "convolution")
_PAGE_BYTES = 2 * MIB  # BOOKING_UNIT of csrc/emulator.h


@dataclass(frozen=True)
class Injection:
    """Values are bytes where nothing else is said; the defaults inject nothing.

    A cuDNN workspace is `fixed_bytes + bytes_per_element * elements`, rounded up to whole bytes. Elements are those
    of attention's result (forward), of the gradient of attention's query (backward), and of what a convolution
    writes: its result, or the gradient of its input or of its weight, each an operation of its own.

    Attributes:
        cublas_workspace_config: `CUBLAS_WORKSPACE_CONFIG`, pairs of `:KiB:count`.
        cublaslt_workspace_kib: `CUBLASLT_WORKSPACE_SIZE`.
        context_bytes: taken before the job starts.
        cublas_bytes, cudnn_bytes: taken for good when the first handle is made on a device.
        nccl_bytes, nccl_bytes_per_rank: taken by every NCCL communicator, by its number of ranks, until it ends. A
            `fake` process group makes none.
        roundup_power2_divisions: that key of `PYTORCH_CUDA_ALLOC_CONF`, a power of 2: sizes above 512 bytes times
            it are rounded up to the next of so many steps between powers of 2.
        cuda_malloc_granularity_bytes: cudaMalloc takes whole multiples of it, itself one of 2 MiB, which is what it
            takes without. Expandable segments do not come from cudaMalloc.
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

    def __post_init__(self) -> None:
        """Fractions from whole numbers and text ("3/2"); InputError for what cannot be injected."""
        for field in fields(self):
            read = _READERS[type(field.default)]
            object.__setattr__(self, field.name, read(field.name, getattr(self, field.name)))
        divisions, granularity = self.roundup_power2_divisions, self.cuda_malloc_granularity_bytes
        if divisions & (divisions - 1):
            raise InputError(f"inject: roundup_power2_divisions {divisions} must be a power of 2")
        if granularity % _PAGE_BYTES:
            raise InputError(f"inject: cuda_malloc_granularity_bytes {granularity} must be a multiple of {_PAGE_BYTES}")
        if not re.fullmatch(r"(:[0-9]+:[0-9]+)*", self.cublas_workspace_config):
            raise InputError(f"inject: cublas_workspace_config {show(self.cublas_workspace_config)} must be pairs of "
                             ":KiB:count")

    @classmethod
    def read(cls, values: Mapping[str, int | str]) -> Injection:
        """From names and values, as :meth:`stated` gives them; an unknown name is an InputError."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise InputError(f"inject: unknown key {show(name)}{nearest(name, known)}")
        return cls(**values)

    @classmethod
    def from_words(cls, words: Iterable[str]) -> Injection:
        """From `key=value` words of a command line."""
        pairs = [word.partition("=") for word in words]
        for key, equals, _ in pairs:
            if not equals:
                raise InputError(f"inject: {show(key)} must be key=value")
        return cls.read({key: value for key, _, value in pairs})

    def stated(self) -> dict[str, int | str]:
        """What is injected, without the defaults; a fraction as text. Empty if nothing is."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: str(value) if isinstance(value, Fraction) else value for name, value in values.items() if value}

    def device_values(self) -> dict[str, int]:
        """What the stand-in libraries read of it (csrc/device.c)."""
        values = {name: getattr(self, name) for name in _OF_THE_DEVICE}
        for operation in _OPERATIONS:
            values[f"{operation}_fixed_bytes"] = getattr(self, f"{operation}_fixed_bytes")
            ratio = getattr(self, f"{operation}_bytes_per_element")
            values |= {f"{operation}_numerator": ratio.numerator, f"{operation}_denominator": ratio.denominator}
        return values

    def variables(self) -> dict[str, str]:
        """Environment variables for a job; over a job's own settings, which INJECTED keeps."""
        changes = {}
        if self.cublas_workspace_config:
            changes["CUBLAS_WORKSPACE_CONFIG"] = self.cublas_workspace_config
        if self.cublaslt_workspace_kib:
            changes["CUBLASLT_WORKSPACE_SIZE"] = str(self.cublaslt_workspace_kib)
        if self.roundup_power2_divisions:
            own = next((os.environ[name] for name in _ALLOCATOR_VARIABLES if name in os.environ), "")
            rounding = f"roundup_power2_divisions:{self.roundup_power2_divisions}"
            # The last of equal keys counts.
            changes[_ALLOCATOR_VARIABLES[0]] = ",".join(filter(None, [own, rounding]))
        hidden = {name: os.environ.get(name) for name in changes}
        return changes | {INJECTED: json.dumps({"injected": self.stated(), "hidden": hidden})}


def injected_here() -> dict[str, int | str] | None:
    """What was injected into the device of this process (:meth:`Injection.stated`); None: nothing."""
    return json.loads(os.environ[INJECTED])["injected"] if INJECTED in os.environ else None


def own_settings(names: Iterable[str]) -> dict[str, str]:
    """Those environment variables that are set, with the values that they would have without an injection."""
    hidden = json.loads(os.environ[INJECTED])["hidden"] if INJECTED in os.environ else {}
    values = {name: hidden.get(name, os.environ.get(name)) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def refuse_inside_another() -> None:
    """An ordinary job started from an injected one would inherit its settings.

    Raises:
        InputError: this process runs on a device that something was injected into.
    """
    if INJECTED in os.environ:
        raise InputError("this shell is inside an emulated GPU that something was injected into: start the job "
                         "from one that is not")


def _whole(name: str, value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()) or int(text) >= 1 << 62:
        raise InputError(f"inject: {name} {show(value)} must be a whole number from 0 to below 2**62")
    return int(text)


def _fraction(name: str, value: object) -> Fraction:
    try:
        ratio = Fraction(value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        ratio = None
    if ratio is None or ratio < 0 or max(ratio.numerator, ratio.denominator) >= 1 << 62:
        raise InputError(f'inject: {name} {show(value)} must be a number, 0 or more, such as "3/2"')
    return ratio


_READERS = {int: _whole, Fraction: _fraction, str: lambda _, value: str(value)}
_OF_THE_DEVICE = ("cublas_bytes", "cudnn_bytes", "nccl_bytes", "nccl_bytes_per_rank", "cuda_malloc_granularity_bytes")
