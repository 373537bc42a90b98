"""What the programs report of this process: peaks of PyTorch's allocator, and NVML's view of the device."""

from __future__ import annotations

from typing import Any

import torch

from calibrate.job import device


def counted() -> dict[str, Any]:
    """The peaks until now in bytes, what is reserved now, the whole device's memory (NVML), and how often the
    allocator gave cached memory back to go on."""
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {"requested_bytes": stats["requested_bytes.all.peak"], "allocated_bytes": stats["allocated_bytes.all.peak"],
            "reserved_bytes": stats["reserved_bytes.all.peak"], "reserved_now_bytes": torch.cuda.memory_reserved(),
            "nvml_bytes": device.nvml_used_bytes(), "retries": stats["num_alloc_retries"]}


def about() -> dict[str, Any]:
    """Where this process runs, and the software."""
    return {"measured_on": device.measured_on().value, "gpu": torch.cuda.get_device_name(),
            "software": device.software(), "settings": device.settings()}
