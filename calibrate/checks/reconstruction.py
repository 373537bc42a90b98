"""Predicts one row of the evidence, or the verdict of one report, in the form in which its job is given."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.evidence.sources import DIRECTORY, Command, Job, Operator, Report, Row, Source
from calibrate.evidence.verdicts import Thread, Verdict
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.snapshot import Action, Snapshot, read
from predictor.snapshot.replay import replay

LONGEST_SECONDS = 3_600
UNPREDICTED_BYTES = 1 << 30
"""A job that survives only if CUDA's context takes less than this is uncertain, as ``peakcast predict`` has it."""
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
"""Units in PyTorch's messages."""
LAST_LINES = 4
"""So many lines of the output of a script that failed are shown."""
COMPARED = [Action.ALLOC, Action.FREE_REQUESTED]
"""Actions of a memory history that the program decides; what the allocator does about them follows."""
Found = dict[str, Any]
"""Values of :class:`~calibrate.evidence.predictions.Predicted`."""


@dataclass(frozen=True)
class Inputs:
    """Directories with the checkouts of repositories and with recorded memory histories; None: not there."""

    checkouts: Path | None
    recordings: Path | None

    def has(self, source: Source, row: Row) -> bool:
        """Whether what the row needs is there."""
        if row.job.recording:
            return self.recording(source, row.job.recording) is not None
        return self.has_checkout(row.job, source.checkout)

    def has_checkout(self, job: Job, name: str) -> bool:
        """Whether the job needs no checkout, or the one of this name is there."""
        return job.command is None or (self.checkouts is not None and (self.checkouts / name).is_dir())

    def recording(self, source: Source, name: str) -> Path | None:
        """The file of a recording, if it is there."""
        path = self.recordings / source.checkout / name if self.recordings is not None and name else None
        return path if path is not None and path.is_file() else None


def predict(source: Source, row: Row, inputs: Inputs) -> Found:
    """The bytes of each quantity that the row's job is predicted to need.

    Raises:
        InputError: the job cannot be predicted, or its script failed.
    """
    form = row.job.form
    return FORMS[form](getattr(row.job, form), source, row, inputs)


def _workload(keys: Mapping[str, Any], source: Source, row: Row, inputs: Inputs) -> Found:
    answer = _answer(keys, row.emulated, row.capacity_bytes)
    return {"bytes": {"requested_bytes": answer.peak_requested_bytes, "allocated_bytes": answer.peak_allocated_bytes,
                      "reserved_bytes": answer.peak_reserved_bytes}}


def _answer(keys: Mapping[str, Any], gpu: str, capacity_bytes: int) -> Any:
    """The prediction of a job that is given by keys."""
    from predictor.answer.predict import predict
    from predictor.workload.workload import Workload

    model = str(keys["model"])
    own = {"model": str(DIRECTORY / model)} if model.endswith(".json") else {}
    return predict(Workload(**{**keys, **own, "gpu": gpu, "profile": "none", "capacity_bytes": capacity_bytes or None}))


def _report(report: Report, source: Source, row: Row, inputs: Inputs) -> Found:
    from calibrate.checks import gemma_report

    peaks = gemma_report.peaks(gemma_report.ROWS[report.job])
    return {"bytes": {"allocated_bytes": getattr(peaks, report.moment)}}


def _operator(call: Operator, source: Source, row: Row, inputs: Inputs) -> Found:
    from calibrate.checks.liger_h100 import peak_mib

    mib = peak_mib(call.name, call.x, dict(call.config), call.mode, gpus.find(row.emulated))
    return {"bytes": {"allocated_bytes": round(mib * 2**20)}}


def _recording(name: str, source: Source, row: Row, inputs: Inputs) -> Found:
    found = replay(read(str(inputs.recording(source, name))))
    return {"bytes": {"requested_bytes": found.peak_requested_bytes, "reserved_bytes": found.peak_reserved_bytes}}


def prints_reserved(row: Row) -> bool:
    """Whether a row has a script that prints how many bytes it reserved."""
    return row.job.command is not None and "reserved_bytes" in row.job.command.prints


def reserved_in_order(seed: int, row: Row, inputs: Inputs) -> int:
    """The bytes that a row's script prints as reserved (:func:`prints_reserved`), with the driver's addresses drawn at
    random.

    Raises:
        InputError: the script failed, or did not print them.
    """
    command = row.job.command
    assert command is not None  # prints_reserved(row)
    printed = command.prints["reserved_bytes"]
    with tempfile.TemporaryDirectory() as name:
        launcher = [sys.executable, "-m", "calibrate.emulator", "run", "--inject", f"address_seed={seed}"]
        run = _run(command, row.emulated, row.capacity_bytes, Path(name), inputs, launcher)
    if run.exit_code:
        raise InputError(f"the script ended with exit code {run.exit_code}: {run.last_words}")
    return round(float(_only(printed.pattern, run.output)) * printed.unit_bytes)


def _command(command: Command, source: Source, row: Row, inputs: Inputs) -> Found:
    with tempfile.TemporaryDirectory() as name:
        run = _run(command, row.emulated, row.capacity_bytes, Path(name), inputs)
        if run.exit_code:
            raise InputError(f"the script ended with exit code {run.exit_code}: {run.last_words}")
        output = run.output
        if not command.snapshot:
            return {"bytes": {quantity: round(float(_only(printed.pattern, output)) * printed.unit_bytes)
                              for quantity, printed in command.prints.items()}}
        snapshot = read(_filled(command.snapshot, Path(name), inputs))
        recording = inputs.recording(source, row.recording)
        events = _events(snapshot, read(str(recording))) if recording is not None else {}
        replayed = replay(snapshot)
    return {"bytes": {"requested_bytes": replayed.recorded.peak_requested_bytes,
                      "allocated_bytes": replayed.peak_allocated_bytes,
                      "reserved_bytes": replayed.recorded.peak_reserved_bytes}, **events}


