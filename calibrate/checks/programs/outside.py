"""What grows outside PyTorch's allocator while a job trains: the operation before each growth.

The first argument is a JSON file with a list of workloads, each a mapping of its keys. Each runs in the reference loop
in a process of its own. After every operation of PyTorch the GPU has finished, and the device's used bytes less those
that PyTorch reserved are read: what the CUDA context and the libraries hold. Nobody else may use the GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from calibrate.probes import device_query

STACK_SIZE = 0
"""``CU_LIMIT_STACK_SIZE`` of cuda.h: bytes of stack and local memory of a GPU thread."""


def counted(workloads: list[Mapping[str, Any]]) -> dict[str, Any]:
    """For each workload the growths, or the error that ended it."""
    import deepspeed  # noqa: F401  # each fork would import it again

    from calibrate.job import reference_loop  # noqa: F401

    answers = []
    for keys in workloads:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "answer.json"
            process = os.fork()
            if not process:
                try:
                    file.write_text(json.dumps(_watched(keys)))
                except BaseException:
                    file.write_text(json.dumps({"error": traceback.format_exc()[-600:]}))
                finally:
                    os._exit(0)
            os.waitpid(process, 0)
            answers.append({"job": keys} | json.loads(file.read_text()))
    return {"jobs": answers}


def _watched(keys: Mapping[str, Any]) -> dict[str, Any]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from calibrate.checks.programs import counters
    from calibrate.emulator import host_values
    from calibrate.job import device, reference_loop
    from predictor.workload.workload import Workload

    host_values.install()
    torch.cuda.set_device(0)
    torch.empty(1, device="cuda")
    growths: list[dict[str, Any]] = []
    moment: list[Any] = ["context", 0]
    segments: set[int] = set()
    known = 0

    def look(operation: str, sizes: list[Any]) -> None:
        nonlocal known
        torch.cuda.synchronize()
        beyond = device.used_bytes() - torch.cuda.memory_reserved()
        if beyond != known:
            new = {segment["address"]: segment["total_size"] for segment in torch.cuda.memory_snapshot()}
            growths.append({"moment": moment[0], "step": moment[1], "operation": operation, "sizes": sizes,
                            "beyond_bytes": beyond, "grew_bytes": beyond - known, "stack_bytes": _stack_bytes(),
                            "new_segments": sorted([address, size] for address, size in new.items()
                                                   if address not in segments)})
            segments.update(new)
            known = beyond

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            look(str(func), [[list(one.shape), str(one.dtype)] for one in args if isinstance(one, torch.Tensor)])
            return result

    def enter(name: Any, step: int) -> None:
        look("between operations", [])
        moment[:] = [name.value, step]

    look("context", [])
    with Watch():
        reference_loop.run(Workload.from_mapping(keys), keys.get("rank", 0), enter)
    look("end", [])
    last = {segment["address"]: segment["total_size"] for segment in torch.cuda.memory_snapshot()}
    return counters.about() | {"growths": growths, "segments": sorted(map(list, last.items()))}


def _stack_bytes() -> int | None:
    """The stack of a GPU thread; None if the driver does not say."""
    try:
        limit = ctypes.c_size_t()
        failed = ctypes.CDLL("libcuda.so.1").cuCtxGetLimit(ctypes.byref(limit), STACK_SIZE)
    except (OSError, AttributeError):
        return None
    return None if failed else limit.value


if __name__ == "__main__":
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # CUDA in this process would not work in its forks
    device_query.print_answer(partial(counted, json.loads(Path(sys.argv[1]).read_text())))
