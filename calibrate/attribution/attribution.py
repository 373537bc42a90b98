"""Classifies each allocation: predicted, predicted with another size, only on the device, or never allocated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from calibrate.attribution import align, peak
from calibrate.attribution.allocations import JobAllocations
from predictor.events.calls import largest_results, own_temporaries
from predictor.events.events import MOMENTS, Factor, Moment


class Outcome(str, Enum):
    """The outcome of one allocation. ``NOT_REACHED``: the job ran out of memory before it."""

    MATCHED = "matched"
    OTHER_SIZE = "other_size"
    DEVICE_ONLY = "device_only"
    NEVER_CAME = "never_came"
    NOT_REACHED = "not_reached"


@dataclass(frozen=True)
class Row:
    """All allocations of one operator in one moment, over all steps; requested bytes.

    Attributes:
        operator: the predicted name, or the recorded one for allocations that only the device made.
        factor: None for allocations that only the device made.
        matched: number of allocations that are on both sides with the same size.
    """

    moment: Moment
    operator: str
    factor: Factor | None
    matched: int
    predicted: int
    recorded: int
    predicted_bytes: int
    recorded_bytes: int

    @property
    def difference_bytes(self) -> int:
        """Predicted minus recorded bytes."""
        return self.predicted_bytes - self.recorded_bytes


@dataclass(frozen=True)
class Extra:
    """The bytes that one call of an operator allocated on the device beyond the prediction.

    Attributes:
        bytes: recorded minus predicted bytes; all recorded bytes if nothing was predicted.
        grows: whether the buffer is predicted with another size, so that ``bytes`` enlarge it (or, below 0, shrink it);
            False if only the device made it.
        output_bytes: predicted bytes of the same buffer. If it was not predicted: predicted bytes of the call's nearest
            allocation before or after it (usually the call's result); 0 if the call made no other.
        result_bytes: predicted bytes of the call's largest result (:class:`predictor.events.calls.OperatorCall`); 0 if
            none was predicted.
        alive_at_peak: whether it is alive at the measured peak.
    """

    operator: str
    module: str
    moment: Moment
    step: int
    bytes: int
    grows: bool
    output_bytes: int
    result_bytes: int
    alive_at_peak: bool


@dataclass(frozen=True)
class Lifetime:
    """A buffer that was freed at another point than predicted.

    Attributes:
        later_by: number of predicted allocations by which the device freed it later, negative if earlier; None if only
            one of the two sides ever frees it.
    """

    operator: str
    module: str
    moment: Moment
    step: int
    bytes: int
    later_by: int | None


class Fate(NamedTuple):
    """The outcome of an allocation, and its index on each side that has it."""

    outcome: Outcome
    recorded: int | None
    predicted: int | None


@dataclass(frozen=True, eq=False)
class Attribution:
    """Two sides, and the pairs of their allocations.

    Attributes:
        partner: ``int64[recorded]``, a predicted allocation or -1.
    """

    recorded: JobAllocations
    predicted: JobAllocations
    partner: np.ndarray

    @cached_property
    def recorded_partner(self) -> np.ndarray:
        """``int64[predicted]``: the recorded partner of each predicted allocation, or -1."""
        result = np.full(len(self.predicted), align.UNMATCHED, dtype=np.int64)
        matched = np.flatnonzero(self.partner != align.UNMATCHED)
        result[self.partner[matched]] = matched
        return result

    def outcomes(self) -> Iterator[Fate]:
        """The outcome of each allocation, once per pair."""
        for row, column in enumerate(self.partner.tolist()):
            if column == align.UNMATCHED:
                yield Fate(Outcome.DEVICE_ONLY, row, None)
            else:
                same = self.recorded.bytes[row] == self.predicted.bytes[column]
                yield Fate(Outcome.MATCHED if same else Outcome.OTHER_SIZE, row, column)
        reached = self._reached
        for column in np.flatnonzero(self.recorded_partner == align.UNMATCHED).tolist():
            yield Fate(Outcome.NEVER_CAME if column < reached else Outcome.NOT_REACHED, None, column)

    def count(self) -> dict[Outcome, int]:
        """Number of allocations with each outcome."""
        result = dict.fromkeys(Outcome, 0)
        for fate in self.outcomes():
            result[fate.outcome] += 1
        return result

    def rows(self) -> list[Row]:
        """Sums by moment, operator and factor, without allocations that a failed job did not reach."""
        sums: dict[tuple[int, str, Factor | None], list[int]] = {}
        for outcome, row, column in self.outcomes():
            if outcome is Outcome.NOT_REACHED:
                continue
            if column is not None:
                side, index = self.predicted, column
            else:
                assert row is not None  # each allocation is on one side, at least
                side, index = self.recorded, row
            key = int(side.moment[side.born[index]]), side.operator[index], side.factor_of(index)
            total = sums.setdefault(key, [0] * 5)
            total[0] += outcome is Outcome.MATCHED
            total[1] += column is not None
            total[2] += row is not None
            total[3] += 0 if column is None else int(self.predicted.bytes[column])
            total[4] += 0 if row is None else int(self.recorded.bytes[row])
        return [Row(MOMENTS[moment], operator, factor, *total)
                for (moment, operator, factor), total in sorted(sums.items(), key=lambda item: item[0][:2])]

    def at_peak(self) -> peak.AtPeak:
        """The measured peak of requested bytes, and its differences from the predicted one."""
        return peak.explain(self.recorded, self.predicted, self.partner)

    def extras(self) -> list[Extra]:
        """Allocations beyond the prediction in order, for the fit of workspaces."""
        recorded, alive = self.recorded, self.recorded.alive(self.recorded.peak_at)
        stretch = align.call_stretches(recorded)
        predicted_bytes = np.where(self.partner == align.UNMATCHED, 0, self.predicted.bytes[self.partner]) \
            if len(self.predicted) else np.zeros(len(recorded), dtype=np.int64)
        matched = np.flatnonzero(self.partner != align.UNMATCHED)
        results = self._results(stretch)
        result = []
        for row in np.flatnonzero(recorded.bytes != predicted_bytes).tolist():
            output = int(predicted_bytes[row])
            if not output:
                after = int(np.searchsorted(matched, row))
                near = [int(matched[i]) for i in (after - 1, after) if 0 <= i < len(matched)]
                output = next((int(predicted_bytes[i]) for i in near if stretch[i] == stretch[row]), 0)
            step, moment = recorded.place(row)
            result.append(Extra(
                recorded.operator[row], recorded.module[row], moment, step,
                int(recorded.bytes[row] - predicted_bytes[row]), bool(predicted_bytes[row]), output,
                int(results[stretch[row]]), bool(alive[row])))
        return result

    def _results(self, stretch: np.ndarray) -> np.ndarray:
        """``int64[stretches]``: bytes of the largest predicted result of each recorded stretch.

        An engine's name stands for many calls; only the results that belong to the recorded call count.
        """
        matched = np.flatnonzero(self.partner != align.UNMATCHED)
        partner = self.partner[matched]
        calls, starts = np.unique(stretch[matched], return_index=True)
        result = np.zeros(len(stretch), dtype=np.int64)
        result[calls] = largest_results(self.predicted.bytes[partner], temporary(self.predicted)[partner], starts)
        return result

    def lifetimes(self) -> list[Lifetime]:
        """Buffers that both sides free at different points, in order."""
        recorded_ends, predicted_ends = align.both_ends(self.recorded, self.predicted, self.partner)
        result = []
        for row in np.flatnonzero(self.partner != align.UNMATCHED).tolist():
            column = int(self.partner[row])
            end, expected = int(recorded_ends[row]), int(predicted_ends[column])
            if end == expected or (self.recorded.cut_off and end == align.FOREVER):
                continue
            step, moment = self.recorded.place(row)
            later = None if align.FOREVER in (end, expected) else end - expected
            result.append(Lifetime(self.predicted.operator[column], self.predicted.module[column], moment, step,
                                   int(self.recorded.bytes[row]), later))
        return result

    @cached_property
    def _reached(self) -> int:
        """The first predicted allocation that the job did not reach."""
        if not self.recorded.cut_off:
            return len(self.predicted)
        return int(self.partner.max(initial=align.UNMATCHED)) + 1


def attribute(recorded: JobAllocations, predicted: JobAllocations) -> Attribution:
    """Aligns the two sides."""
    return Attribution(recorded, predicted, align.align(recorded, predicted))


def temporary(side: JobAllocations) -> np.ndarray:
    """``bool[n]``: whether an allocation is a temporary of its own call, as in :mod:`predictor.events.calls`."""
    starts = np.flatnonzero(np.diff(align.call_stretches(side), prepend=-1))
    return own_temporaries(side.factor, side.born, side.died, starts, len(side.change))
