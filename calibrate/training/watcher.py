"""What the callback and the context manager have in common: predict, look after each step, warn, record."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calibrate.peaks import Counters
from calibrate.record import InTraining, OutOfMemory, Record
from calibrate.training import ahead, written
from calibrate.training.batch_keys import Extent, extent, named
from calibrate.training.danger import Seen, danger
from calibrate.training.moments import Boundaries, RunningPeaks, zero_optimizer
from calibrate.training.reading import Reading
from predictor.errors import InputError
from predictor.events import Moment
from predictor.workload import Workload

STEPS = 3
SHOWN = ("line", "full", "nothing")
MOST_ASKED = 3
"""Of several largest batches, so many are predicted for the record."""


def on_stderr(line: str) -> None:
    """Where lines go."""
    print(f"peakcast: {line}", file=sys.stderr, flush=True)


class Watcher:
    """One training on one rank, from :meth:`count` to :meth:`close`. No method raises.

    Args:
        loop: for the record.
        record: its path, or None.
        steps: the record is written after so many optimizer steps; None: at the end.
        show: ``line``, ``full`` or ``nothing`` of the prediction; warnings are said in any case.
        tell: gets each line.
    """

    def __init__(self, *, loop: str, record: str | None = None, steps: int | None = STEPS, show: str = "line",
                 tell: Callable[[str], None] = on_stderr) -> None:
        if show not in SHOWN:
            raise InputError(f"show must be one of {', '.join(SHOWN)}, not {show!r}")
        self._loop, self._path, self._steps, self._show, self._tell = loop, record, steps, show, tell
        self.prediction: ahead.Answer | None = None
        self.record: Record | None = None
        self._clock = written.Clock()
        self._counters: Counters | None = None
        self._boundaries: Boundaries | None = None
        self._warnings: dict[str, str] = {}
        self._directory: tempfile.TemporaryDirectory | None = None

    # --- the course of a training -------------------------------------------------------------------

    def count(self, device: int | None) -> None:
        """Begin to count: the sooner the better. None: there is no GPU."""
        with self._harmless():
            if device is not None and self._counters is None:
                self._device, self._counters = device, Counters(device)

    def begin(self, read: Callable[[], Reading], model: Any, optimizer: Any, rank: int, ranks: int,
              accumulation: int, batch: Callable[[], Mapping[str, Any] | None] = lambda: None) -> None:
        """The loop is about to start; everything that it needs is on the device.

        Args:
            read: gives the workload but for the batch.
            model: whose calls are looked at; None: its batches are not.
            batch: gives a first one, if that can be known.
        """
        self._stop()
        self._rank, self._accumulation = rank, accumulation
        self._step, self._micro, self._used = 1, 0, 0
        self._reading: Reading | None = None
        self._not_read: str | None = None
        self._answers: dict[Workload, ahead.Answer | InputError] = {}
        self._covered: list[Extent] = []
        self._batches: dict[Extent, Workload | InputError] = {}
        self._refusal: OutOfMemory | None = None
        self._done = False
        self._file: str | None = None
        with self._harmless():
            self._read(read, batch)
        with self._harmless():
            if self._path is not None:
                self._file = written.path_of(self._path, rank, ranks)
        with self._harmless():
            if self._counters is None:
                return
            import torch

            self._peaks, zero = RunningPeaks(self._counters), zero_optimizer(optimizer)
            self._had_ooms = self._counters.statistics().get("num_ooms", 0)
            after = (lambda: None) if zero is not None else self._after_backward
            self._boundaries = Boundaries(backward=self._inside(self._enter, Moment.BACKWARD),
                                          after_backward=self._inside(after),
                                          step=self._inside(self._enter, Moment.OPTIMIZER_STEP),
                                          called=self._inside(self._called))
            self._boundaries.open(model, zero)
            torch._C._cuda_attach_out_of_memory_observer(self._refused_by(self._boundaries))
            self._enter(Moment.FORWARD)

    def micro_step(self) -> None:
        """The next micro-batch of the same step comes."""
        with self._harmless():
            if self._boundaries:
                self._enter(Moment.FORWARD)

    def step(self) -> None:
        """An optimizer step is complete."""
        with self._harmless():
            if self._boundaries is None:
                return
            self._look()
            if self._step == self._steps:
                self._write()
            self._step, self._micro = self._step + 1, 0
            self._enter(Moment.FORWARD)

    def end(self) -> None:
        """The loop has ended."""
        with self._harmless():
            if self._boundaries is not None:
                self._step -= 1  # the last one is complete
                self._write()
        self.close()

    def failed(self, message: str) -> None:
        """The loop ended with PyTorch's out-of-memory error."""
        with self._harmless():
            if self._boundaries is not None and self._refusal is None:
                step, moment = self._peaks.at
                self._refusal = OutOfMemory(message, moment, step, None)
                self._write()
        self.close()

    def close(self) -> None:
        """Leave PyTorch as it was."""
        self._stop()
        if self._counters is not None:
            self._counters.release()
            self._counters = None
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def _stop(self) -> None:
        boundaries, self._boundaries = self._boundaries, None
        if boundaries is not None:
            boundaries.close()

    # --- predicting -----------------------------------------------------------------------------------

    def directory(self) -> Path:
        """Where the model's configuration goes: beside the record, which names it."""
        if self._path is not None:
            return Path(self._path.replace("{rank}", "")).with_suffix(".model")
        self._directory = self._directory or tempfile.TemporaryDirectory(prefix="peakcast-")
        return Path(self._directory.name) / "model"

    def _read(self, read: Callable[[], Reading], batch: Callable[[], Mapping[str, Any] | None]) -> None:
        try:
            self._reading = read()
            first = None if self._reading.complete else batch()
            if self._reading.complete or first is not None:
                self._foresee(self._reading.workload(first, None), extent(first) if first else None, "start")
        except InputError as error:
            self._not_read = str(error)
            self._say(f"not predicted: {error}")

    def _foresee(self, workload: Workload, size: Extent | None, when: str) -> None:
        """Predict what comes, and say what is to be said: all on the first rank at the start, dangers on each."""
        if size is None:
            size = Extent(workload.per_device_train_batch_size, workload.sequence_length or 0, sys.maxsize)
        self._covered.append(size)
        try:
            found = self._answer(workload, worst=when == "start" and self._rank == 0)
        except InputError as error:
            if not self._answers or when == "start":
                self._say(f"not predicted: {error}")
            return
        first = self.prediction is None
        self.prediction = found
        if first and self._rank == 0 and self._show != "nothing":
            self._say(found.line if self._show == "line" else "\n" + found.text)
        if found.verdict in (None, "fits") or (when == "start" and self._rank):
            return
        what = "" if when == "start" else f"the batch of {size} that comes now: "
        self._warn(when, f"{what}{found.line} {'; '.join(found.advice)}.")

    def _answer(self, workload: Workload, *, worst: bool = False) -> ahead.Answer:
        if workload not in self._answers:
            try:
                self._answers[workload] = ahead.ask(ahead.Question(workload.resolved(), worst))
            except InputError as error:
                self._answers[workload] = error
        found = self._answers[workload]
        if isinstance(found, InputError):
            raise found
        return found

    # --- looking --------------------------------------------------------------------------------------

    def _enter(self, moment: Moment) -> None:
        if not self._done:
            self._peaks.enter(moment, self._step)

    def _after_backward(self) -> None:
        self._micro += 1
        self._enter(Moment.FORWARD if self._micro < self._accumulation else Moment.OPTIMIZER_STEP)

    def _called(self, model: Any, arguments: tuple, keywords: dict) -> None:
        """The model is about to run: on what?"""
        wanted = Moment.FORWARD if model.training else Moment.EVALUATION
        if not self._done and self._peaks.at[1] is not wanted:
            self._enter(wanted)
        batch = named(model, arguments, keywords) if model.training else {}
        size = extent(batch)
        if size is None or self._reading is None or size in self._batches:
            return
        new = not any(size.within(seen) for seen in self._batches)
        if not new:
            if not self._done:
                self._batches[size] = InputError("another was larger")
            return
        try:
            workload = self._reading.workload(batch, size)
        except InputError as error:
            workload = error
            if not self._covered:
                self._say(f"not predicted: {error}")
                self._covered.append(size)
        if not self._done:
            self._batches[size] = workload
        if isinstance(workload, Workload) and not any(size.within(known) for known in self._covered):
            self._foresee(workload, size, "batch" if self._covered else "start")

    def _look(self) -> None:
        """What a finished step says; the first has no optimizer states before it."""
        import torch

        stats = self._counters.statistics()
        free, total = torch.cuda.mem_get_info(self._device)
        self._used = max(self._used, total - free)
        if self._step < 2:
            return
        share = torch.cuda.get_per_process_memory_fraction(self._device)
        found = danger(Seen(
            total=int(total * share), others=max(0, total - free - stats["reserved_bytes.all.current"]),
            allocated=stats["allocated_bytes.all.peak"], reserved=stats["reserved_bytes.all.peak"],
            retries=stats["num_alloc_retries"]))
        if found:
            self._warn("step", f"near the end of the GPU's memory in step {self._step}: {found}.{self._advice()}")

    def _advice(self) -> str:
        workload = next((one for one in reversed(self._answers) if isinstance(self._answers[one], ahead.Answer)), None)
        if workload is None:
            return " Less memory: a smaller batch with more accumulation steps, gradient_checkpointing."
        changes = [] if workload.gradient_checkpointing else ["gradient_checkpointing"]
        if workload.per_device_train_batch_size > 1:
            changes.append("half the batch with twice the gradient_accumulation_steps")
        return f" Less memory: {', or '.join(changes)}." if changes else ""

    def _refused_by(self, boundaries: Boundaries) -> Callable[[int, int, int, int], None]:
        """PyTorch has no way to take an observer away: this one knows when it is over."""
        def refused(_device: int, tried: int, _total: int, _free: int) -> None:
            with self._harmless():
                if self._boundaries is boundaries and self._refusal is None:
                    step, moment = self._peaks.at
                    self._refusal = OutOfMemory("PyTorch found no memory on the device", moment, step, tried)
                    self._write()

        return refused

    # --- recording --------------------------------------------------------------------------------------

    def _write(self) -> None:
        """The record so far, once; after a refusal without waiting for a prediction."""
        if self._done:
            return
        if self._had_ooms:
            self._done = True
            return self._say("no record: memory ran out before this start, and its peaks cannot be told apart")
        stats = self._peaks.look()
        workload, predicted, why = self._recorded(may_ask=self._refusal is None)
        self._done = self._refusal is None
        self.record = written.record(
            workload=workload, predicted=predicted, not_predicted=why, moments=self._peaks.rows(), memory_stats=stats,
            used_bytes=self._used, out_of_memory=self._refusal, clock=self._clock,
            in_training=InTraining(self._loop, min(self._step, self._steps or self._step),
                                   tuple(map(str, self._batches)), tuple(self._warnings.values())))
        if self._file is not None:
            written.write(self._file, self.record)

    def _recorded(self, may_ask: bool) -> tuple[Workload | Mapping[str, Any], Any, str | None]:
        """The workload of the batch that needs most of those that ran, its prediction, or why there is none."""
        largest = [one for size, one in self._batches.items()
                   if not any(size.within(other) for other in self._batches if other != size)]
        ran = [one for one in largest if isinstance(one, Workload)][:MOST_ASKED]
        if self._reading is not None and self._reading.complete and not ran:
            ran = [self._reading.workload(None, None)]
        if not ran:
            why = self._not_read or next((str(one) for one in largest), "no batch was seen")
            return dict(self._reading.keys) if self._reading else {}, None, why
        asked: dict[Workload, Any] = {}
        for workload in ran:
            try:
                if may_ask or workload in self._answers:
                    asked[workload] = self._answer(workload).predicted
            except InputError as error:
                why = str(error)
        if not asked:
            return ran[0], None, why if may_ask else "memory ran out before"
        best = max(asked, key=lambda workload: asked[workload].peak_requested.bytes)
        return best, asked[best], None

    # --- never in the way ---------------------------------------------------------------------------------

    def _say(self, line: str) -> None:
        self._tell(line if not getattr(self, "_rank", 0) else f"rank {self._rank}: {line}")

    def _warn(self, kind: str, line: str) -> None:
        """Each kind once."""
        if kind not in self._warnings:
            self._warnings[kind] = line
            self._say(f"warning: {line}")

    def _inside(self, function: Callable[..., None], *first: Any) -> Callable[..., None]:
        """The function as a hook: nothing after the end, and no exception."""
        def hook(*arguments: Any) -> None:
            if self._boundaries is not None:
                with self._harmless():
                    function(*first, *arguments)

        return hook

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        try:
            yield
        except InputError as error:
            self._say(str(error))
        except Exception as error:  # whatever it is, the training goes on
            self._say(f"stopped watching: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            self._stop()
