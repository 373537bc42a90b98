"""Measures a workload: runs the reference training loop in a process of its own, on a real or an emulated GPU.

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
from calibrate.job.job import JobRequest
from calibrate.measure import job_prediction, warm_workers
from calibrate.records.record import SCHEMA_VERSION, MeasuredJob, MeasuredOn, Record
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.gpus import DEFAULT as DEFAULT_GPU
from predictor.common.json_dataclasses import from_plain
from predictor.common.suggestions import quoted
from predictor.formula import interpreter
from predictor.jobs.dispatch import resolve
from predictor.version import VERSION
from predictor.workload.workload import Workload

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Environment variables of the allocator's settings. PyTorch knows the second since 2.9."""


def default_device() -> MeasuredOn:
    """A real GPU if this machine has an NVIDIA driver, else the emulated GPU."""
    return MeasuredOn.DEVICE if has_real_driver() else MeasuredOn.EMULATED


def measure(workload: Workload, *, device: MeasuredOn | None = None, snapshot: str | None = None,
            events: str = "immediate", verbose: bool = False, command: Sequence[str] = (),
            inject: Injection | None = None) -> Record:
    """Run one workload for three steps and record what PyTorch's allocator counted.

    It runs in the interpreter in which models are traced (:data:`predictor.formula.interpreter.CHOSEN`), with the
    packages of its environment.

    Args:
        workload: what is trained and how. ``rank`` "worst" means the rank with the highest predicted peak. On an
            emulated device, ``gpu`` is the GPU model (default h100-80gb). On a real one, ``capacity_bytes`` limits
            the memory that PyTorch may take.
        device: a real or an emulated GPU; None for :func:`default_device`.
        snapshot: path to which the memory history is written, too; None to write none.
        events: when events complete on the emulated GPU (see :class:`calibrate.emulator.Machine`).
        verbose: show the job's own output, on stderr.
        command: the words of the command line, for the record.
        inject: differences to inject into the emulated GPU. The record lists them.

    Raises:
        InputError: the workload cannot be run here, or the job failed for another reason than GPU memory.
    """
    workload, record = _measured(workload, device or default_device(), snapshot, events, verbose, command, inject)
    try:
        predicted = job_prediction.predict_requested(_on_its_gpu(workload, record.job), record.rank)
        return replace(record, predicted=predicted)
    except InputError as error:
        return replace(record, not_predicted=str(error))


def measure_only(workload: Workload, *, device: MeasuredOn, events: str = "immediate") -> Record:
    """Like :func:`measure`, without a prediction in the record, which may take a trace."""
    return _measured(workload, device, None, events, False, (), None)[1]


def _measured(workload: Workload, device: MeasuredOn, snapshot: str | None, events: str, verbose: bool,
              command: Sequence[str], inject: Injection | None) -> tuple[Workload, Record]:
    """The workload as it ran, and its record without a prediction."""
    whole = resolve(workload).workload
    workload = workload.replace(images_per_sample=whole.images_per_sample)
    if whole.gradient_checkpointing != workload.gradient_checkpointing:  # a model from the user's own code has none
        workload = workload.replace(gradient_checkpointing=whole.gradient_checkpointing)
    changes: dict[str, str] = {}
    if device is MeasuredOn.EMULATED:
        gpu = workload.gpu or DEFAULT_GPU
        workload = workload.replace(gpu=gpu)
        machine = Machine(gpu=gpu, capacity_bytes=workload.capacity, events=events,
                          devices=int(os.environ["LOCAL_WORLD_SIZE"]) if single_rank.launched() else 1,
                          inject=inject or Injection())
        changes = environment(machine, shadow_real_gpu=True, interpreter=interpreter.path())
    elif inject is not None:
        raise InputError("nothing can be injected into a real GPU: device must be emulated")
    if workload.allocator_conf:
        changes |= dict.fromkeys(ALLOCATOR_VARIABLES, workload.allocator_conf)
    rank, chosen_by = job_prediction.choose_rank(workload)
    order = JobRequest(
        workload=workload.resolved(), rank=rank, answer="", snapshot=snapshot,
        limit_bytes=workload.capacity_bytes if device is MeasuredOn.DEVICE else None,
        event_completion=events if device is MeasuredOn.EMULATED else None, parent=os.getpid())
    job = _run(order, changes, verbose)
    if job.measured_on is not device:
        raise InputError("this shell runs on an emulated GPU, which hides the real one: "
                         "start the measurement from an ordinary shell")
    return workload, Record(
        schema_version=SCHEMA_VERSION, peakcast_version=VERSION, workload=workload.resolved(), rank=rank,
        rank_chosen_by=chosen_by, job=job, command=tuple(command), snapshot=snapshot, predicted=None,
        not_predicted=None)


def _on_its_gpu(workload: Workload, job: MeasuredJob) -> Workload:
    """The workload with the GPU on which it ran, so that the prediction uses its kernels. Unchanged if unknown."""
    try:
        return workload.replace(gpu=workload.gpu or gpus.find(job.device.name).name)
    except InputError:
        return workload


def _run(order: JobRequest, changes: dict[str, str], verbose: bool) -> MeasuredJob:
    """Runs the job, waits for it, and reads its result. Its temporary files are removed."""
    with tempfile.TemporaryDirectory(prefix="peakcast-") as directory, _part_file(order.snapshot) as part:
        answer, log = Path(directory) / "answer.json", Path(directory) / "log.txt"
        log.touch()
        job_order = replace(order, answer=str(answer), snapshot=part)
        variables = {**os.environ, **changes}
        code = None if verbose else warm_workers.run(job_order, variables, str(log), interpreter.path())
        if code is None:
            code = _start(job_order, variables, None if verbose else log)
        measured = _read(answer, log, code)
        if part is not None and order.snapshot is not None:
            os.replace(part, order.snapshot)
        return measured


def _start(order: JobRequest, variables: dict[str, str], log: Path | None) -> int:
    """Runs a job in a new process and returns its exit code. Without a log, its output goes to stderr."""
    with open(log, "w") if log else nullcontext(sys.stderr) as output:
        job = subprocess.Popen(**child.python("calibrate.job.job", variables=variables, interpreter=interpreter.path()),
                               stdin=subprocess.PIPE, stdout=output, stderr=output, text=True)
        try:
            job.communicate(json.dumps(asdict(order)))
        finally:
            job.kill()
            job.wait()
    return job.returncode


@contextmanager
def _part_file(path: str | None) -> Iterator[str | None]:
    """A temporary file name in the same directory, to be renamed to ``path``. The file is removed if it remains."""
    if path is None:
        yield None
        return
    part = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}.part")
    try:
        yield part
    finally:
        Path(part).unlink(missing_ok=True)


def _read(answer: Path, log: Path, code: int) -> MeasuredJob:
    """Reads the job's answer file.

    Raises:
        InputError: the job failed, or rejected its workload.
    """
    document = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else {"error": None}
    if "error" in document:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
        last = document["error"] or next((line for line in reversed(lines) if line), "")
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        reason = f": {quoted(last, 300)[1:-1]}" if last and code > 0 else ""
        raise InputError(f"the measured job {ending}{reason} (nothing was written; --verbose shows its output)")
    if "input_error" in document:
        raise InputError(str(document["input_error"]))
    job: MeasuredJob = from_plain(MeasuredJob, document["job"], "the job's answer")
    return job
