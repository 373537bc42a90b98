"""Runs the user's own script on an emulated GPU and reports the memory that it needed.

    result = dryrun(["python", "train.py"], Machine(gpu="h100-80gb"), world_size=8, rank=7)
    result.peak_requested_bytes
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from calibrate.dryrun.hooks import SETTING
from calibrate.dryrun.hooks.allocations import SUFFIX
from calibrate.dryrun.hooks.factors import UNATTRIBUTED
from calibrate.dryrun.hooks.fake_ranks import variables
from calibrate.dryrun.played import Played, played
from calibrate.dryrun.progress import Progress, read
from calibrate.emulator import H100, Machine, environment
from calibrate.emulator.build import find_torch, has_torch
from calibrate.records.record import SCHEMA_VERSION, MeasuredOn
from predictor.common.errors import InputError
from predictor.common.installing import pip_install
from predictor.common.releases import release
from predictor.common.suggestions import quoted
from predictor.events.events import Factor
from predictor.events.model_facts import MODEL
from predictor.version import VERSION

LOOK_SECONDS = 1.0
OLDEST_TORCH = (2, 4, 0)
ENTRY_POINTS_SINCE = (2, 5, 0)
"""The first PyTorch that loads backends by entry points (``torch.backends``)."""
AUTOLOAD = Path(__file__).resolve().parent / "hooks" / "autoload"


class NoGpuUsed(InputError):
    """No process of the command used the GPU."""


@dataclass(frozen=True)
class Settings:
    """Settings of a dry run for ``calibrate.dryrun.hooks``.

    Attributes:
        directory: where each process writes its report.
        world_size: None: ``torch.distributed`` stays as it is.
        optimizer_steps: stop at the first backward after this many; None: run until the script ends.
        history: whether each process also writes its whole memory history.
        progress: whether each process also writes how far it is (:mod:`calibrate.dryrun.progress`).
    """

    directory: str
    rank: int
    world_size: int | None
    optimizer_steps: int | None
    history: bool = False
    progress: bool = False


@dataclass(frozen=True)
class Line:
    """A line of source code."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number} in {self.function}"


@dataclass(frozen=True)
class CodePoint:
    """A point of the run, as in ``calibrate.dryrun.hooks.watcher.Where``. ``line`` is in the user's code.

    ``module`` and ``operator`` are those that ran, empty if unknown.
    """

    moment: str
    step: int
    requested_bytes: int
    frames: tuple[Line, ...]
    line: Line | None
    module: str = ""
    operator: str = ""


@dataclass(frozen=True)
class FailedAllocation:
    """A failed allocation: the device had no room for ``tried_to_allocate_bytes`` (a whole segment of the allocator).

    ``allocated_bytes`` and ``reserved_bytes`` are PyTorch's at that time; the device had ``free_bytes`` left.
    PyTorch had given back all that it could.
    """

    tried_to_allocate_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    free_bytes: int
    where: CodePoint

    @property
    def enough_bytes(self) -> int:
        """The memory with which PyTorch could have served it: what it had, and the segment."""
        return self.reserved_bytes + self.tried_to_allocate_bytes


@dataclass(frozen=True)
class DryRun:
    """Memory of one process of the script, and how the script ended.

    Attributes:
        gpu: the emulated GPU; ``measured_on`` is always ``emulated``.
        settings: environment variables that change allocations and were set.
        peak: the point with the most requested bytes.
        factors: ``peak_allocated_bytes`` by factor, with the names of a prediction's factors and ``unattributed``, the
            bytes of no known purpose. They are requested bytes at ``peak``; ``allocator`` is what the allocated peak
            has beyond them. Empty with ``snapshot``, where the history says it.
        modules: the same sum by part of the model, then by factor.
        out_of_memory: every failed allocation, whether or not the script caught the error.
        with_expandable_segments: the same allocations with them; None where none failed, or where ``not_played`` says
            why it is not known.
        optimizer_steps: number of complete optimizer steps.
        stopped: whether the dry run ended the script after the requested number of steps.
        exit_code: the script's own; negative: the signal that killed it.
        exception: the last line of the traceback that ended the script.
        processes: number of processes of the script that used the GPU. The report is of one that ran out of memory, or
            else of the one with the highest peak.
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
    peak: CodePoint | None
    factors: Mapping[str, int]
    modules: Mapping[str, Mapping[str, int]]
    out_of_memory: tuple[FailedAllocation, ...]
    with_expandable_segments: Played | None
    not_played: str
    memory_stats: Mapping[str, int]
    optimizer_steps: int
    stopped: bool
    exit_code: int
    exception: str | None
    processes: int
    command: tuple[str, ...]


@dataclass(frozen=True)
class Streams:
    """File descriptors for a command's standard output and standard error; None: those of this process.

    ``progress`` is called every second with the state of the script.
    """

    output: int | None = None
    errors: int | None = None
    progress: Callable[[Progress], None] | None = None


OURS = Streams()


def dryrun(command: Sequence[str], machine: Machine = H100, *, world_size: int | None = None, rank: int = 0,
           optimizer_steps: int | None = None, streams: Streams = OURS, snapshot: str | None = None) -> DryRun:
    """Run a command whose Python processes see an emulated GPU: that of the command's own PyTorch.

    Programs are looked for on the path, and last beside this interpreter, whose environment may not be activated.

    Args:
        machine: the emulated machine.
        world_size: number of ranks that ``torch.distributed`` reports; the process is ``rank``. None: the ranks that
            the command itself starts.
        optimizer_steps: end the script after this many; three are enough for the peak of a loop.
        streams: where the command writes its output.
        snapshot: path for the memory history of the reported process, in the format of ``peakcast measure``; None:
            none.

    Raises:
        InputError: there is no such command or GPU, no process of the command used the GPU, or ``torch.compile`` made
            kernels for it.
    """
    if not 0 <= rank < (world_size or 1):
        raise InputError(f"rank {rank} must be at least 0 and below the world size, {world_size or 1}")
    path = os.pathsep.join(filter(None, [os.environ.get("PATH"), os.path.dirname(sys.executable)]))
    program = shutil.which(command[0], path=path) if command else None
    if program is None:
        raise InputError(f"command not found: {quoted(command[0]) if command else 'give one after --'}")
    of_command = _interpreter_of(program, path)
    interpreter = of_command if of_command and has_torch(of_command) else sys.executable
    if release(version := find_torch(interpreter).version) < OLDEST_TORCH:
        raise InputError(f"PyTorch {version} does not load what watches a dry run: use "
                         f"{'.'.join(map(str, OLDEST_TORCH[:2]))} or later, or peakcast measure")
    changes = environment(machine, shadow_real_gpu=True, interpreter=interpreter)
    with tempfile.TemporaryDirectory(prefix="peakcast-") as directory:
        settings = Settings(directory, rank, world_size, optimizer_steps, snapshot is not None,
                            streams.progress is not None)
        changes |= {SETTING: json.dumps(asdict(settings)), "PATH": path,
                    "PYTHONPATH": os.pathsep.join([changes["PYTHONPATH"], *_autoloads(version)])}
        if world_size is not None:
            changes |= variables(rank, world_size)
        code = _run([program, *command[1:]], {**os.environ, **changes}, streams, Path(directory))
        try:
            return _result(Path(directory), settings, command, code, snapshot)
        except NoGpuUsed as error:
            if of_command in (None, interpreter):
                raise
            raise NoGpuUsed(f"{error}; {of_command} has no PyTorch: run "
                            f"{pip_install('torch', interpreter=of_command)} (a CUDA build), or give a Python that has "
                            "it") from None


def _autoloads(torch: str) -> list[str]:
    """Directories that make `import torch` start the watcher, under a release of PyTorch."""
    by_site = [] if release(torch) >= ENTRY_POINTS_SINCE else [f"{AUTOLOAD}_2_4"]
    return [*by_site, str(AUTOLOAD)]


def _interpreter_of(program: str, path: str) -> str | None:
    """The Python that a program is or that its first line names. A shell script's is the first on the path."""
    with open(program, "rb") as stream:
        first = stream.readline(1000)
    words = [program, *(first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []), "python"]
    return shutil.which(next(word for word in words if os.path.basename(word).startswith("python")), path=path)


