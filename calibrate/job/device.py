"""The CUDA device of this process: its properties, software, settings and used memory."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable
from typing import Any

from calibrate.emulator import injection, is_emulated
from calibrate.records.record import Device, MeasuredOn
from predictor.common.errors import InputError
from predictor.common.installing import pip_install

PACKAGES = ("transformers", "deepspeed")
SETTINGS = (
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE", "TORCH_CUDNN_SDPA_AVOID_RECOMPILE",
    "TORCH_CUDNN_SDPA_DEPRIORITIZED")
"""Environment variables that change the allocations of a job (torch 2.11)."""


def require() -> None:
    """Raise an error if PyTorch finds no CUDA device here.

    Raises:
        InputError: PyTorch is missing or built without CUDA, or there is no device.
    """
    try:
        import torch
    except ImportError:
        raise InputError(f"PyTorch is not installed here: {pip_install('torch')} (a CUDA build)") from None
    if torch.version.cuda is None:
        raise InputError(f"PyTorch {torch.__version__} is a CPU-only build: install a CUDA build")
    if not torch.cuda.is_available():
        raise InputError("PyTorch finds no CUDA device here: check the driver, or add --device emulated")


def describe(event_completion: str | None) -> Device:
    """The current device. ``event_completion`` is recorded only on an emulated GPU."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Device(
        name=properties.name, capacity_bytes=properties.total_memory,
        compute_capability=(properties.major, properties.minor), multiprocessors=properties.multi_processor_count,
        driver=_nvml(lambda nvml, _: nvml.nvmlSystemGetDriverVersion()),
        event_completion=event_completion if is_emulated() else None, injected=injection.injected_values())


def measured_on() -> MeasuredOn:
    """Whether the GPU is emulated. The process itself decides, so that an emulated measurement cannot pass for a real
    one."""
    return MeasuredOn.EMULATED if is_emulated() else MeasuredOn.DEVICE


def software() -> dict[str, str | None]:
    """Versions of the software that decides a measurement; None for what is not installed."""
    import torch

    versions: dict[str, str | None] = {
        "python": platform.python_version(), "platform": platform.platform(), "torch": torch.__version__,
        "cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def settings() -> dict[str, str]:
    """The variables of :data:`SETTINGS` that are set in this process, without those that an injection set."""
    return injection.settings_without_injection(SETTINGS)


def used_bytes() -> int:
    """Used memory of the device, by all processes (``cudaMemGetInfo``)."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return total - free


def nvml_used_bytes(index: int | None = None) -> int | None:
    """Used memory of the device as ``nvidia-smi`` shows it; None where NVML does not answer.

    Without what the driver keeps for itself, 615 MiB of an H200: PyTorch's total does not contain that either.

    Args:
        index: index among the visible devices; None for the current one, which creates a CUDA context.
    """
    return _nvml(_used, index)


def _used(nvml: Any, handle: Any) -> int:
    """Used bytes; a driver without the newer question counts its own memory too."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used
    except nvml.NVMLError_FunctionNotFound:
        return nvml.nvmlDeviceGetMemoryInfo(handle).used


def _nvml(question: Callable[[Any, Any], Any], index: int | None = None) -> Any:
    """The answer of NVML to a question about the device; None where NVML does not answer."""
    try:
        import pynvml
        import torch

        handle = torch.cuda._get_pynvml_handler(torch.cuda.current_device() if index is None else index)
        answer = question(pynvml, handle)
        return answer.decode() if isinstance(answer, bytes) else answer
    except Exception:  # package, library or permission is missing: the record holds None
        return None
