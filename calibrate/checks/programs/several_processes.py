"""NVML's view of a GPU that one, two, … processes share: each holds a CUDA context and has used cuBLAS once."""

from __future__ import annotations

import os
import traceback
from typing import Any

from calibrate.probes import device_query

PROCESSES = 6


def counted() -> dict[str, Any]:
    """The device's used bytes before the first process, and after each, with what PyTorch reserved in it."""
    import torch

    from calibrate.job import device

    used, reserved, children = [device.nvml_used_bytes(0)], [], []
    for _ in range(PROCESSES):
        (answers, answer), (stay, leave) = os.pipe(), os.pipe()
        process = os.fork()
        if not process:
            try:
                matrix = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)
                (matrix @ matrix).sum().item()
                os.write(answer, str(torch.cuda.memory_reserved()).encode())
                os.close(answer)
                os.read(stay, 1)
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(answer)
        os.close(stay)
        reserved.append(int(os.read(answers, 100) or b"-1"))
        used.append(device.nvml_used_bytes(0))
        children.append((process, leave))
    for process, leave in children:
        os.write(leave, b"x")
        os.waitpid(process, 0)
    return {"used_bytes": used, "reserved_bytes": reserved}


if __name__ == "__main__":
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # CUDA in this process would not work in its forks
    device_query.print_answer(counted)