def _run(command: Sequence[str], variables: dict[str, str], streams: Streams, directory: Path) -> int:
    sys.stdout.flush()
    try:
        job = subprocess.Popen(command, env=variables, stdout=streams.output, stderr=streams.errors)
    except OSError as error:
        raise InputError(f"{quoted(command[0])} cannot be started: {error.strerror}") from None
    try:
        while streams.progress is not None:
            streams.progress(read(directory))
            with contextlib.suppress(subprocess.TimeoutExpired):
                return job.wait(LOOK_SECONDS)
        return job.wait()
    finally:
        job.terminate()  # only has an effect if we were interrupted
        job.wait()


def _result(directory: Path, settings: Settings, command: Sequence[str], code: int, snapshot: str | None) -> DryRun:
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in directory.glob("*.json")]
    refused = next((report["refused"] for report in reports if report["refused"]), None)
    if refused:
        raise InputError(refused)
    if not reports:
        raise NoGpuUsed(f"the command ended with exit code {code} before it used a GPU: nothing to report")
    report = max(reports, key=lambda report: (bool(report["out_of_memory"]), report["peaks"]["requested_bytes"]))
    found, obstacle = played(directory / f"{report['pid']}{SUFFIX}") if report["out_of_memory"] else (None, "")
    history = directory / f"{report['pid']}.pickle"
    if snapshot is not None and history.exists():
        shutil.move(history, snapshot)
    return DryRun(
        schema_version=SCHEMA_VERSION, peakcast_version=VERSION, measured_on=MeasuredOn.EMULATED,
        gpu=report["device"], capacity_bytes=report["capacity_bytes"], software=report["software"],
        settings=report["settings"],
        rank=report["rank"], world_size=report["world_size"],
        **{f"peak_{name}": size for name, size in report["peaks"].items()},
        peak=_where(report["peak"]) if report["peak"] else None, **_split(report),
        out_of_memory=tuple(FailedAllocation(**item | {"where": _where(item["where"])})
                            for item in report["out_of_memory"]),
        with_expandable_segments=found, not_played=obstacle,
        memory_stats=report["memory_stats"], optimizer_steps=report["optimizer_steps"], stopped=report["stopped"],
        exit_code=code, exception=report["exception"], processes=len(reports), command=tuple(command))


def _split(report: dict) -> dict[str, Any]:
    """The factors and modules of the allocated peak, from those of the requested one."""
    if not report["factors"]:
        return {"factors": {}, "modules": {}}
    beyond = report["peaks"]["allocated_bytes"] - report["peak"]["requested_bytes"]
    factors = {factor.value: report["factors"].get(factor.value, 0) for factor in Factor}
    modules = {name: dict(split) for name, split in report["modules"].items()}
    modules.setdefault(MODEL, {})[Factor.ALLOCATOR.value] = beyond
    return {"factors": factors | {Factor.ALLOCATOR.value: beyond, UNATTRIBUTED: report["factors"].get(UNATTRIBUTED, 0)},
            "modules": modules}


def _where(point: dict) -> CodePoint:
    frames = tuple(Line(*frame) for frame in point["frames"])
    return CodePoint(**point | {"frames": frames, "line": Line(*point["line"]) if point["line"] else None})
