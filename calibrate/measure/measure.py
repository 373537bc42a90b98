"""Measures a workload: the reference loop in a process of its own, on a real or an emulated GPU.

    record = measure(Workload(model="llava-1.5-7b", sequence_length=1024, zero_stage=2, data_parallel_size=8))
    record.peak("requested_bytes")
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path

from calibrate import child
from calibrate.emulator import Injection, Machine, environment
from calibrate.emulator.job_environment import has_real_driver
from calibrate.job import single_rank
from calibrate.job.job import Order
from calibrate.measure import job_prediction, warm_workers
from calibrate.records.record import SCHEMA_VERSION, MeasuredJob, MeasuredOn, Record
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.gpus import DEFAULT as DEFAULT_GPU
from predictor.common.json_dataclasses import from_plain
from predictor.common.suggestions import show
from predictor.jobs.dispatch import resolve
from predictor.version import VERSION
from predictor.workload.workload import Workload

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""PyTorch reads the first that it knows; the second since 2.9."""


def default_device() -> MeasuredOn:
    """A real GPU where there is one."""
    return MeasuredOn.DEVICE if has_real_driver() else MeasuredOn.EMULATED


def measure(workload: Workload, *, device: MeasuredOn | None = None, snapshot: str | None = None,
            events: str = "immediate", verbose: bool = False, command: Sequence[str] = (),
            inject: Injection | None = None) -> Record:
    """Run one workload for three steps and record what PyTorch's allocator counted.

    Args:
        workload: what is trained and how. ``rank`` "worst" means the predictor's worst rank. On an
            emulated device ``gpu`` says which (h100-80gb if not given); on a real one ``capacity_bytes``
            limits what PyTorch may take.
        device: None for :func:`default_device`.
        snapshot: also write the memory history there.
        events: when events complete on the emulated GPU (see :class:`calibrate.emulator.Machine`).
        verbose: let the job's own output through, on stderr.
        command: the words of the command line, for the record.
        inject: what makes the emulated device differ from its kind; the record says so.

    Raises:
        InputError: a workload that cannot be run here, or a job that ended otherwise than by running
            out of GPU memory.
    """
    device = device or default_device()
    whole = resolve(workload).workload
    workload = workload.replace(images_per_sample=whole.images_per_sample)
    if whole.gradient_checkpointing != workload.gradient_checkpointing:  # of the user's own code there is none
        workload = workload.replace(gradient_checkpointing=whole.gradient_checkpointing)
    changes: dict[str, str] = {}
    if device is MeasuredOn.EMULATED:
        workload = workload.replace(gpu=workload.gpu or DEFAULT_GPU)
        machine = Machine(gpu=workload.gpu, capacity_bytes=workload.capacity, events=events,
                          devices=int(os.environ["LOCAL_WORLD_SIZE"]) if single_rank.launched() else 1,
                          inject=inject or Injection())
        changes = environment(machine, shadow_real_gpu=True)
    elif inject is not None:
        raise InputError("nothing can be injected into a real GPU: device must be emulated")
    if workload.allocator_conf:
        changes |= dict.fromkeys(ALLOCATOR_VARIABLES, workload.allocator_conf)
    rank, chosen_by = job_prediction.choose_rank(workload)
    order = Order(
        workload=workload.resolved(), rank=rank, answer="", snapshot=snapshot,
        limit_bytes=workload.capacity_bytes if device is MeasuredOn.DEVICE else None,
        event_completion=events if device is MeasuredOn.EMULATED else None, parent=os.getpid())
    job = _run(order, changes, verbose)
    if job.measured_on is not device:
        raise InputError("this shell is inside an emulated GPU, so there is no real one: start it without")
    record = Record(
        schema_version=SCHEMA_VERSION, peakcast_version=VERSION, workload=workload.resolved(), rank=rank,
        rank_chosen_by=chosen_by, job=job, command=tuple(command), snapshot=snapshot, predicted=None,
        not_predicted=None)
    try:
        return replace(record, predicted=job_prediction.predicted(_on_its_gpu(workload, job), rank))
    except InputError as error:
        return replace(record, not_predicted=str(error))


def _on_its_gpu(workload: Workload, job: MeasuredJob) -> Workload:
    """The workload with the GPU it ran on, so that its kernels are predicted; as it was if that is unknown."""
    try:
        return workload.replace(gpu=workload.gpu or gpus.find(job.device.name).name)
    except InputError:
        return workload


def _run(order: Order, changes: dict[str, str], verbose: bool) -> MeasuredJob:
    """Start the job, wait for it, and read its answer; what it leaves lies in a directory that goes away."""
    with tempfile.TemporaryDirectory(prefix="peakcast-") as directory, _beside(order.snapshot) as part:
        answer, log = Path(directory) / "answer.json", Path(directory) / "log.txt"
        log.touch()
        given = replace(order, answer=str(answer), snapshot=part)
        variables = {**os.environ, **changes}
        code = None if verbose else warm_workers.run(given, variables, str(log))
        if code is None:
            code = _start(given, variables, None if verbose else log)
        measured = _read(answer, log, code)
        if part is not None:
            os.replace(part, order.snapshot)
        return measured


def _start(order: Order, variables: dict[str, str], log: Path | None) -> int:
    """The exit code of a job in a new process; without a log its output goes to stderr."""
    with open(log, "w") if log else nullcontext(sys.stderr) as output:
        job = subprocess.Popen(**child.python("calibrate.job.job", variables=variables), stdin=subprocess.PIPE,
                               stdout=output, stderr=output, text=True)
        try:
            job.communicate(json.dumps(asdict(order)))
        finally:
            job.kill()
            job.wait()
    return job.returncode


@contextmanager
def _beside(path: str | None) -> Iterator[str | None]:
    """A name in the same directory, to write to before renaming; gone afterwards."""
    if path is None:
        yield None
        return
    part = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}.part")
    try:
        yield part
    finally:
        Path(part).unlink(missing_ok=True)


def _read(answer: Path, log: Path, code: int) -> MeasuredJob:
    document = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else {"error": None}
    if "error" in document:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
        last = document["error"] or next((line for line in reversed(lines) if line), "")
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        why = f": {show(last, 300)[1:-1]}" if last and code > 0 else ""
        raise InputError(f"the measured job {how}{why} (nothing was written; --verbose shows its output)")
    if "input_error" in document:
        raise InputError(document["input_error"])
    return from_plain(MeasuredJob, document["job"], "the job's answer")