@dataclass(frozen=True)
class Run:
    """A run of a script on the emulated GPU: its exit code, what it printed, and the dry run's report."""

    exit_code: int
    output: str
    report: Mapping[str, Any]

    @property
    def last_words(self) -> str:
        """The last lines that it printed."""
        return " / ".join([line.strip() for line in self.output.splitlines() if line.strip()][-LAST_LINES:])[:600]


def _run(command: Command, gpu: str, capacity_bytes: int, out: Path, inputs: Inputs,
         launcher: Sequence[str] = ()) -> Run:
    """Runs a script on the emulated GPU, by a dry run unless another launcher is given, which makes no report."""
    directory = out / "run"
    for needed in (".", *command.directories):
        (directory / needed).mkdir(parents=True, exist_ok=True)
    words = [_filled(word, out, inputs) for word in command.words]
    launcher = launcher or ["peakcast", "dryrun", "--json", "-o", str(out / "dryrun.json")]
    options = ["--gpu", gpu]
    options += ["--capacity-bytes", str(capacity_bytes)] if capacity_bytes else []
    options += ["--world-size", str(command.world_size)] if command.world_size else []
    environment = {**os.environ, **command.environment, "TORCH_COMPILE_DISABLE": "1",
                   "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
                   "PYTHONPATH": os.pathsep.join(_filled(path, out, inputs) for path in command.python_path)}
    run = subprocess.run([*launcher, *options, "--", *words], cwd=directory, env=environment, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LONGEST_SECONDS)
    report = out / "dryrun.json"
    return Run(run.returncode, run.stdout, json.loads(report.read_text()) if report.is_file() else {})


def judge(thread: Thread, inputs: Inputs) -> Found:
    """The verdict on the job of a report, as values of :class:`~calibrate.evidence.verdicts.Judged`.

    Raises:
        InputError: the job cannot be predicted, or its script failed otherwise than by running out of memory.
    """
    if thread.job.command is None:
        answer = _answer(thread.job.workload or {}, thread.emulated, thread.capacity_bytes)
        return {"verdict": Verdict(answer.verdict), "reserved_bytes": answer.peak_reserved_bytes}
    capacity_bytes = thread.capacity_bytes or gpus.find(thread.emulated).capacity_bytes
    found = _survival(thread.job.command, thread.emulated, capacity_bytes, inputs)
    if found["verdict"] is Verdict.FITS:  # the emulated GPU has no CUDA context: does the job survive with one?
        smaller = _survival(thread.job.command, thread.emulated, capacity_bytes - UNPREDICTED_BYTES, inputs)
        return {**found, "verdict": Verdict.FITS if smaller["verdict"] is Verdict.FITS else Verdict.UNCERTAIN}
    return found


def _survival(command: Command, gpu: str, capacity_bytes: int, inputs: Inputs) -> Found:
    with tempfile.TemporaryDirectory() as name:
        run = _run(command, gpu, capacity_bytes, Path(name), inputs)
    failed = run.report.get("out_of_memory", ())
    if failed:
        allocated = re.findall(r"Of the allocated memory ([0-9.]+) (\w+) is allocated by PyTorch", run.output)
        return {"verdict": Verdict.DOES_NOT_FIT, "tried_bytes": failed[-1]["tried_to_allocate_bytes"],
                "allocated_bytes": round(float(allocated[-1][0]) * UNITS[allocated[-1][1]]) if allocated else 0}
    if run.exit_code:
        raise InputError(f"the script ended with exit code {run.exit_code}: {run.last_words}")
    return {"verdict": Verdict.FITS, "reserved_bytes": run.report["peak_reserved_bytes"]}


def _filled(text: str, out: Path, inputs: Inputs) -> str:
    return text.replace("{out}", str(out)).replace("{checkouts}", str(inputs.checkouts))


def _only(pattern: str, output: str) -> str:
    """The last text that a pattern's group matches."""
    found = re.findall(pattern, output)
    if not found:
        raise InputError(f"the script did not print {pattern}; it ended with {output[-300:]!r}")
    return found[-1]


def _events(run: Snapshot, recording: Snapshot) -> Found:
    """How many allocations and frees the run has, and how many differ from the recording's in kind or size."""
    ours, theirs = (_sequence(snapshot) for snapshot in (run, recording))
    shared = min(len(ours), len(theirs))
    differ = int((ours[:shared] != theirs[:shared]).any(axis=1).sum()) + abs(len(ours) - len(theirs))
    return {"events": len(ours), "events_that_differ": differ}


def _sequence(snapshot: Snapshot) -> np.ndarray:
    trace = max(snapshot.traces, key=lambda trace: len(trace.action))
    chosen = np.isin(trace.action, COMPARED)
    return np.column_stack([trace.action[chosen], trace.size[chosen]])


FORMS: dict[str, Callable[[Any, Source, Row, Inputs], Found]] = {
    "workload": _workload, "command": _command, "report": _report, "operator": _operator, "recording": _recording}
