"""What became of each allocation: foreseen, foreseen with another size, only on the device, or never come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from calibrate.attribution import align, peak
from calibrate.attribution.allocations import Side
from predictor.events.calls import largest_results, own_temporaries
from predictor.events.events import MOMENTS, Factor, Moment


class Outcome(str, Enum):
    """Of one allocation. What a job that ran out of memory did not get to is ``NOT_REACHED``."""

    MATCHED = "matched"
    OTHER_SIZE = "other_size"
    DEVICE_ONLY = "device_only"
    NEVER_CAME = "never_came"
    NOT_REACHED = "not_reached"


@dataclass(frozen=True)
class Row:
    """All allocations of one operator in one moment, over all steps; bytes are requested ones.

    Attributes:
        operator: as predicted, or as recorded for what only the device made.
        factor: None for what only the device made.
        matched: how many are on both sides, with the same size.
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
        """Predicted less recorded."""
        return self.predicted_bytes - self.recorded_bytes


@dataclass(frozen=True)
class Extra:
    """What the device allocated beyond the prediction in one call of an operator.

    Attributes:
        bytes: recorded less predicted; all of it where nothing was predicted.
        grows: whether the buffer is predicted with another size, so that ``bytes`` make it larger (or, below 0,
            smaller); False where only the device made it.
        output_bytes: what was predicted of the same buffer; where nothing was, of the call's nearest
            allocation before it, or behind it (usually the call's result); 0 if it made nothing else.
        result_bytes: of the call's largest result as predicted (:class:`predictor.events.calls.Call`); 0 if
            nothing was.
        alive_at_peak: at the measured peak.
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
    """A buffer that was freed elsewhere than predicted.

    Attributes:
        later_by: how many predicted allocations later the device freed it, negative if earlier; None if
            only one of the two ever frees it.
    """

    operator: str
    module: str
    moment: Moment
    step: int
    bytes: int
    later_by: int | None


class Fate(NamedTuple):
    """What became of an allocation, and its row on each side that has it."""

    outcome: Outcome
    recorded: int | None
    predicted: int | None


@dataclass(frozen=True, eq=False)
class Attribution:
    """Two sides, and which allocation of one is which of the other.

    Attributes:
        partner: ``int64[recorded]``, a predicted allocation or -1.
    """

    recorded: Side
    predicted: Side
    partner: np.ndarray

    @cached_property
    def recorder_of(self) -> np.ndarray:
        """``int64[predicted]``: the recorded allocation of each predicted one, or -1."""
        result = np.full(len(self.predicted), align.NOBODY, dtype=np.int64)
        matched = np.flatnonzero(self.partner != align.NOBODY)
        result[self.partner[matched]] = matched
        return result

    def outcomes(self) -> Iterator[Fate]:
        """Each allocation once."""
        for row, column in enumerate(self.partner.tolist()):
            if column == align.NOBODY:
                yield Fate(Outcome.DEVICE_ONLY, row, None)
            else:
                same = self.recorded.bytes[row] == self.predicted.bytes[column]
                yield Fate(Outcome.MATCHED if same else Outcome.OTHER_SIZE, row, column)
        reached = self._reached
        for column in np.flatnonzero(self.recorder_of == align.NOBODY).tolist():
            yield Fate(Outcome.NEVER_CAME if column < reached else Outcome.NOT_REACHED, None, column)

    def count(self) -> dict[Outcome, int]:
        """How many allocations had each outcome."""
        result = dict.fromkeys(Outcome, 0)
        for fate in self.outcomes():
            result[fate.outcome] += 1
        return result

    def rows(self) -> list[Row]:
        """By moment, operator and factor; without what a job that was cut off did not get to."""
        sums: dict[tuple[int, str, Factor | None], list[int]] = {}
        for outcome, row, column in self.outcomes():
            if outcome is Outcome.NOT_REACHED:
                continue
            side, index = (self.predicted, column) if column is not None else (self.recorded, row)
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
        """The measured peak of requested bytes, and why it is not the predicted one."""
        return peak.explain(self.recorded, self.predicted, self.partner)

    def extras(self) -> list[Extra]:
        """What the device allocated beyond the prediction, in order, for the fit of workspaces."""
        recorded, alive = self.recorded, self.recorded.alive(self.recorded.peak_at)
        stretch = align.runs(recorded)
        ours = np.where(self.partner == align.NOBODY, 0, self.predicted.bytes[self.partner]) \
            if len(self.predicted) else np.zeros(len(recorded), dtype=np.int64)
        matched = np.flatnonzero(self.partner != align.NOBODY)
        results = self._results(stretch)
        result = []
        for row in np.flatnonzero(recorded.bytes != ours).tolist():
            output = int(ours[row])
            if not output:
                after = int(np.searchsorted(matched, row))
                near = [int(matched[i]) for i in (after - 1, after) if 0 <= i < len(matched)]
                output = next((int(ours[i]) for i in near if stretch[i] == stretch[row]), 0)
            step, moment = recorded.place(row)
            result.append(Extra(
                recorded.operator[row], recorded.module[row], moment, step, int(recorded.bytes[row] - ours[row]),
                bool(ours[row]), output, int(results[stretch[row]]), bool(alive[row])))
        return result

    def _results(self, stretch: np.ndarray) -> np.ndarray:
        """``int64[stretches]``: bytes of the largest result that is predicted of each stretch of recorded ones.

        Engines' names stand for many calls: what the recorded call has of one counts.
        """
        matched = np.flatnonzero(self.partner != align.NOBODY)
        partner = self.partner[matched]
        calls, starts = np.unique(stretch[matched], return_index=True)
        result = np.zeros(len(stretch), dtype=np.int64)
        result[calls] = largest_results(self.predicted.bytes[partner], temporary(self.predicted)[partner], starts)
        return result

    def lifetimes(self) -> list[Lifetime]:
        """Buffers that both sides have and free at different points, in order."""
        ours, theirs = align.both_ends(self.recorded, self.predicted, self.partner)
        result = []
        for row in np.flatnonzero(self.partner != align.NOBODY).tolist():
            column = int(self.partner[row])
            end, expected = int(ours[row]), int(theirs[column])
            if end == expected or (self.recorded.cut_off and end == align.FOREVER):
                continue
            step, moment = self.recorded.place(row)
            later = None if align.FOREVER in (end, expected) else end - expected
            result.append(Lifetime(self.predicted.operator[column], self.predicted.module[column], moment, step,
                                   int(self.recorded.bytes[row]), later))
        return result

    @cached_property
    def _reached(self) -> int:
        """The first predicted allocation that the job did not get to."""
        if not self.recorded.cut_off:
            return len(self.predicted)
        return int(self.partner.max(initial=align.NOBODY)) + 1


def attribute(recorded: Side, predicted: Side) -> Attribution:
    """Align the two sides."""
    return Attribution(recorded, predicted, align.align(recorded, predicted))


def temporary(side: Side) -> np.ndarray:
    """``bool[n]``: which allocations are temporaries of their call's own, as in :mod:`predictor.events.calls`."""
    starts = np.flatnonzero(np.diff(align.runs(side), prepend=-1))
    return own_temporaries(side.factor, side.born, side.died, starts, len(side.change))
