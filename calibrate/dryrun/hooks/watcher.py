"""Watches one process of a dry run: its peaks, their location in the code, and every failed allocation.

PyTorch's memory history is kept from one optimizer step to the next. If a step made a new peak, the history is searched
for the allocation that made it. Then the history is dropped, so that it stays small in a long run. The script's own
recording is kept apart (:mod:`calibrate.dryrun.hooks.recording`). The report file is rewritten as a whole whenever it
changes.
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

from calibrate.dryrun.hooks import code_location, torch_compile
from calibrate.dryrun.hooks.full_history import FullHistory
from calibrate.dryrun.hooks.recording import DEVICE, Recording
from calibrate.job import device, outermost_backward
from calibrate.job.peaks import COUNTERS, Counters


class Mark(NamedTuple):
    """The begin of ``moment`` of optimizer step ``step``; ``line`` is the user's line that began it."""

    time_us: int
    moment: str
    step: int
    line: code_location.Frame | None


@dataclass
class Where:
    """One point of the run.

    Attributes:
        moment: ``init`` (before the first backward, outside any forward), ``forward``, ``backward``, ``optimizer_step``
            or ``other``.
        step: optimizer step, from 1; 0 in ``init``.
        requested_bytes: requested bytes alive at this point.
        frames: Python stack, innermost frame first.
        line: the innermost frame in the user's code.
    """

    moment: str
    step: int
    requested_bytes: int
    frames: list[code_location.Frame]
    line: code_location.Frame | None


@dataclass
class Report:
    """The JSON report of one process; sizes in bytes. ``peaks`` has the names of :data:`calibrate.job.peaks.COUNTERS`.
    """

    pid: int
    argv: list[str]
    device: str = ""
    capacity_bytes: int = 0
    software: dict[str, str | None] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    peak: Where | None = None
    out_of_memory: list[dict[str, Any]] = field(default_factory=list)
    memory_stats: dict[str, int] = field(default_factory=dict)
    optimizer_steps: int = 0
    stopped: bool = False
    exception: str | None = None
    refused: str | None = None
    finished: bool = False


def start(directory: str, optimizer_steps: int | None, *, history: bool = False) -> None:
    """Begin when the process first uses its GPU. With ``history``, the whole memory history is kept and written, too.
    """
    watcher = Watcher(directory, optimizer_steps, history)
    torch.cuda._lazy_call(watcher.begin)
    torch_compile.refuse(watcher.refuse)


class Watcher:
    """Watches this process; there is one per process."""

    def __init__(self, directory: str, optimizer_steps: int | None, history: bool = False) -> None:
        self._path = os.path.join(directory, f"{os.getpid()}.json")
        self._recording = Recording(self._look_back, keep_all=history)
        history_path = os.path.join(directory, f"{os.getpid()}.pickle")
        self._full_history = FullHistory(history_path, self._recording) if history else None
        self._lock = threading.RLock()  # another thread of the script may read the history
        self._limit = optimizer_steps
        self._pid = os.getpid()
        self._report = Report(os.getpid(), list(getattr(sys, "orig_argv", sys.argv)))
        self._marks = [Mark(0, "init", 0, None)]
        self._live = 0
        self._backward_since_step = False

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
        outermost_backward.follow(self._begin_backward, lambda: self._mark("other"))
        self._wrap_excepthook()
        (self._full_history or self._recording).begin()
        atexit.register(self._finish)

    def refuse(self, why: str) -> None:
        """Report why the script cannot be followed; it ends here."""
        self._report.refused = why
        self._write()

    def _wrap_excepthook(self) -> None:
        original = sys.excepthook

        def hook(exception_type, value, traceback):
            text = " ".join(str(value).split())
            self._report.exception = f"{exception_type.__name__}: {text}" if text else exception_type.__name__
            original(exception_type, value, traceback)

        sys.excepthook = hook

    def _begin_backward(self) -> None:
        if self._limit is not None and self._report.optimizer_steps >= self._limit:
            self._report.stopped = True
            raise SystemExit(0)
        self._backward_since_step = True
        self._mark("backward")

    def _before_step(self, *_) -> None:
        self._mark("optimizer_step", self._report.optimizer_steps + self._backward_since_step)

    def _after_step(self, *_) -> None:
        if self._backward_since_step:  # DeepSpeed calls its optimizer once per parameter group
            self._backward_since_step = False
            self._report.optimizer_steps += 1
            self._look_back()
        self._mark("other")

    def _out_of_memory(self, _device: int, tried: int, _total: int, _free: int) -> None:
        live = torch.cuda.memory_stats(DEVICE)["requested_bytes.all.current"]
        where = self._where(self._marks[-1], code_location.main_thread_stack(), live)
        self._report.out_of_memory.append({"tried_to_allocate_bytes": tried, "where": asdict(where)})
        self._write()

    # keeping and reading the history ----------------------------------------------------------

    def _mark(self, moment: str, step: int | None = None) -> None:
        step = self._report.optimizer_steps + 1 if step is None else step
        if self._full_history:
            self._full_history.enter(moment, step, self._backward_since_step)
        self._marks.append(Mark(time.time_ns() // 1000, moment, step, code_location.calling_line()))

    def _look_back(self) -> None:
        """If there is a new peak since the last call, find its location. Then drop the history so far."""
        with self._lock:
            stats = self._counters.statistics()
            self._report.memory_stats = stats
            self._report.peaks = {name: stats.get(counter, 0) for name, counter in COUNTERS.items()}
            best = self._report.peak.requested_bytes if self._report.peak else -1
            trace = self._recording.take(self._report.peaks["requested_bytes"] > best)
            index, live = highest(trace, self._live)
            if index is not None and live > best:
                entry = trace[index]
                self._report.peak = self._where(self._mark_of(entry), code_location.recorded(entry["frames"]), live)
            self._live = torch.cuda.memory_stats(DEVICE).get("requested_bytes.all.current", 0)
            del self._marks[:-1]
            self._write()

    def _mark_of(self, entry: dict) -> Mark:
        after = bisect.bisect_right(self._marks, entry["time_us"], key=lambda mark: mark.time_us)
        return self._marks[max(after - 1, 0)]

    @staticmethod
    def _where(mark: Mark, frames: list[code_location.Frame], live: int) -> Where:
        _, moment, step, line = mark
        if moment in ("init", "other") and any(name == "forward" for _, _, name in frames):
            moment, step = "forward", max(step, 1)
        # autograd's own threads have no Python frames of the user: take the line that called backward
        return Where(moment, step, live, code_location.useful(frames), code_location.users_line(frames) or line)

    # the report -------------------------------------------------------------------------------

    def _finish(self) -> None:
        if os.getpid() != self._pid:  # a fork that inherited the exit handler
            return
        self._look_back()
        if self._full_history:
            self._full_history.save()
        self._report.finished = True
        self._write()

    def _write(self) -> None:
        part = self._path + ".part"
        with open(part, "w", encoding="utf-8") as stream:
            json.dump(asdict(self._report), stream)
        os.replace(part, self._path)


def highest(trace: list[dict], live: int) -> tuple[int | None, int]:
    """Index of the allocation after which the most requested bytes are alive, and their number.

    ``live`` bytes are alive before the first entry.
    """
    at, top = None, -1
    for index, entry in enumerate(trace):
        if entry["action"] == "alloc":
            live += entry["size"]
            if live > top:
                at, top = index, live
        elif entry["action"] == "free_completed":
            live -= entry["size"]
    return at, top
