"""The common part of the callback and the context manager: predicts, checks each step, warns, and records."""

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
from calibrate.training import background_prediction, course_watch, loop_keys, model_keys, training_record
from calibrate.training.batch_keys import arguments_by_name
from calibrate.training.course_watch import CourseWatch
from calibrate.training.history import History
from calibrate.training.memory_warning import DeviceMemory, advice, low_memory
from calibrate.training.messages import RankMessages
from calibrate.training.phase_peaks import Boundaries, RunningPeaks, zero_optimizer
from calibrate.training.predictions import SHOW_CHOICES, TrainingPredictions
from calibrate.training.reading import Reading
from predictor.common.errors import InputError
from predictor.common.suggestions import file_name as named_path
from predictor.events.events import Moment
from predictor.report.units import size_text

STEPS = 3


class Watcher:
    """Watches one training on one rank, from :meth:`count` to :meth:`close`. None of its methods raises.

    Args:
        loop: name of the loop in the record.
        record, snapshot: paths of the record and of PyTorch's memory history, or None.
        steps: optimizer steps after which both are written; None: at the end. The record is written again after the
            first later evaluation, and when memory runs out later.
        show: ``line``, ``full`` or ``nothing`` of the prediction. Warnings are always printed.
        tell: called with each line.

    Raises:
        InputError: ``show`` is none of these.
    """

    def __init__(self, *, loop: str, record: str | None, steps: int | None, show: str, snapshot: str | None,
                 tell: Callable[[str], None]) -> None:
        if show not in SHOW_CHOICES:
            raise InputError(f"show must be one of {', '.join(SHOW_CHOICES)}, not {show!r}")
        self._loop, self._steps, self._show, self._tell = loop, steps, show, tell
        self._path, self._snapshot = record, snapshot
        self._clock, self._messages = training_record.Clock(), RankMessages(tell, 0)
        self._counters: Counters | None = None
        self._boundaries: Boundaries | None = None
        self._predictions = TrainingPredictions(self._messages, show, speaks=False)
        self._history: History | None = None
        self._directory: tempfile.TemporaryDirectory | None = None
        self._simulated: course_watch.SimulatedCourse | None = None
        self._course: CourseWatch | None = None
        self._done = 0
        self.record: Record | None = None

    @property
    def prediction(self) -> background_prediction.Answer | None:
        """The latest prediction; None before the first."""
        return self._predictions.answer

    def follow(self, path: str) -> Watcher:
        """Compares each step with a simulated course, and warns before its error. Call it before the training begins.

        Args:
            path: the JSON of ``peakcast predict … --samples FILE --epochs E --json``.

        Raises:
            InputError: the file cannot be read, or has no course.
        """
        self._simulated = course_watch.read(path)
        return self

    def resume(self, done: int) -> None:
        """The training goes on from a checkpoint after so many optimizer steps. Call it before the training begins."""
        self._done = done

    # --- the course of a training -------------------------------------------------------------------

    def count(self, device: int | None) -> None:
        """Start counting; call it as early as possible. ``device`` None: there is no GPU."""
        with self._harmless():
            if device is not None and self._counters is None:
                self._device, self._counters = device, Counters(device)
                self._history = History() if self._snapshot else None

    def begin(self, read: Callable[[], Reading], model: Any, optimizer: Any, rank: int, ranks: int,
              accumulation: int | None, first: Callable[[], Mapping[str, Any] | None] = lambda: None) -> None:
        """Model and optimizer are on the device, and the loop is about to start.

        Args:
            read: returns the workload without a batch.
            model: the model whose calls are watched; None: batches are not watched.
            accumulation: micro-batches per optimizer step; None: read from the first step.
            first: returns the first batch, or None if it is not known.
        """
        self._stop()
        self._accumulation, self._step, self._micro = accumulation or 1, 1, 0
        self._accumulation_given, self._forwards = accumulation is not None, 0
        self._output: weakref.ref | None = None
        self._has_gradients = False
        self._used, self._written, self._covers_evaluation = 0, False, False
        self._files: dict[str, str] = {}  # of this rank
        self._failure: OutOfMemory | None = None
        self._messages = RankMessages(self._tell, rank)
        speaks = rank == 0 or SETTING in os.environ  # a dry run has one rank of many
        self._predictions, self._model = TrainingPredictions(self._messages, self._show, speaks), model
        with self._harmless():
            self._files = {path: training_record.rank_path(path, rank, ranks)
                           for path in (self._path, self._snapshot) if path}
            if speaks and self._path and self._files.get(self._path, self._path) != self._path:
                self._messages.say(f"the record of this rank goes to {named_path(self._files[self._path])}")
        with self._harmless():
            self._course = None
            if self._simulated is not None:
                self._course = CourseWatch(self._simulated, self._messages, rank, self._done)
                self._course.begin()
        with self._harmless():
            self._predictions.start(read, first)
        with self._harmless():
            if self._counters is not None:
                self._open(self._counters, model, zero_optimizer(optimizer))

    def _open(self, counters: Counters, model: Any, zero: Any) -> None:
        import torch

        self._peaks = RunningPeaks(counters)
        self._ooms_before = self._peaks.look().get("num_ooms", 0)
        if self._ooms_before and self._files:
            self._messages.say("no record: memory ran out earlier in this process, so the peaks cannot be separated")
        # with ZeRO, DeepSpeed reduces the remaining gradients after autograd's backward, so the backward moment lasts
        # until ZeRO's step
        self._boundaries = Boundaries(
            backward=self._hook(self._before_backward),
            after_backward=self._hook(self._after_backward if zero is None else lambda: None),
            step=self._hook(lambda: self._enter(Moment.OPTIMIZER_STEP)), called=self._hook(self._before_forward),
            returned=self._hook(self._after_forward))
        self._boundaries.open(model, zero)
        attach = torch._C._cuda_attach_out_of_memory_observer  # type: ignore[attr-defined]  # torch's stub lacks it
        attach(self._observer(self._boundaries))
        self._enter(Moment.FORWARD)

    def micro_step(self) -> None:
        """The next micro-batch is about to start."""
        self._hook(lambda: self._enter(Moment.FORWARD))()

    def step(self, evaluation_follows: bool = False) -> None:
        """An optimizer step is complete."""
        self._hook(self._after_step)(evaluation_follows)

    def evaluation(self) -> None:
        """An evaluation begins."""
        self._hook(lambda: self._enter(Moment.EVALUATION))()

    def end(self) -> None:
        """The loop has ended."""
        self._hook(lambda: self._write() if self._incomplete else None)()
        self.close()

    def failed(self, message: str) -> None:
        """The loop ended with PyTorch's out-of-memory error."""
        self._hook(lambda: self._out_of_memory(message, None))()
        self.close()

    def broken_off(self, error: BaseException) -> None:
        """The loop ended with another exception."""
        if self._path in self._files and self.record is None:
            self._hook(lambda: self._messages.say(f"no record: the loop ended with {type(error).__name__} before the "
                                                  "record was written"))()
        self.close()

    def close(self) -> None:
        """Remove all hooks from PyTorch."""
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
        """Directory for the model's configuration: beside the record, which refers to it, or a temporary one."""
        if self._path in self._files:
            return Path(self._path.replace("{rank}", "")).resolve().with_suffix(".model")
        self._directory = self._directory or tempfile.TemporaryDirectory(prefix="peakcast-")
        return Path(self._directory.name) / "model"

    # --- following the loop --------------------------------------------------------------------------------------

    def _enter(self, moment: Moment) -> None:
        self._peaks.enter(moment, self._step - (moment is Moment.EVALUATION))  # an evaluation counts to the last step

    def _before_forward(self, model: Any, arguments: tuple, keywords: dict) -> None:
        """The model is about to run."""
        moment = Moment.FORWARD if model.training else Moment.EVALUATION
        batch = arguments_by_name(model, arguments, keywords)
        if self._peaks.at[1] is not moment:
            self._enter(moment)
        if not model.training:
            self._predictions.before_evaluation(batch)
            return
        if self._incomplete and self._enough_steps:
            self._write()
        self._forwards += 1
        if self._step == self._forwards == 1:
            self._at_first(model, keywords)
        # in the first forward of the second step gradients exist only if the loop has kept those of the first step
        second = self._step == 2 and self._micro == 0
        self._has_gradients = second and any(parameter.grad is not None for parameter in model.parameters())
        self._predictions.before_batch(batch)

    def _after_forward(self, model: Any, output: Any) -> None:
        """The model's forward has returned. A plain script still has its last output, until it binds the new one."""
        if model.training and self._live_output() and self._predictions.keys.get("keep_outputs") == "backward":
            self._predictions.set_keys(keep_outputs="next_forward")
        self._output = weakref.ref(output) if model.training and isinstance(output, dict) else None

    def _before_backward(self) -> None:
        """Look whether the loop still holds the model's output, or gradients of the last step."""
        self._check_output(self._live_output())
        if self._has_gradients and self._model is not None:
            self._check_gradients(self._model)
        self._enter(Moment.BACKWARD)

    def _live_output(self) -> Any:
        return self._output and self._output()

    def _check_output(self, output: Any) -> None:
        """Predict the loop that keeps this output, or warn if it is not predicted. ``output`` None: it keeps none."""
        held = sum(value.nbytes for value in output.values() if getattr(value, "ndim", 0)) if output else 0
        if not held or self._predictions.keys.get("keep_outputs", "none") != "none":
            return
        size = size_text(held)
        if self._predictions.predicts("keep_outputs"):
            self._messages.say(f"the model's output stays alive during backward ({size}): predicted again with "
                               "keep_outputs; loss = model(…).loss keeps only the loss")
            return self._predictions.set_keys(keep_outputs="backward")
        self._messages.warn("output", f"the model's output stays alive during backward: {size} that are not predicted: "
                                      "keep only the loss, as loss = model(…).loss does")

    def _check_gradients(self, model: Any) -> None:
        """Predict the loop that has set the last step's gradients to None after forward."""
        self._has_gradients = False
        if self._predictions.predicts("zero_grad") and all(p.grad is None for p in model.parameters()):
            self._messages.say("gradients of the last step stay alive during forward: predicted again with zero_grad "
                               "before_backward; zero_grad() right after step() frees them")
            self._predictions.set_keys(zero_grad="before_backward")

    @property
    def _enough_steps(self) -> bool:
        """Whether the number of steps for a record is complete."""
        return self._steps is not None and self._step > self._steps

    @property
    def _incomplete(self) -> bool:
        """Whether nothing is written yet, or the written record lacks the predicted evaluation."""
        evaluated = self._predictions.expects_evaluation and bool(self._predictions.evaluations)
        return not self._written or (evaluated and not self._covers_evaluation)

    def _at_first(self, model: Any, keywords: Mapping[str, Any]) -> None:
        """Check what only the first forward of a plain loop shows."""
        if self._loop != "watch":
            return
        if model_keys.keeps_keys_and_values(model, keywords):
            self._messages.warn("cache", "config.use_cache is true: the key-value cache in training is not predicted: "
                                         "set model.config.use_cache = False")
        self._predictions.check_autocast(loop_keys.autocast())

    def _check_accumulation(self) -> None:
        """Compare the number of micro-batches in the first step with the assumed or given one."""
        ran = min(filter(None, (self._forwards, self._micro)), default=0)
        if self._loop != "watch" or self._step > 1 or ran in (0, self._accumulation):
            return
        if self._accumulation_given:
            return self._messages.warn("accumulation", f"{ran} micro-batches ran before the first step(), but "
                                                       f"gradient_accumulation_steps {self._accumulation} was given: "
                                                       "the prediction is for another training")
        self._accumulation = ran
        self._messages.say(f"{ran} micro-batches ran before the first step(): predicted again with "
                           f"gradient_accumulation_steps {ran}")
        self._predictions.set_keys(gradient_accumulation_steps=ran)

    def _after_backward(self) -> None:
        self._micro += 1
        self._enter(Moment.FORWARD if self._micro < self._accumulation else Moment.OPTIMIZER_STEP)

    def _after_step(self, evaluation_follows: bool) -> None:
        self._check_accumulation()
        memory = self._device_memory()
        # the first step starts without optimizer states; peaks of an earlier failed attempt say nothing about this one
        warning = low_memory(memory) if self._step > 1 and not self._ooms_before else None
        if warning:
            self._messages.warn("step", f"near the end of the GPU's memory in step {self._step}: {warning}. "
                                        f"{advice(memory, self._predictions.workload)}")
        if self._course is not None:
            self._course.after_step(self._step, memory.reserved_now)
        self._step, self._micro = self._step + 1, 0
        wait = evaluation_follows and self._predictions.expects_evaluation  # its peaks belong to the record, too
        if self._enough_steps and self._incomplete and not wait:
            self._write()
        self._enter(Moment.EVALUATION if evaluation_follows else Moment.FORWARD)

    def _device_memory(self) -> DeviceMemory:
        import torch

        assert self._counters is not None  # hooks run only while it counts
        stats, (free, total) = self._counters.statistics(), torch.cuda.mem_get_info(self._device)
        self._used = max(self._used, total - free)
        return DeviceMemory(total=int(total * loop_keys.memory_share(self._device)),
                            others=max(0, total - free - stats["reserved_bytes.all.current"]),
                            allocated=stats["allocated_bytes.all.peak"], reserved=stats["reserved_bytes.all.peak"],
                            reserved_now=stats["reserved_bytes.all.current"],
                            retries=stats["num_alloc_retries"])

    # --- recording --------------------------------------------------------------------------------------

    def _observer(self, boundaries: Boundaries) -> Callable[[int, int, int, int], None]:
        """The observer for running out of memory. PyTorch cannot remove it, so it checks that its training still runs.
        """
        def observe(_device: int, tried: int, _total: int, _free: int) -> None:
            if self._boundaries is boundaries:
                self._hook(lambda: self._out_of_memory("PyTorch found no memory on the device", tried))()

        return observe

    def _out_of_memory(self, message: str, tried: int | None) -> None:
        if self._failure is None:
            step, moment = self._peaks.at
            self._failure = OutOfMemory(message, moment, step, tried)
            self._write(refused=True)

    def _write(self, refused: bool = False) -> None:
        """Write the record so far. After memory ran out, the training may go on and the record be written again."""
        if not refused:
            self._written, self._covers_evaluation = True, bool(self._predictions.evaluations)
        if self._ooms_before:
            return
        self._device_memory()
        stats = self._peaks.look()
        self.record = training_record.record(
            self._predictions.for_record(may_predict=not refused), moments=self._peaks.rows(), memory_stats=stats,
            used_bytes=self._used, out_of_memory=self._failure, clock=self._clock,
            in_training=InTraining(self._loop, self._step - 1, self._predictions.largest,
                                   tuple(self._messages.warnings.values()), self._predictions.smaller,
                                   self._predictions.evaluations))
        if self._path in self._files:
            training_record.write(self._files[self._path], self.record)
        if self._history and self._snapshot in self._files:
            self._history.save(self._files[self._snapshot])
            self._history = None

    # --- protecting the training ---------------------------------------------------------------------------

    def _hook(self, function: Callable[..., None]) -> Callable[..., None]:
        """A version of the function for the training to call: it does nothing outside :meth:`begin` and the end, and
        never raises."""
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
            self._messages.say(str(error))
        except Exception as error:  # whatever it is, the training goes on
            self._messages.say(f"stopped watching: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            self._stop()
