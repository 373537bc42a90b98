"""peakcast in Hugging Face's Trainer.

    from calibrate import PeakcastCallback
    trainer = Trainer(..., callbacks=[PeakcastCallback(record="run.json")])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from calibrate.training import loop_keys, reading
from calibrate.training.batch_keys import first_batch
from calibrate.training.messages import on_stderr
from calibrate.training.watcher import STEPS, Watcher
from predictor.workload.workload import Workload


class PeakcastCallback(TrainerCallback):
    """Predicts the peak at the start, warns before memory runs out, and records what was measured.

    What the workload is, it reads off the Trainer: arguments, DeepSpeed config as resolved, model, optimizer, and the
    first samples of the dataset. What cannot be predicted is one line that says why; the training is never stopped.

    Args:
        workload: instead of what the Trainer says, such as where ``sequence_length`` of the longest batch is known.
        record: path of the record, which ``peakcast report`` and ``peakcast calibrate --records`` read. With several
            ranks each writes its own: ``{rank}`` in the name, or ``-rank7`` before its suffix.
        steps: of the optimizer, after which the record is written; None: at the end of the training. It is written
            again, of everything until then, once the first predicted evaluation is over, and where memory runs out.
        show: of the prediction at the start: ``line``, ``full`` (as ``peakcast predict``), ``nothing``.
        snapshot: also keep PyTorch's memory history, and write it there with the record, for pytorch.org/memory_viz
            and ``peakcast replay``.
        tell: gets each line.

    Attributes (read-only): ``prediction`` (:class:`calibrate.training.background_prediction.Answer`) and ``record``
    (:class:`calibrate.records.record.Record`), None until there is one.

    Raises:
        InputError: ``show`` is none of these.
    """

    def __init__(self, workload: Workload | None = None, *, record: str | None = None, steps: int | None = STEPS,
                 show: str = "line", snapshot: str | None = None, tell: Callable[[str], None] = on_stderr) -> None:
        self._workload = workload
        self._watcher = Watcher(loop="transformers.Trainer", record=record, steps=steps, show=show, snapshot=snapshot,
                                tell=tell)

    @property
    def prediction(self):
        """The last prediction."""
        return self._watcher.prediction

    @property
    def record(self):
        """What was measured."""
        return self._watcher.record

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count from here on: what DeepSpeed resets while it starts is not lost."""
        self._watcher.count(_gpu(args))

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, optimizer: Any = None,
                       train_dataloader: Any = None, processing_class: Any = None, **_: Any) -> None:
        """Everything is on the device, and no batch was fetched."""
        device = _gpu(args)
        self._watcher.count(device)
        samples = state.train_batch_size or args.per_device_train_batch_size

        def read() -> reading.Reading:
            if self._workload is not None:
                return reading.given(self._workload, device)
            return reading.of_trainer(args, model, optimizer, processing_class, samples, device,
                                      self._watcher.directory())

        rank, ranks = loop_keys.ranks()
        self._watcher.begin(read, model, optimizer, rank, ranks, args.gradient_accumulation_steps,
                            lambda: first_batch(train_dataloader, samples))
        if args.eval_on_start:
            self._watcher.evaluation()

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A micro-batch that no optimizer step follows."""
        self._watcher.micro_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """An optimizer step; the Trainer's own callback, which goes first, has said whether an evaluation follows."""
        self._watcher.step(control.should_evaluate)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Where an evaluation of each epoch comes."""
        if control.should_evaluate:
            self._watcher.evaluation()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """An evaluation has ended."""
        self._watcher.micro_step()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The last one."""
        self._watcher.end()


def _gpu(args: Any) -> int | None:
    return (args.device.index or 0) if args.device.type == "cuda" else None
