"""Memory beyond PyTorch's that NCCL takes in a process group of one rank: at its start, and for collectives."""

from __future__ import annotations

import os
from typing import Any

from calibrate.probes import device_query

SIZES = (1 << 20, 1 << 26, 1 << 29)
"""Bytes of the tensors that are reduced."""


def counted() -> dict[str, Any]:
    """The device's used bytes less PyTorch's reserved ones after each stage."""
    import torch
    import torch.distributed as dist

    from calibrate.checks.programs import counters
    from calibrate.job import device

    def beyond() -> int | None:
        torch.cuda.synchronize()
        used = device.nvml_used_bytes(0)
        return None if used is None else used - torch.cuda.memory_reserved()

    matrix = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)
    (matrix @ matrix).sum().item()
    stages = [["context and cuBLAS", beyond()]]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    stages.append(["process group", beyond()])
    for size in SIZES:
        tensor = torch.ones(size // 2, device="cuda", dtype=torch.bfloat16)
        dist.all_reduce(tensor)
        stages.append([f"all_reduce of {size:,} bytes", beyond()])
        gathered = torch.empty_like(tensor)
        dist.all_gather_into_tensor(gathered, tensor)
        dist.reduce_scatter_tensor(gathered, tensor)
        stages.append([f"all_gather and reduce_scatter of {size:,} bytes", beyond()])
    return counters.about() | {"nccl": list(torch.cuda.nccl.version()), "stages": stages}


if __name__ == "__main__":
    device_query.print_answer(counted)
