"""Splits the difference between measured and predicted peak of requested bytes into buffers, exact to the byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from calibrate.attribution.allocations import JobAllocations
from predictor.events.events import Factor, Moment

NO_PARTNER = -1


class Reason(str, Enum):
    """The way in which a buffer counts for the measured peak, the prediction at the same point, or both."""

    MATCHED = "matched"
    OTHER_SIZE = "other_size"
    DEVICE_ONLY = "device_only"
    NEVER_CAME = "never_came"
    ALIVE_ONLY_MEASURED = "alive_only_measured"
    ALIVE_ONLY_PREDICTED = "alive_only_predicted"


@dataclass(frozen=True)
class Item:
    """A buffer that counts differently for the measured peak and the prediction; requested bytes.

    Attributes:
        operator: the predicted name, or the recorded one for buffers that only the device made.
        factor: None for buffers that only the device made.
        moment: the moment, with ``step``, in which it was allocated.
    """

    why: Reason
    operator: str
    module: str
    factor: Factor | None
    moment: Moment
    step: int
    measured_bytes: int
    predicted_bytes: int

    @property
    def difference_bytes(self) -> int:
        """Predicted minus measured bytes."""
        return self.predicted_bytes - self.measured_bytes


class OfReason(NamedTuple):
    """Sums over the buffers at the peak that have the same reason."""

    buffers: int
    measured_bytes: int
    predicted_bytes: int


@dataclass(frozen=True)
class AtPeak:
    """The measured peak beside the predicted one.

    ``predicted_bytes - measured_bytes`` is the sum of the items' differences and ``elsewhere_bytes``.

    Attributes:
        step: step of the measured peak, with ``moment``, ``module`` and ``operator``.
        measured_bytes: the measured peak.
        predicted_bytes: the predicted peak, at whatever point.
        predicted_there_bytes: predicted bytes alive at the point of the measured peak.
        matched: number of buffers that are alive on both sides with the same size.
        matched_bytes: their bytes.
        items: all other buffers that are alive on one side or both, the largest difference first.
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
        """Predicted minus measured peak."""
        return self.predicted_bytes - self.measured_bytes

    @property
    def elsewhere_bytes(self) -> int:
        """How much higher the predicted peak is than the prediction at the point of the measured peak."""
        return self.predicted_bytes - self.predicted_there_bytes

    def by_reason(self) -> dict[Reason, OfReason]:
        """Number and bytes of the buffers with each reason."""
        result = dict.fromkeys(Reason, OfReason(0, 0, 0))
        result[Reason.MATCHED] = OfReason(self.matched, self.matched_bytes, self.matched_bytes)
        for item in self.items:
            count, measured, predicted = result[item.why]
            result[item.why] = OfReason(count + 1, measured + item.measured_bytes, predicted + item.predicted_bytes)
        return result


def explain(recorded: JobAllocations, predicted: JobAllocations, partner: np.ndarray) -> AtPeak:
    """Compares the buffers alive at the measured peak with those predicted to be alive there."""
    at = recorded.peak_at
    predicted_at = same_point(recorded, predicted, partner, at)
    alive = recorded.alive(at)
    nothing = np.zeros(len(predicted), dtype=bool)
    predicted_alive = predicted.alive(predicted_at) if predicted_at != NO_PARTNER else nothing
    last = int(recorded.change[at])
    step, moment = recorded.place(last)
    both = np.flatnonzero(alive & (partner != NO_PARTNER))
    both = both[predicted_alive[partner[both]] & (recorded.bytes[both] == predicted.bytes[partner[both]])]
    items = sorted(_items(recorded, predicted, partner, alive, predicted_alive),
                   key=lambda item: -abs(item.difference_bytes))
    return AtPeak(
        step, moment, recorded.module[last], recorded.operator[last], recorded.peak_bytes, predicted.peak_bytes,
        int(predicted.live[predicted_at]) if predicted_at != NO_PARTNER else 0, len(both),
        int(recorded.bytes[both].sum()), tuple(items))


def same_point(recorded: JobAllocations, predicted: JobAllocations, partner: np.ndarray, at: int) -> int:
    """The predicted change that corresponds to a recorded one; -1 if nothing is predicted before it.

    This is the change of the last matched allocation, or a later one: following frees count too, if the device did them
    before the recorded change.
    """
    before = np.flatnonzero((partner != NO_PARTNER) & (recorded.born <= at))
    if not len(before):
        return NO_PARTNER
    matched = partner != NO_PARTNER
    recorded_partner = dict(zip(partner[matched].tolist(), np.flatnonzero(matched).tolist()))
    predicted_at = int(predicted.born[partner[before[-1]]])
    while predicted_at + 1 < len(predicted.change) and predicted.sign[predicted_at + 1] < 0:
        row = recorded_partner.get(int(predicted.change[predicted_at + 1]), NO_PARTNER)
        if row != NO_PARTNER and recorded.died[row] > at:
            break
        predicted_at += 1
    return predicted_at


def _items(recorded: JobAllocations, predicted: JobAllocations, partner: np.ndarray, alive: np.ndarray,
           predicted_alive: np.ndarray) -> Iterator[Item]:
    has_partner = np.zeros(len(predicted), dtype=bool)
    has_partner[partner[partner != NO_PARTNER]] = True
    for row in np.flatnonzero(partner == NO_PARTNER).tolist():
        if alive[row]:
            yield _item(Reason.DEVICE_ONLY, recorded, row, int(recorded.bytes[row]), 0)
    for row in np.flatnonzero(partner != NO_PARTNER).tolist():
        column = int(partner[row])
        measured, predicted_bytes = int(recorded.bytes[row]), int(predicted.bytes[column])
        if alive[row] and predicted_alive[column]:
            if measured != predicted_bytes:
                yield _item(Reason.OTHER_SIZE, predicted, column, measured, predicted_bytes)
        elif alive[row]:
            yield _item(Reason.ALIVE_ONLY_MEASURED, predicted, column, measured, 0)
        elif predicted_alive[column]:
            yield _item(Reason.ALIVE_ONLY_PREDICTED, predicted, column, 0, predicted_bytes)
    for column in np.flatnonzero(predicted_alive & ~has_partner).tolist():
        yield _item(Reason.NEVER_CAME, predicted, column, 0, int(predicted.bytes[column]))


def _item(why: Reason, side: JobAllocations, row: int, measured: int, predicted_bytes: int) -> Item:
    step, moment = side.place(row)
    return Item(why, side.operator[row], side.module[row], side.factor_of(row), moment, step, measured, predicted_bytes)
