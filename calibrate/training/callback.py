"""peakcast in Hugging Face's Trainer.

    from calibrate import PeakcastCallback
    trainer = Trainer(..., callbacks=[PeakcastCallback(record="run.json")])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from calibrate.records.record import Record
from calibrate.training import loop_keys, reading
from calibrate.training.background_prediction import Answer
from calibrate.training.batch_keys import first_batch
from calibrate.training.messages import on_stderr
from calibrate.training.watcher import STEPS, Watcher
from predictor.workload.workload import Workload


class PeakcastCallback(TrainerCallback):
    """Predicts the peak at the start, warns before memory runs out, and records the measured peaks.

    The callback reads the workload from the Trainer: arguments, resolved DeepSpeed config, model, optimizer, and the
    first samples of the dataset. If it cannot be predicted, one line says why. The training is never stopped.

    Args:
        workload: replaces what the Trainer says, for example where you know the longest ``sequence_length``.
        record: path of the record, which ``peakcast report`` and ``peakcast calibrate --records`` read. With several
            ranks each writes its own: ``{rank}`` in the name, or ``-rank7`` before its suffix.
        steps: optimizer steps after which the record is written; None: at the end of the training. The record is
            written again, with everything until then, after the first predicted evaluation, and when memory runs out.
        show: how to print the prediction at the start: ``line``, ``full`` (as ``peakcast predict``), ``nothing``.
        snapshot: path for PyTorch's memory history, written together with the record. pytorch.org/memory_viz and
            ``peakcast replay`` read it. None: no history.
        tell: called with each line of output.

    Attributes (read-only): ``prediction`` (:class:`calibrate.training.background_prediction.Answer`) and ``record``
    (:class:`calibrate.records.record.Record`). Both are None at first.

    Raises:
        InputError: ``show`` is none of these.
    """

    def __init__(self, workload: Workload | None = None, *, record: str | None = None, steps: int | None = STEPS,
                 show: str = "line", snapshot: str | None = None, tell: Callable[[str], None] = on_stderr) -> None:
        self._workload = workload
        self._watcher = Watcher(loop="transformers.Trainer", record=record, steps=steps, show=show, snapshot=snapshot,
                                tell=tell)

    def follow(self, path: str) -> PeakcastCallback:
        """Compares each step with a simulated course, and warns before its out-of-memory error.

            callbacks=[PeakcastCallback().follow("course.json")]

        Args:
            path: the JSON of ``peakcast predict … --samples FILE --epochs E --json``.

        Raises:
            InputError: the file cannot be read, or has no course.
        """
        self._watcher.follow(path)
        return self

    @property
    def prediction(self) -> Answer | None:
        """The latest prediction; None before the first."""
        return self._watcher.prediction

    @property
    def record(self) -> Record | None:
        """The record of the measured peaks; None before it is complete."""
        return self._watcher.record

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start counting now, so that DeepSpeed's resets of the counters during its start-up lose nothing."""
        self._watcher.count(_gpu(args))

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, optimizer: Any = None,
                       train_dataloader: Any = None, processing_class: Any = None, **_: Any) -> None:
        """Model and optimizer are on the device; no batch has been fetched yet."""
        device = _gpu(args)
        self._watcher.count(device)
        samples = state.train_batch_size or args.per_device_train_batch_size

        def read() -> reading.Reading:
            if self._workload is not None:
                return reading.from_workload(self._workload, device)
            return reading.from_trainer(args, model, optimizer, processing_class, samples, device,
                                        self._watcher.directory())

        rank, ranks = loop_keys.ranks()
        self._watcher.resume(state.global_step)
        self._watcher.begin(read, model, optimizer, rank, ranks, args.gradient_accumulation_steps,
                            lambda: first_batch(train_dataloader, samples))
        if args.eval_on_start:
            self._watcher.evaluation()

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A micro-batch ended that is not the last one of its optimizer step."""
        self._watcher.micro_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """An optimizer step ended. The Trainer's own callback runs first and decides whether an evaluation follows."""
        self._watcher.step(control.should_evaluate)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """An evaluation of each epoch begins here."""
        if control.should_evaluate:
            self._watcher.evaluation()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """An evaluation has ended."""
        self._watcher.micro_step()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The training has ended."""
        self._watcher.end()


def _gpu(args: Any) -> int | None:
    return (args.device.index or 0) if args.device.type == "cuda" else None
