"""Runs the user's own script on an emulated GPU and says what it needed.

    result = dryrun(["python", "train.py"], Machine(gpu="h100-80gb"), world_size=8, rank=7)
    result.peak_requested_bytes
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from calibrate.dryrun.hooks import SETTING
from calibrate.dryrun.hooks.fake_ranks import variables
from calibrate.emulator import H100, Machine, environment
from calibrate.records.record import SCHEMA_VERSION, MeasuredOn
from predictor.common.errors import InputError
from predictor.common.suggestions import show
from predictor.version import VERSION

AUTOLOAD = Path(__file__).resolve().parent / "hooks" / "autoload"


@dataclass(frozen=True)
class Settings:
    """What ``calibrate.dryrun.hooks`` is told.

    Attributes:
        directory: where each process leaves its report.
        world_size: None: ``torch.distributed`` is left as it is.
        optimizer_steps: stop at the first backward after so many; None: when the script ends.
        history: whether each process also leaves its whole memory history.
    """

    directory: str
    rank: int
    world_size: int | None
    optimizer_steps: int | None
    history: bool = False


@dataclass(frozen=True)
class Line:
    """A place in source code."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number} in {self.function}"


@dataclass(frozen=True)
class Where:
    """A point of the run: see ``calibrate.dryrun.hooks.watcher.Where``; ``line`` is in the user's code."""

    moment: str
    step: int
    requested_bytes: int
    frames: tuple[Line, ...]
    line: Line | None


@dataclass(frozen=True)
class Refusal:
    """The device had no room for ``tried_to_allocate_bytes`` (a whole segment of the allocator)."""

    tried_to_allocate_bytes: int
    where: Where


@dataclass(frozen=True)
class DryRun:
    """What one process of the script needed, and how the script ended.

    Attributes:
        gpu: what it ran on, which was never there: ``measured_on`` is always ``emulated``.
        settings: environment variables that change what is allocated, where they were set.
        peak: where the requested bytes were highest.
        out_of_memory: every time PyTorch could not get memory, whether the script caught it or not.
        optimizer_steps: how many were finished.
        stopped: whether the dry run ended the script after the steps it was asked for.
        exit_code: the script's own; negative: the signal that killed it.
        exception: the last line of the traceback that ended the script.
        processes: how many processes of the script used the GPU; this is the one with the highest peak.
    """

    schema_version: int
    peakcast_version: str
    measured_on: MeasuredOn
    gpu: str
    capacity_bytes: int
    software: Mapping[str, str | None]
    settings: Mapping[str, str]
    rank: int
    world_size: int
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak: Where | None
    out_of_memory: tuple[Refusal, ...]
    memory_stats: Mapping[str, int]
    optimizer_steps: int
    stopped: bool
    exit_code: int
    exception: str | None
    processes: int
    command: tuple[str, ...]


@dataclass(frozen=True)
class Streams:
    """File descriptors for a command's standard output and standard error; None: ours."""

    output: int | None = None
    errors: int | None = None


OURS = Streams()


def dryrun(command: Sequence[str], machine: Machine = H100, *, world_size: int | None = None, rank: int = 0,
           optimizer_steps: int | None = None, streams: Streams = OURS, snapshot: str | None = None) -> DryRun:
    """Run a command whose Python processes see an emulated GPU.

    Args:
        machine: what they see.
        world_size: how many ranks ``torch.distributed`` reports; this process is ``rank``. None: whatever
            the command itself starts.
        optimizer_steps: end the script after so many; three are enough for the peak of a loop.
        streams: where the command writes.
        snapshot: also write the memory history of the reported process there, as ``peakcast measure`` does.

    Raises:
        InputError: no such command or GPU, no process of the command used the GPU, or ``torch.compile`` made kernels
            for it.
    """
    if not 0 <= rank < (world_size or 1):
        raise InputError(f"rank {rank} must be at least 0 and below the world size, {world_size or 1}")
    if not command or shutil.which(command[0]) is None:
        raise InputError(f"command not found: {show(command[0]) if command else 'give one after --'}")
    changes = environment(machine, shadow_real_gpu=True)
    with tempfile.TemporaryDirectory(prefix="peakcast-") as directory:
        settings = Settings(directory, rank, world_size, optimizer_steps, snapshot is not None)
        changes |= {SETTING: json.dumps(asdict(settings)),
                    "PYTHONPATH": os.pathsep.join([changes["PYTHONPATH"], str(AUTOLOAD)])}
        if world_size is not None:
            changes |= variables(rank, world_size)
        code = _run(command, {**os.environ, **changes}, streams)
        return _result(Path(directory), settings, command, code, snapshot)


def _run(command: Sequence[str], variables: dict[str, str], streams: Streams) -> int:
    sys.stdout.flush()
    try:
        job = subprocess.Popen(command, env=variables, stdout=streams.output, stderr=streams.errors)
    except OSError as error:
        raise InputError(f"{show(command[0])} cannot be started: {error.strerror}") from None
    try:
        return job.wait()
    finally:
        job.terminate()  # if we were interrupted; it has ended otherwise
        job.wait()


def _result(directory: Path, settings: Settings, command: Sequence[str], code: int, snapshot: str | None) -> DryRun:
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in directory.glob("*.json")]
    refused = next((report["refused"] for report in reports if report["refused"]), None)
    if refused:
        raise InputError(refused)
    if not reports:
        raise InputError(f"the command ended with exit code {code} before it used a GPU: nothing to report")
    report = max(reports, key=lambda report: (bool(report["out_of_memory"]), report["peaks"]["requested_bytes"]))
    history = directory / f"{report['pid']}.pickle"
    if snapshot is not None and history.exists():
        shutil.move(history, snapshot)
    return DryRun(
        schema_version=SCHEMA_VERSION, peakcast_version=VERSION, measured_on=MeasuredOn.EMULATED,
        gpu=report["device"], capacity_bytes=report["capacity_bytes"], software=report["software"],
        settings=report["settings"],
        rank=settings.rank, world_size=settings.world_size or 1,
        **{f"peak_{name}": size for name, size in report["peaks"].items()},
        peak=_where(report["peak"]) if report["peak"] else None,
        out_of_memory=tuple(Refusal(item["tried_to_allocate_bytes"], _where(item["where"]))
                            for item in report["out_of_memory"]),
        memory_stats=report["memory_stats"], optimizer_steps=report["optimizer_steps"], stopped=report["stopped"],
        exit_code=code, exception=report["exception"], processes=len(reports), command=tuple(command))


def _where(found: dict) -> Where:
    frames = tuple(Line(*frame) for frame in found["frames"])
    return Where(**found | {"frames": frames, "line": Line(*found["line"]) if found["line"] else None})
