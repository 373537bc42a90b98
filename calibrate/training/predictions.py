"""Predictions during a training: at its start, and for each batch that is larger than all before it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from calibrate.records.record import Peak, Predicted
from calibrate.training import background_prediction
from calibrate.training.batch_keys import Extent, extent
from calibrate.training.messages import RankMessages
from calibrate.training.reading import Reading
from predictor.common.errors import InputError
from predictor.events.events import Moment
from predictor.workload import compared
from predictor.workload.workload import Workload

SHOW_CHOICES = ("line", "full", "nothing")
MOST_PREDICTED = 3
"""At most this many of the largest batches are predicted for the record."""


class RecordedPrediction(NamedTuple):
    """The prediction that goes into a training's record.

    Attributes:
        workload: the workload of the batch with the highest peak among those that ran; the keys that were read, if they
            make no workload.
        predicted: its prediction, or None.
        not_predicted: why there is no prediction, or None.
    """

    workload: Workload | Mapping[str, Any]
    predicted: Predicted | None
    not_predicted: str | None


class TrainingPredictions:
    """Predictions for one training on one rank.

    Args:
        show: ``line``, ``full`` or ``nothing`` of the first prediction.
        speaks: whether this rank prints the prediction, which is for the worst rank. Every rank warns of its own
            batches.
    """

    def __init__(self, messages: RankMessages, show: str, speaks: bool) -> None:
        self._messages, self._show, self._speaks = messages, show, speaks
        self._reading: Reading | None = None
        self._answers: dict[Workload, background_prediction.Answer | InputError] = {}
        self._predicted_sizes: list[Extent] = []
        self._largest: dict[Extent, Workload | InputError] = {}
        self._ran: dict[Extent, None] = {}
        self._evaluated: tuple[Extent, ...] = ()
        self.answer: background_prediction.Answer | None = None
        self.workload: Workload | None = None

    @property
    def largest(self) -> tuple[str, ...]:
        """Shapes of training batches that are not within another one."""
        return tuple(map(str, self._largest))

    @property
    def smaller(self) -> tuple[str, ...]:
        """The other shapes that ran."""
        return tuple(str(size) for size in self._ran if size not in self._largest)

    @property
    def evaluations(self) -> tuple[str, ...]:
        """Shapes of evaluation batches that are not within another one."""
        return tuple(map(str, self._evaluated))

    @property
    def expects_evaluation(self) -> bool:
        """Whether the prediction includes an evaluation."""
        return bool(self._reading and self._reading.keys.get("per_device_eval_batch_size"))

    def before_evaluation(self, batch: Mapping[str, Any]) -> None:
        """Note the batch of an evaluation; the model is about to run on it."""
        size = extent(batch)
        if size is not None and not any(map(size.within, self._evaluated)):
            self._evaluated = (*(known for known in self._evaluated if not known.within(size)), size)

    @property
    def keys(self) -> Mapping[str, Any]:
        """The keys that were read so far."""
        return self._reading.keys if self._reading else {}

    def predicts(self, feature: str) -> bool:
        """Whether a feature of ``predictor.workload.compared`` is predicted with the keys that were read."""
        return self._reading is not None and compared.goes_with(feature, {
            "engine": "deepspeed" if "deepspeed" in self.keys else "torch", **self.keys})

    def set_keys(self, **keys: Any) -> None:
        """Set keys that the loop has shown. If they are new, known batches are predicted again."""
        if self._reading is None or keys.items() <= self._reading.keys.items():
            return
        self._reading = self._reading.with_keys(keys)
        self._largest = {size: workload.replace(**keys) if isinstance(workload, Workload) else workload
                         for size, workload in self._largest.items()}
        self._predicted_sizes = []

    def check_autocast(self, mixed_precision: str) -> None:
        """Compare the autocast state around the first forward with the user's ``mixed_precision``."""
        if self._reading is None or self._reading.complete or "deepspeed" in self._reading.keys:
            return
        user_precision = self._reading.keys.get("mixed_precision")
        if user_precision is None and mixed_precision != "none":
            self.set_keys(mixed_precision=mixed_precision)
        elif user_precision not in (None, mixed_precision):
            self._messages.warn("autocast", f"mixed_precision {user_precision} was given, but around the first forward "
                                            f"it is {mixed_precision}: the prediction is for another training")

    def start(self, read: Callable[[], Reading], first: Callable[[], Mapping[str, Any] | None]) -> None:
        """Predict the user's workload, or the first batch if it is known before the loop."""
        try:
            self._reading = read()
            batch = None if self._reading.complete else first()
            if self._reading.complete or batch:
                self._predict(self._reading.workload(batch, None), extent(batch) if batch else None)
        except InputError as error:
            self._messages.not_predicted(error)

    def before_batch(self, batch: Mapping[str, Any]) -> None:
        """Predict a training batch if it is larger than those before; the model is about to run on it."""
        size = extent(batch)
        if size is None or self._reading is None:
            return
        self._ran[size] = None
        is_predicted, is_known = (any(map(size.within, known)) for known in (self._predicted_sizes, self._largest))
        if is_predicted and is_known:
            return
        workload: Workload | InputError
        try:
            workload = self._reading.workload(batch, size)
        except InputError as error:
            workload = error
            self._predicted_sizes.append(size)
            self._messages.not_predicted(error)
        if not is_known:
            others = {known: value for known, value in self._largest.items() if not known.within(size)}
            self._largest = others | {size: workload}
        if isinstance(workload, Workload) and not is_predicted:
            self._predict(workload, size)

    def for_record(self, may_predict: bool) -> RecordedPrediction:
        """The prediction for the batch with the highest predicted peak among those that ran.

        Args:
            may_predict: whether there is time to predict a workload that was not predicted yet.
        """
        workloads = [workload for workload in self._largest.values() if isinstance(workload, Workload)][:MOST_PREDICTED]
        if not workloads and self._reading is not None and self._reading.complete:
            workloads = [self._reading.workload(None, None)]
        why = next(iter(self._messages.reasons), "no batch was seen")
        predicted: dict[Workload, Predicted] = {}
        for workload in workloads:
            try:
                if may_predict or workload in self._answers:
                    prediction = self._ask(workload).predicted
                    predicted[self._workload_as_ran(workload)] = self._prediction_as_ran(workload, prediction)
            except InputError as error:
                why = str(error)
        if not predicted:
            keys = self._reading.keys if self._reading else {}
            return RecordedPrediction(self._workload_as_ran(workloads[0]) if workloads else keys, None, why)
        worst = max(predicted, key=lambda workload: predicted[workload].peak_requested.bytes)
        return RecordedPrediction(worst, predicted[worst], None)

    def _workload_as_ran(self, workload: Workload) -> Workload:
        """The workload without the evaluation, if none has run yet."""
        if self._evaluated or not workload.evaluates:
            return workload
        return workload.replace(per_device_eval_batch_size=None)

    def _prediction_as_ran(self, workload: Workload, predicted: Predicted) -> Predicted:
        """Workload and prediction without the evaluation, if none has run yet."""
        if self._evaluated or not workload.evaluates:
            return predicted
        rows = [row for row in predicted.moments if row.moment is not Moment.EVALUATION]
        top = max(rows, key=lambda row: row.requested_bytes)
        return Predicted(Peak(top.requested_bytes, top.moment, top.step), tuple(rows))

    def _predict(self, workload: Workload, size: Extent | None) -> None:
        """Predict a workload and print what the user must know. ``size`` None: the workload's own size."""
        assert self._reading is not None  # callers have read the workload from it
        first = not self._predicted_sizes
        self._predicted_sizes.append(size or Extent(workload.per_device_train_batch_size, workload.sequence_length or 0,
                                            sys.maxsize))
        try:
            answer = self._ask(workload, worst=first and self._speaks)
        except InputError as error:
            return self._messages.not_predicted(error)
        self.answer, self.workload = answer, workload
        safe = answer.verdict in (None, "fits")
        if first and self._speaks and self._show == "full":
            self._messages.say("\n" + answer.text)
        if first and self._speaks and self._show == "line" and safe:
            self._messages.say(answer.line)
        if first and self._speaks and self._show != "nothing":
            assumptions = ", ".join(f"{name} {value}" for name, value in self._reading.assumed.items())
            if assumptions:
                freed = "" if workload.keep_outputs != "none" else (
                    ". The model's output is assumed to be freed before backward, as after loss = model(…).loss, "
                    "until the loop shows that it is not")
                self._messages.say(f"assumed about the loop: {assumptions}; if that is wrong, pass watch(…, KEY=VALUE)"
                                   f"{freed}")
            for note in self._reading.notes:
                self._messages.say(f"not in the prediction: {note}")
        if not safe and (self._speaks or not first):
            topic, prefix = ("start", "") if first else ("batch", f"the next batch, {size}: ")
            self._messages.warn(topic, f"{prefix}{answer.line} Less memory: {' '.join(answer.advice)}")

    def _ask(self, workload: Workload, *, worst: bool = False) -> background_prediction.Answer:
        if workload not in self._answers:
            try:
                question = background_prediction.Question(workload.resolved(), worst)
                self._answers[workload] = background_prediction.ask(question)
            except InputError as error:
                self._answers[workload] = error
        answer = self._answers[workload]
        if isinstance(answer, InputError):
            raise answer
        return answer
