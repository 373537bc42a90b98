"""The measured peak of requested bytes less the predicted one, split into buffers: it adds up, to the byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from calibrate.attribution.allocations import Side
from predictor.events.events import Factor, Moment

NOBODY = -1


class Why(str, Enum):
    """How a buffer adds to the measured peak, to the prediction at the same point, or to both."""

    MATCHED = "matched"
    OTHER_SIZE = "other_size"
    DEVICE_ONLY = "device_only"
    NEVER_CAME = "never_came"
    ALIVE_ONLY_MEASURED = "alive_only_measured"
    ALIVE_ONLY_PREDICTED = "alive_only_predicted"


@dataclass(frozen=True)
class Item:
    """A buffer at the measured peak that does not count the same on both sides; requested bytes.

    Attributes:
        operator: as predicted, or as recorded for what only the device made.
        factor: None for what only the device made.
        moment: when it was allocated, with ``step``.
    """

    why: Why
    operator: str
    module: str
    factor: Factor | None
    moment: Moment
    step: int
    measured_bytes: int
    predicted_bytes: int

    @property
    def difference_bytes(self) -> int:
        """Predicted less measured."""
        return self.predicted_bytes - self.measured_bytes


class OfReason(NamedTuple):
    """Buffers at the peak that have one reason, together."""

    buffers: int
    measured_bytes: int
    predicted_bytes: int


@dataclass(frozen=True)
class AtPeak:
    """``predicted_bytes - measured_bytes`` is the sum of the items' differences and ``elsewhere_bytes``.

    Attributes:
        step: of the measured peak, with ``moment``, ``module`` and ``operator``.
        measured_bytes: the measured peak.
        predicted_bytes: the predicted peak, wherever it is.
        predicted_there_bytes: what is predicted to be alive at the measured peak.
        matched: how many buffers are alive on both sides with the same size.
        matched_bytes: theirs.
        items: all other buffers that are alive on one of them, largest difference first.
    """

    step: int
    moment: Moment
    module: str
    operator: str
    measured_bytes: int
    predicted_bytes: int
    predicted_there_bytes: int
    matched: int
    matched_bytes: int
    items: tuple[Item, ...]

    @property
    def difference_bytes(self) -> int:
        """Predicted less measured peak."""
        return self.predicted_bytes - self.measured_bytes

    @property
    def elsewhere_bytes(self) -> int:
        """How much higher the predicted peak is elsewhere."""
        return self.predicted_bytes - self.predicted_there_bytes

    def by_reason(self) -> dict[Why, OfReason]:
        """What has each reason."""
        result = dict.fromkeys(Why, OfReason(0, 0, 0))
        result[Why.MATCHED] = OfReason(self.matched, self.matched_bytes, self.matched_bytes)
        for item in self.items:
            count, measured, predicted = result[item.why]
            result[item.why] = OfReason(count + 1, measured + item.measured_bytes, predicted + item.predicted_bytes)
        return result


def explain(recorded: Side, predicted: Side, partner: np.ndarray) -> AtPeak:
    """Compare what is alive at the measured peak with what is predicted to be alive there."""
    at = recorded.peak_at
    there = same_point(recorded, predicted, partner, at)
    alive = recorded.alive(at)
    foreseen = predicted.alive(there) if there != NOBODY else np.zeros(len(predicted), dtype=bool)
    last = int(recorded.change[at])
    step, moment = recorded.place(last)
    both = np.flatnonzero(alive & (partner != NOBODY))
    both = both[foreseen[partner[both]] & (recorded.bytes[both] == predicted.bytes[partner[both]])]
    items = sorted(_items(recorded, predicted, partner, alive, foreseen), key=lambda item: -abs(item.difference_bytes))
    return AtPeak(
        step, moment, recorded.module[last], recorded.operator[last], recorded.peak_bytes, predicted.peak_bytes,
        int(predicted.live[there]) if there != NOBODY else 0, len(both), int(recorded.bytes[both].sum()),
        tuple(items))


def same_point(recorded: Side, predicted: Side, partner: np.ndarray, at: int) -> int:
    """The predicted change that corresponds to a recorded one; -1 if nothing is predicted before it.

    It is that of the last matched allocation, or a later one as long as what follows are frees that
    the device did before that point, too.
    """
    before = np.flatnonzero((partner != NOBODY) & (recorded.born <= at))
    if not len(before):
        return NOBODY
    recorder = dict(zip(partner[partner != NOBODY].tolist(), np.flatnonzero(partner != NOBODY).tolist()))
    there = int(predicted.born[partner[before[-1]]])
    while there + 1 < len(predicted.change) and predicted.sign[there + 1] < 0:
        row = recorder.get(int(predicted.change[there + 1]), NOBODY)
        if row != NOBODY and recorded.died[row] > at:
            break
        there += 1
    return there


def _items(recorded: Side, predicted: Side, partner: np.ndarray, alive: np.ndarray,
           foreseen: np.ndarray) -> Iterator[Item]:
    seen = np.zeros(len(predicted), dtype=bool)
    seen[partner[partner != NOBODY]] = True
    for row in np.flatnonzero(partner == NOBODY).tolist():
        if alive[row]:
            yield _item(Why.DEVICE_ONLY, recorded, row, int(recorded.bytes[row]), 0)
    for row in np.flatnonzero(partner != NOBODY).tolist():
        column = int(partner[row])
        measured, said = int(recorded.bytes[row]), int(predicted.bytes[column])
        if alive[row] and foreseen[column]:
            if measured != said:
                yield _item(Why.OTHER_SIZE, predicted, column, measured, said)
        elif alive[row]:
            yield _item(Why.ALIVE_ONLY_MEASURED, predicted, column, measured, 0)
        elif foreseen[column]:
            yield _item(Why.ALIVE_ONLY_PREDICTED, predicted, column, 0, said)
    for column in np.flatnonzero(foreseen & ~seen).tolist():
        yield _item(Why.NEVER_CAME, predicted, column, 0, int(predicted.bytes[column]))


def _item(why: Why, side: Side, row: int, measured: int, said: int) -> Item:
    step, moment = side.place(row)
    return Item(why, side.operator[row], side.module[row], side.factor_of(row), moment, step, measured, said)
