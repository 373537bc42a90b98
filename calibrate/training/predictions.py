"""What is predicted of a training: at its start, and of each batch that comes and is larger than those before."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from calibrate.records.record import Peak, Predicted
from calibrate.training import background_prediction
from calibrate.training.batch_keys import Extent, extent
from calibrate.training.messages import Said
from calibrate.training.reading import Reading
from predictor.common.errors import InputError
from predictor.events.events import Moment
from predictor.workload.workload import Workload

SHOWN = ("line", "full", "nothing")
MOST_ASKED = 3
"""Of several largest batches, so many are predicted for the record."""


class Foreseen(NamedTuple):
    """What is kept of a prediction once its training ran.

    Attributes:
        workload: of the batch that needs most of those that ran; the keys that were read, where they make none.
        predicted: its prediction; None: there is none.
        not_predicted: why.
    """

    workload: Workload | Mapping[str, Any]
    predicted: Predicted | None
    not_predicted: str | None


class Foresight:
    """One training on one rank.

    Args:
        show: ``line``, ``full`` or ``nothing`` of the first prediction.
        speaks: whether this rank says it, of the worst one; dangers of its own batches each rank says.
    """

    def __init__(self, said: Said, show: str, speaks: bool) -> None:
        self._said, self._show, self._speaks = said, show, speaks
        self._reading: Reading | None = None
        self._answers: dict[Workload, background_prediction.Answer | InputError] = {}
        self._covered: list[Extent] = []
        self._largest: dict[Extent, Workload | InputError] = {}
        self._ran: dict[Extent, None] = {}
        self._evaluated: tuple[Extent, ...] = ()
        self.answer: background_prediction.Answer | None = None
        self.workload: Workload | None = None

    @property
    def largest(self) -> tuple[str, ...]:
        """Of the batches that ran, those that no other was as large as in everything."""
        return tuple(map(str, self._largest))

    @property
    def smaller(self) -> tuple[str, ...]:
        """The other shapes that ran."""
        return tuple(str(size) for size in self._ran if size not in self._largest)

    @property
    def evaluations(self) -> tuple[str, ...]:
        """Of the batches that were evaluated, those that no other was as large as in everything."""
        return tuple(map(str, self._evaluated))

    @property
    def expects_evaluation(self) -> bool:
        """Whether one is predicted."""
        return bool(self._reading and self._reading.keys.get("per_device_eval_batch_size"))

    def evaluates(self, batch: Mapping[str, Any]) -> None:
        """The model is about to run on a batch of an evaluation."""
        size = extent(batch)
        if size is not None and not any(map(size.within, self._evaluated)):
            self._evaluated = (*(known for known in self._evaluated if not known.within(size)), size)

    def seen(self, **keys: Any) -> None:
        """What the loop shows of itself, before its first batch or after: what is known is predicted again."""
        if self._reading is None or keys.items() <= self._reading.keys.items():
            return
        self._reading = self._reading.seen(keys)
        self._largest = {size: one.replace(**keys) if isinstance(one, Workload) else one
                         for size, one in self._largest.items()}
        self._covered = []

    def autocasts(self, mixed_precision: str) -> None:
        """What autocast was on around the first forward; the user may have said another."""
        if self._reading is None or self._reading.complete or "deepspeed" in self._reading.keys:
            return
        said = self._reading.keys.get("mixed_precision")
        if said is None and mixed_precision != "none":
            self.seen(mixed_precision=mixed_precision)
        elif said not in (None, mixed_precision):
            self._said.warn("autocast", f"mixed_precision {said} was given, but around the first forward it is "
                                        f"{mixed_precision}: what is predicted is another training")

    def start(self, read: Callable[[], Reading], first: Callable[[], Mapping[str, Any] | None]) -> None:
        """Predict, if something tells what batches will be: the workload that was given, or a first one."""
        try:
            self._reading = read()
            batch = None if self._reading.complete else first()
            if self._reading.complete or batch:
                self._foresee(self._reading.workload(batch, None), extent(batch) if batch else None)
        except InputError as error:
            self._said.not_predicted(error)

    def coming(self, batch: Mapping[str, Any]) -> None:
        """The model is about to run on a batch."""
        size = extent(batch)
        if size is None or self._reading is None:
            return
        self._ran[size] = None
        foreseen, seen = (any(map(size.within, known)) for known in (self._covered, self._largest))
        if foreseen and seen:
            return
        try:
            workload = self._reading.workload(batch, size)
        except InputError as error:
            workload = error
            self._covered.append(size)
            self._said.not_predicted(error)
        if not seen:
            kept = {known: one for known, one in self._largest.items() if not known.within(size)}
            self._largest = kept | {size: workload}
        if isinstance(workload, Workload) and not foreseen:
            self._foresee(workload, size)

    def recorded(self, may_ask: bool) -> Foreseen:
        """What was foreseen of the batch that needs most of those that ran.

        Args:
            may_ask: whether there is time to predict one that was not.
        """
        ran = [one for one in self._largest.values() if isinstance(one, Workload)][:MOST_ASKED]
        if not ran and self._reading is not None and self._reading.complete:
            ran = [self._reading.workload(None, None)]
        why, predicted = next(iter(self._said.reasons), "no batch was seen"), {}
        for workload in ran:
            try:
                if may_ask or workload in self._answers:
                    own, said = self._as_ran(workload, self._ask(workload).predicted)
                    predicted[own] = said
            except InputError as error:
                why = str(error)
        if not predicted:
            keys = self._reading.keys if self._reading else {}
            return Foreseen(self._as_ran(ran[0], None)[0] if ran else keys, None, why)
        worst = max(predicted, key=lambda workload: predicted[workload].peak_requested.bytes)
        return Foreseen(worst, predicted[worst], None)

    def _as_ran(self, workload: Workload, said: Predicted | None) -> tuple[Workload, Predicted | None]:
        """Without the evaluation, if none has run yet."""
        if self._evaluated or not workload.evaluates:
            return workload, said
        rows = [row for row in said.moments if row.moment is not Moment.EVALUATION] if said else []
        top = max(rows, key=lambda row: row.requested_bytes, default=None)
        return workload.replace(per_device_eval_batch_size=None), top and Predicted(
            Peak(top.requested_bytes, top.moment, top.step), tuple(rows))

    def _foresee(self, workload: Workload, size: Extent | None) -> None:
        """Predict what comes, and say what is to be said; ``size`` None: the workload's own."""
        first = not self._covered
        self._covered.append(size or Extent(workload.per_device_train_batch_size, workload.sequence_length or 0,
                                            sys.maxsize))
        try:
            found = self._ask(workload, worst=first and self._speaks)
        except InputError as error:
            return self._said.not_predicted(error)
        self.answer, self.workload = found, workload
        safe = found.verdict in (None, "fits")
        if first and self._speaks and self._show == "full":
            self._said.say("\n" + found.text)
        if first and self._speaks and self._show == "line" and safe:
            self._said.say(found.line)
        if first and self._speaks and self._show != "nothing":
            told = ", ".join(f"{name} {value}" for name, value in self._reading.assumed.items())
            if told:
                self._said.say(f"assumed of the loop: {told}; if that is not so, say so: watch(…, KEY=VALUE). The "
                               "model's output is assumed to be gone before backward, as after loss = model(…).loss")
            for note in self._reading.notes:
                self._said.say(f"not in the prediction: {note}")
        if not safe and (self._speaks or not first):
            kind, what = ("start", "") if first else ("batch", f"the batch of {size} that comes now: ")
            self._said.warn(kind, f"{what}{found.line} Less memory: {'; '.join(found.advice)}.")

    def _ask(self, workload: Workload, *, worst: bool = False) -> background_prediction.Answer:
        if workload not in self._answers:
            try:
                question = background_prediction.Question(workload.resolved(), worst)
                self._answers[workload] = background_prediction.ask(question)
            except InputError as error:
                self._answers[workload] = error
        found = self._answers[workload]
        if isinstance(found, InputError):
            raise found
        return found
