"""Watches one process of a dry run: its peaks, their location in the code, and every failed allocation.

PyTorch's memory history is kept from one optimizer step to the next. If a step made a new peak, the blocks alive at it
are divided into factors (:mod:`calibrate.dryrun.hooks.blocks`). Then the history is dropped, so that it stays small in
a long run; only the blocks that are still alive are remembered. The script's own recording is kept apart
(:mod:`calibrate.dryrun.hooks.recording`). The report file is rewritten as a whole whenever it changes.
"""

from __future__ import annotations

import atexit
import bisect
import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch

from calibrate.dryrun.hooks import allocations, blocks, code_location, torch_compile
from calibrate.dryrun.hooks.full_history import FullHistory
from calibrate.dryrun.hooks.owners import Owners
from calibrate.dryrun.hooks.progress import Progress
from calibrate.dryrun.hooks.recording import DEVICE, Recording
from calibrate.dryrun.hooks.tags import Tags
from calibrate.dryrun.progress import Phase
from calibrate.job import device, outermost_backward
from calibrate.job.peaks import COUNTERS, Counters
from predictor.events.events import Moment


class Mark(NamedTuple):
    """The begin of ``moment`` of optimizer step ``step``.

    ``line`` is the user's line that began it. ``after_backward`` says whether a backward has run since the last step.
    """

    time_us: int
    moment: str
    step: int
    line: code_location.Frame | None
    after_backward: bool = False


@dataclass
class Where:
    """One point of the run.

    Attributes:
        moment: ``init`` (before the first model runs and outside any forward), ``forward``, ``backward``,
            ``optimizer_step`` or ``other``.
        step: optimizer step, from 1; 0 in ``init``.
        requested_bytes: requested bytes alive at this point.
        frames: Python stack, innermost frame first.
        line: the innermost frame in the user's code.
        module: path of the module that ran; in backward, the one whose forward made the backward function.
        operator: ATen's name of the operator that ran; empty where none did.
    """

    moment: str
    step: int
    requested_bytes: int
    frames: list[code_location.Frame]
    line: code_location.Frame | None
    module: str = ""
    operator: str = ""


@dataclass
class Report:
    """The JSON report of one process; sizes in bytes. ``peaks`` has the names of :data:`calibrate.job.peaks.COUNTERS`.

    ``factors`` and ``modules`` divide the requested bytes at ``peak``; empty with a whole history, which has its own
    metadata text.
    """

    pid: int
    argv: list[str]
    rank: int = 0
    world_size: int = 1
    device: str = ""
    capacity_bytes: int = 0
    software: dict[str, str | None] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    peak: Where | None = None
    factors: dict[str, int] = field(default_factory=dict)
    modules: dict[str, dict[str, int]] = field(default_factory=dict)
    out_of_memory: list[dict[str, Any]] = field(default_factory=list)
    memory_stats: dict[str, int] = field(default_factory=dict)
    optimizer_steps: int = 0
    stopped: bool = False
    exception: str | None = None
    refused: str | None = None
    finished: bool = False


def start(directory: str, optimizer_steps: int | None, *, history: bool, progress: Progress) -> None:
    """Begin when the process first uses its GPU. With ``history``, the whole memory history is kept and written, too.
    """
    watcher = Watcher(directory, optimizer_steps, history, progress)
    torch.cuda._lazy_call(watcher.begin)
    torch_compile.refuse(watcher.refuse)


