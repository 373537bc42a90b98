"""What the callback and the context manager have in common: predict, look after each step, warn, record."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calibrate.dryrun.hooks import SETTING
from calibrate.job.peaks import Counters
from calibrate.records.record import InTraining, OutOfMemory, Record
from calibrate.training import background_prediction, loop_keys, model_keys, training_record
from calibrate.training.batch_keys import named
from calibrate.training.history import History
from calibrate.training.memory_warning import Seen, advice, danger
from calibrate.training.messages import Said
from calibrate.training.phase_peaks import Boundaries, RunningPeaks, zero_optimizer
from calibrate.training.predictions import SHOWN, Foresight
from calibrate.training.reading import Reading
from predictor.common.errors import InputError
from predictor.common.suggestions import named as named_path
from predictor.events.events import Moment
from predictor.report.units import size_text

STEPS = 3


class Watcher:
    """One training on one rank, from :meth:`count` to :meth:`close`. No method raises.

    Args:
        loop: for the record.
        record, snapshot: paths of the record and of PyTorch's memory history, or None.
        steps: both are written after so many optimizer steps; None: at the end. The record is written again after the
            first evaluation that comes later, and where memory runs out later.
        show: ``line``, ``full`` or ``nothing`` of the prediction; warnings are said in any case.
        tell: gets each line.

    Raises:
        InputError: ``show`` is none of these.
    """

    def __init__(self, *, loop: str, record: str | None, steps: int | None, show: str, snapshot: str | None,
                 tell: Callable[[str], None]) -> None:
        if show not in SHOWN:
            raise InputError(f"show must be one of {', '.join(SHOWN)}, not {show!r}")
        self._loop, self._steps, self._show, self._tell = loop, steps, show, tell
        self._path, self._snapshot = record, snapshot
        self._clock, self._said = training_record.Clock(), Said(tell, 0)
        self._counters: Counters | None = None
        self._boundaries: Boundaries | None = None
        self._foresight: Foresight | None = None
        self._history: History | None = None
        self._directory: tempfile.TemporaryDirectory | None = None
        self.record: Record | None = None

    @property
    def prediction(self) -> background_prediction.Answer | None:
        """The last one."""
        return self._foresight and self._foresight.answer

    # --- the course of a training -------------------------------------------------------------------

    def count(self, device: int | None) -> None:
        """Begin to count: the sooner the better. None: there is no GPU."""
        with self._harmless():
            if device is not None and self._counters is None:
                self._device, self._counters = device, Counters(device)
                self._history = History() if self._snapshot else None

    def begin(self, read: Callable[[], Reading], model: Any, optimizer: Any, rank: int, ranks: int,
              accumulation: int | None, first: Callable[[], Mapping[str, Any] | None] = lambda: None) -> None:
        """The loop is about to start; everything that it needs is on the device.

        Args:
            read: gives the workload but for the batch.
            model: whose calls are looked at; None: its batches are not.
            accumulation: micro-batches to an optimizer step; None: nobody said, the first step will show.
            first: gives a first batch, if that can be known.
        """
        self._stop()
        self._accumulation, self._step, self._micro = accumulation or 1, 1, 0
        self._told, self._forwards = accumulation is not None, 0
        self._output: weakref.ref | None = None
        self._used, self._done, self._covers_evaluation = 0, False, False
        self._files: dict[str, str] = {}  # of this rank
        self._refusal: OutOfMemory | None = None
        self._said = Said(self._tell, rank)
        speaks = rank == 0 or SETTING in os.environ  # a dry run has one rank of many
        self._foresight = Foresight(self._said, self._show, speaks)
        with self._harmless():
            self._files = {path: training_record.path_of(path, rank, ranks)
                           for path in (self._path, self._snapshot) if path}
            if speaks and self._files.get(self._path, self._path) != self._path:
                self._said.say(f"the record of this rank goes to {named_path(self._files[self._path])}")
        with self._harmless():
            self._foresight.start(read, first)
        with self._harmless():
            if self._counters is not None:
                self._open(model, zero_optimizer(optimizer))

    def _open(self, model: Any, zero: Any) -> None:
        import torch

        self._peaks = RunningPeaks(self._counters)
        self._ooms_before = self._peaks.look().get("num_ooms", 0)
        if self._ooms_before and self._files:
            self._said.say("no record: memory ran out before this start, so its peaks cannot be told apart")
        # DeepSpeed reduces what is left after autograd's backward: there ZeRO's step ends the moment
        self._boundaries = Boundaries(
            backward=self._hook(self._before_backward),
            after_backward=self._hook(self._after_backward if zero is None else lambda: None),
            step=self._hook(lambda: self._enter(Moment.OPTIMIZER_STEP)), called=self._hook(self._called),
            returned=self._hook(self._returned))
        self._boundaries.open(model, zero)
        torch._C._cuda_attach_out_of_memory_observer(self._observer(self._boundaries))
        self._enter(Moment.FORWARD)

    def micro_step(self) -> None:
        """The next micro-batch comes."""
        self._hook(lambda: self._enter(Moment.FORWARD))()

    def step(self, evaluation_follows: bool = False) -> None:
        """An optimizer step is complete."""
        self._hook(self._after_step)(evaluation_follows)

    def evaluation(self) -> None:
        """An evaluation begins."""
        self._hook(lambda: self._enter(Moment.EVALUATION))()

    def end(self) -> None:
        """The loop has ended."""
        self._hook(lambda: self._write() if self._lacks else None)()
        self.close()

    def failed(self, message: str) -> None:
        """The loop ended with PyTorch's out-of-memory error."""
        self._hook(lambda: self._refused(message, None))()
        self.close()

    def broken_off(self, error: BaseException) -> None:
        """The loop ended with another error."""
        if self._path in self._files and self.record is None:
            self._hook(lambda: self._said.say(f"no record: the loop ended with {type(error).__name__} before it was "
                                              "written"))()
        self.close()

    def close(self) -> None:
        """Leave PyTorch as it was."""
        self._stop()
        if self._history is not None:
            self._history.stop()
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

    def directory(self) -> Path:
        """Where the model's configuration goes: beside the record, which names it."""
        if self._path in self._files:
            return Path(self._path.replace("{rank}", "")).resolve().with_suffix(".model")
        self._directory = self._directory or tempfile.TemporaryDirectory(prefix="peakcast-")
        return Path(self._directory.name) / "model"

    # --- looking --------------------------------------------------------------------------------------

    def _enter(self, moment: Moment) -> None:
        self._peaks.enter(moment, self._step - (moment is Moment.EVALUATION))  # which is of the step before

    def _called(self, model: Any, arguments: tuple, keywords: dict) -> None:
        """The model is about to run."""
        wanted, batch = Moment.FORWARD if model.training else Moment.EVALUATION, named(model, arguments, keywords)
        if self._peaks.at[1] is not wanted:
            self._enter(wanted)
        if not model.training:
            return self._foresight.evaluates(batch)
        if self._lacks and self._enough:
            self._write()
        self._forwards += 1
        if self._step == self._forwards == 1:
            self._at_first(model, keywords)
        self._foresight.coming(batch)

    def _returned(self, model: Any, output: Any) -> None:
        """A forward is over."""
        self._output = weakref.ref(output) if model.training and isinstance(output, dict) else None

    def _before_backward(self) -> None:
        """The loop that is predicted has let the model's output go by now."""
        kept = self._output and self._output()
        if kept:
            size = sum(value.nbytes for value in kept.values() if getattr(value, "ndim", 0))
            self._said.warn("output", f"the model's output lives on through backward, {size_text(size)} that are not "
                                      "predicted: let it go before, as loss = model(…).loss does")
        self._enter(Moment.BACKWARD)

    @property
    def _enough(self) -> bool:
        """Whether as many steps are complete as a record is of."""
        return self._steps is not None and self._step > self._steps

    @property
    def _lacks(self) -> bool:
        """Whether nothing is written yet, or something without the predicted evaluation that has come since."""
        evaluated = self._foresight.expects_evaluation and bool(self._foresight.evaluations)
        return not self._done or (evaluated and not self._covers_evaluation)

    def _at_first(self, model: Any, keywords: Mapping[str, Any]) -> None:
        """What only the first forward shows of a loop that is not the Trainer's."""
        if self._loop != "watch":
            return
        if model_keys.keeps_keys_and_values(model, keywords):
            self._said.warn("cache", "config.use_cache is true: keys and values are kept in training, which is not "
                                     "predicted: set model.config.use_cache = False")
        self._foresight.autocasts(loop_keys.autocast())

    def _count(self) -> None:
        """Compare the micro-batches of the first step with what was assumed or given."""
        ran = min(filter(None, (self._forwards, self._micro)), default=0)
        if self._loop != "watch" or self._step > 1 or ran in (0, self._accumulation):
            return
        if self._told:
            return self._said.warn("accumulation", f"{ran} micro-batches ran before the first step(), but "
                                                   f"gradient_accumulation_steps {self._accumulation} was given: what "
                                                   "is predicted is another training")
        self._accumulation = ran
        self._said.say(f"{ran} micro-batches ran before the first step(): predicted again with "
                       f"gradient_accumulation_steps {ran}")
        self._foresight.seen(gradient_accumulation_steps=ran)

    def _after_backward(self) -> None:
        self._micro += 1
        self._enter(Moment.FORWARD if self._micro < self._accumulation else Moment.OPTIMIZER_STEP)

    def _after_step(self, evaluation_follows: bool) -> None:
        self._count()
        seen = self._look()
        # the first step has no optimizer states before it; peaks of an attempt that failed are no danger of this one
        found = danger(seen) if self._step > 1 and not self._ooms_before else None
        if found:
            self._said.warn("step", f"near the end of the GPU's memory in step {self._step}: {found}. "
                                    f"{advice(seen, self._foresight.workload)}")
        self._step, self._micro = self._step + 1, 0
        if self._enough and self._lacks and not (evaluation_follows and self._foresight.expects_evaluation):
            self._write()
        self._enter(Moment.EVALUATION if evaluation_follows else Moment.FORWARD)

    def _look(self) -> Seen:
        import torch

        stats, (free, total) = self._counters.statistics(), torch.cuda.mem_get_info(self._device)
        self._used = max(self._used, total - free)
        return Seen(total=int(total * torch.cuda.get_per_process_memory_fraction(self._device)),
                    others=max(0, total - free - stats["reserved_bytes.all.current"]),
                    allocated=stats["allocated_bytes.all.peak"], reserved=stats["reserved_bytes.all.peak"],
                    retries=stats["num_alloc_retries"])

    # --- recording --------------------------------------------------------------------------------------

    def _observer(self, boundaries: Boundaries) -> Callable[[int, int, int, int], None]:
        """PyTorch has no way to take an observer away: this one knows when it is over."""
        def observe(_device: int, tried: int, _total: int, _free: int) -> None:
            if self._boundaries is boundaries:
                self._hook(lambda: self._refused("PyTorch found no memory on the device", tried))()

        return observe

    def _refused(self, message: str, tried: int | None) -> None:
        if self._refusal is None:
            step, moment = self._peaks.at
            self._refusal = OutOfMemory(message, moment, step, tried)
            self._write(refused=True)

    def _write(self, refused: bool = False) -> None:
        """The record so far; after a refusal, which may be the end, it need not be the last."""
        if not refused:
            self._done, self._covers_evaluation = True, bool(self._foresight.evaluations)
        if self._ooms_before:
            return
        self._look()
        stats = self._peaks.look()
        self.record = training_record.record(
            self._foresight.recorded(may_ask=not refused), moments=self._peaks.rows(), memory_stats=stats,
            used_bytes=self._used, out_of_memory=self._refusal, clock=self._clock,
            in_training=InTraining(self._loop, self._step - 1, self._foresight.largest,
                                   tuple(self._said.warnings.values()), self._foresight.smaller,
                                   self._foresight.evaluations))
        if self._path in self._files:
            training_record.write(self._files[self._path], self.record)
        if self._history and self._snapshot in self._files:
            self._history.save(self._files[self._snapshot])
            self._history = None

    # --- never in the way ---------------------------------------------------------------------------------

    def _hook(self, function: Callable[..., None]) -> Callable[..., None]:
        """The function where the training calls it: nothing outside :meth:`begin` and the end, and no exception."""
        def hook(*arguments: Any) -> None:
            if self._boundaries is not None:
                with self._harmless():
                    function(*arguments)

        return hook

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        try:
            yield
        except InputError as error:
            self._said.say(str(error))
        except Exception as error:  # whatever it is, the training goes on
            self._said.say(f"stopped watching: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            self._stop()
