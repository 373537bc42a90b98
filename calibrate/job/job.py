"""The process of a measured job: ``python -m calibrate.job.job``.

``calibrate.measure.measure`` starts it, or forks it from a process that has already imported the libraries
(``calibrate.measure.warm_workers``). It reads its :class:`JobRequest` as JSON from stdin and writes its answer, whole
or not at all, to a file.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import sys
import time
import traceback
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NoReturn

from calibrate.records.record import MeasuredJob, OutOfMemory
from predictor.common.errors import InputError
from predictor.common.json_dataclasses import to_plain
from predictor.workload.workload import Workload

PR_SET_PDEATHSIG = 1  # prctl(2)


@dataclass(frozen=True)
class JobRequest:
    """The request to measure one job.

    Attributes:
        answer: path of the file to write: ``{"job": …}``, ``{"input_error": …}``, or ``{"error": …}`` for another
            exception.
        snapshot: path for the memory history, or None.
        limit_bytes: the most that PyTorch may use of a real GPU, or None for all of it.
        event_completion: how the emulated GPU completes events; None on a real one.
        parent: process id of the process that waits for the answer.
    """

    workload: dict[str, Any]
    rank: int
    answer: str
    snapshot: str | None
    limit_bytes: int | None
    event_completion: str | None
    parent: int


def main() -> None:
    """Measures the job that stdin describes."""
    run_and_exit(JobRequest(**json.load(sys.stdin)))


def run_and_exit(order: JobRequest) -> NoReturn:
    """Measures the job, writes the answer and ends the process at once, because libraries hang while Python shuts down.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # without the parent, nobody reads the answer
    if os.getppid() != order.parent:  # the parent ended before the line above
        os._exit(1)
    try:
        answer = {"job": to_plain(run(order))}
    except InputError as error:
        answer = {"input_error": str(error)}
    except Exception as error:  # reported here: what libraries print while they shut down is not the cause
        traceback.print_exc()
        answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
    unfinished = order.answer + ".part"
    with open(unfinished, "w", encoding="utf-8") as stream:
        json.dump(answer, stream)
    os.replace(unfinished, order.answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if "error" in answer else 0)


def run(order: JobRequest) -> MeasuredJob:
    """Runs the job on this process's device and returns what its allocator counted."""
    from calibrate.job import device, single_rank

    started, clock = _now(), time.monotonic()
    device.require()
    import torch

    from calibrate.emulator import host_values
    from calibrate.job import reference_generation, reference_loop
    from calibrate.job.peaks import Counters, MomentLog

    host_values.install()  # PyTorch 2.4 does not load it (``torch.backends``)
    workload = Workload.from_mapping(order.workload)
    torch.cuda.set_device(single_rank.local_device())
    limit_memory(order.limit_bytes)
    counters = Counters(torch.cuda.current_device())
    log = MomentLog(counters)
    refusals: list[int] = []  # requested bytes of each failed allocation
    attach = torch._C._cuda_attach_out_of_memory_observer  # type: ignore[attr-defined]  # torch's stub lacks it
    attach(lambda _device, tried, _total, _free: refusals.append(tried))
    used: list[int] = []

    def enter(moment, step) -> None:
        used.append(device.used_bytes())
        log.enter(moment, step)
        if history:
            history.enter(moment, step)

    failure = None
    with _history(order.snapshot) as history:
        try:
            built = history.follow if history else None
            if workload.mode == "inference":
                reference_generation.run(workload, enter, built)
            else:
                reference_loop.run(workload, order.rank, enter, built)
        except RuntimeError as error:  # torch.OutOfMemoryError, or a library's own error
            if not isinstance(error, torch.OutOfMemoryError) and "out of memory" not in str(error).lower():
                raise
            step, moment = log.at
            failure = OutOfMemory(" ".join(str(error).split()), moment, step, refusals[-1] if refusals else None)
        moments = log.close()
        used.append(device.used_bytes())
        if history:
            history.save()
    return MeasuredJob(
        measured_on=device.measured_on(), device=device.describe(order.event_completion), software=device.software(),
        settings=device.settings(), process_group=single_rank.joined(), moments=moments, out_of_memory=failure,
        memory_stats=counters.statistics(), device_used_bytes=max(used), nvml_used_bytes=device.nvml_used_bytes(),
        started_at=started, finished_at=_now(), seconds=round(time.monotonic() - clock, 3))


def limit_memory(limit_bytes: int | None) -> None:
    """Leaves this process's PyTorch so many bytes of the current device; None for all.

    Raises:
        InputError: the device has less.
    """
    import torch

    if limit_bytes is None:
        return
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    if limit_bytes > total:
        raise InputError(f"capacity_bytes {limit_bytes} is more than this GPU has ({total}): leave it out")
    torch.cuda.set_per_process_memory_fraction(fraction(limit_bytes, total))


def fraction(limit_bytes: int, total_bytes: int) -> float:
    """The fraction of a device's memory that leaves PyTorch no less than the limit.

    PyTorch multiplies it by the device's bytes and rounds down (CUDACachingAllocator.cpp, setMemoryFraction, 2.11).
    """
    share = limit_bytes / total_bytes
    return share if int(share * total_bytes) >= limit_bytes else math.nextafter(share, 1.0)


def _history(path: str | None):
    if path is None:
        return nullcontext()
    from calibrate.job.history import History

    return History(path)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


if __name__ == "__main__":
    main()