class Watcher:
    """Watches this process; there is one per process."""

    def __init__(self, directory: str, optimizer_steps: int | None, history: bool, progress: Progress) -> None:
        self._progress = progress
        self._path = os.path.join(directory, f"{os.getpid()}.json")
        self._recording = Recording(self._look_back, keep_all=history)
        history_path = os.path.join(directory, f"{os.getpid()}.pickle")
        self._full_history = FullHistory(history_path, self._recording) if history else None
        self._lock = threading.RLock()  # another thread of the script may read the history
        self._limit = optimizer_steps
        self._pid = os.getpid()
        self._report = Report(os.getpid(), list(getattr(sys, "orig_argv", sys.argv)),
                              rank=_variable("RANK", 0), world_size=_variable("WORLD_SIZE", 1))
        self._marks = [Mark(0, "init", 0, None)]
        self._live = 0
        self._backward_since_step = False
        self._blocks, self._owners, self._allocations = blocks.Blocks(), Owners(), allocations.Allocations()
        self._allocations_path = os.path.join(directory, f"{os.getpid()}{allocations.SUFFIX}")
        self._tags = Tags(self._model_runs, self._owners.completes)

    # called by PyTorch ------------------------------------------------------------------------

    def begin(self) -> None:
        """CUDA has just been initialised in this process."""
        self._counters = Counters(DEVICE)
        properties = torch.cuda.get_device_properties(DEVICE)
        self._report.device, self._report.capacity_bytes = properties.name, properties.total_memory
        self._report.software, self._report.settings = device.software(), device.settings()
        attach = torch._C._cuda_attach_out_of_memory_observer  # type: ignore[attr-defined]  # torch's stub lacks it
        attach(self._out_of_memory)
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        outermost_backward.follow(self._begin_backward, lambda: self._mark("other"), self._tags.nested)
        self._wrap_excepthook()
        if self._full_history is None:
            self._tags.begin()
        (self._full_history or self._recording).begin()
        atexit.register(self._finish)
        self._show(Phase.PREPARING)

    def refuse(self, why: str) -> None:
        """Report why the script cannot be followed; it ends here."""
        self._report.refused = why
        self._write()

    def _wrap_excepthook(self) -> None:
        original = sys.excepthook

        def hook(exception_type, value, traceback):
            text = " ".join(str(value).split())
            self._report.exception = f"{exception_type.__name__}: {text}" if text else exception_type.__name__
            shown = code_location.without_ours(traceback)
            original(exception_type, value.with_traceback(shown), shown)

        sys.excepthook = hook

    def _begin_backward(self) -> None:
        if self._limit is not None and self._report.optimizer_steps >= self._limit:
            self._report.stopped = True
            raise SystemExit(0)
        self._backward_since_step = True
        self._mark("backward")
        self._show(Phase.STEPPING)

    def _model_runs(self, model: torch.nn.Module, prefix: str) -> None:
        self._owners.model_runs(model, prefix)
        if self._marks[-1].moment == "init":
            self._mark("other")
            self._show(Phase.PREPARING)

    def _show(self, phase: Phase) -> None:
        if self._progress.is_due(phase):
            step = self._report.optimizer_steps + 1 if phase is Phase.STEPPING else 0
            self._progress.write(phase, step, self._counters.statistics().get(COUNTERS["allocated_bytes"], 0))

    def _before_step(self, optimizer: Any, *_) -> None:
        self._owners.optimizer_steps(optimizer)
        self._mark("optimizer_step", self._report.optimizer_steps + self._backward_since_step)

    def _after_step(self, *_) -> None:
        if self._backward_since_step:  # DeepSpeed calls its optimizer once per parameter group
            self._backward_since_step = False
            self._report.optimizer_steps += 1
            self._look_back()
        self._mark("other")

    def _out_of_memory(self, _device: int, tried: int, _total: int, free: int) -> None:
        live, allocated, reserved = (torch.cuda.memory_stats(DEVICE)[f"{name}_bytes.all.current"]
                                     for name in ("requested", "allocated", "reserved"))
        where = self._where(self._marks[-1], code_location.main_thread_stack(), live)
        self._report.out_of_memory.append({
            "tried_to_allocate_bytes": tried, "allocated_bytes": allocated, "reserved_bytes": reserved,
            "free_bytes": free, "where": asdict(where)})
        self._write()

    # keeping and reading the history ----------------------------------------------------------

    def _mark(self, moment: str, step: int | None = None) -> None:
        step = self._report.optimizer_steps + 1 if step is None else step
        if self._full_history:
            self._full_history.enter(moment, step, self._backward_since_step)
        self._marks.append(Mark(time.time_ns() // 1000, moment, step, code_location.calling_line(),
                                self._backward_since_step))

    def _look_back(self) -> None:
        """If there is a new peak since the last call, find its location. Then drop the history so far."""
        with self._lock:
            stats = self._counters.statistics()
            self._report.memory_stats = stats
            self._report.peaks = {name: stats.get(counter, 0) for name, counter in COUNTERS.items()}
            best = self._report.peak.requested_bytes if self._report.peak else -1
            trace = self._recording.take()
            self._allocations.follow(trace, self._recording.state)
            top = self._blocks.follow(trace, self._live, best, self._when)
            if top is not None:
                self._explain(trace[top.position], top)
            self._owners.forget()
            self._tags.forget()
            self._live = torch.cuda.memory_stats(DEVICE).get("requested_bytes.all.current", 0)
            del self._marks[:-1]
            self._write()

    def _explain(self, entry: dict, top: blocks.Top) -> None:
        """Report the new peak."""
        frames = code_location.recorded(entry["frames"])
        self._report.peak = where = self._where(self._mark_of(entry), frames, top.bytes)
        if self._full_history is None:
            peak = blocks.explain(top, self._owners.now(), self._owners.completed)
            self._report.factors, self._report.modules = peak.factors, peak.modules
            where.module, where.operator = peak.tag.module, peak.tag.operator

    def _when(self, entry: dict) -> blocks.When:
        """Step and moment of an entry, with the moments of recorded jobs (:mod:`.full_history`)."""
        at = self._mark_of(entry)
        if at.moment != "other":
            return at.step, Moment(at.moment)
        return at.step, Moment.OPTIMIZER_STEP if at.after_backward else Moment.FORWARD

    def _mark_of(self, entry: dict) -> Mark:
        after = bisect.bisect_right(self._marks, entry["time_us"], key=lambda mark: mark.time_us)
        return self._marks[max(after - 1, 0)]

    @staticmethod
    def _where(mark: Mark, frames: list[code_location.Frame], live: int) -> Where:
        _, moment, step, line, _ = mark
        if moment in ("init", "other") and any(name == "forward" for _, _, name in frames):
            moment, step = "forward", max(step, 1)
        # autograd's own threads have no Python frames of the user: take the line that called backward
        return Where(moment, step, live, code_location.useful(frames), code_location.users_line(frames) or line)

    # the report -------------------------------------------------------------------------------

    def _finish(self) -> None:
        if os.getpid() != self._pid:  # a fork that inherited the exit handler
            return
        self._look_back()
        if self._report.out_of_memory:
            self._allocations.write(self._allocations_path, DEVICE, self._report.capacity_bytes)
        if self._full_history:
            self._full_history.save()
        self._report.finished = True
        self._write()

    def _write(self) -> None:
        part = self._path + ".part"
        with open(part, "w", encoding="utf-8") as stream:
            json.dump(asdict(self._report), stream)
        os.replace(part, self._path)


def _variable(name: str, default: int) -> int:
    """A number that a launcher put into the environment."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
