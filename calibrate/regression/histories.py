"""Measured and predicted requested peak of a case by factor, from its memory history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calibrate.regression.cases import Case
from calibrate.regression.compare import Comparison
from predictor.common.errors import InputError

if TYPE_CHECKING:
    from calibrate.attribution import Attribution

DEVICE_ONLY = "device_only"
"""Name in place of a factor for allocations that were not predicted."""


@dataclass(frozen=True)
class History:
    """One case whose record has a memory history.

    Attributes:
        case: the measurement.
        measured: factor -> requested bytes that are alive at the measured peak. A buffer has the factor of the
            predicted allocation that it matches, or :data:`DEVICE_ONLY`.
        predicted: the same at the predicted peak, without a profile.
    """

    case: Case
    measured: Mapping[str, int]
    predicted: Mapping[str, int]


def attribution(case: Case) -> Attribution | None:
    """Matches recorded allocations with predicted ones; None if the record has no memory history.

    Raises:
        InputError: the memory history is missing or of another job, or the job cannot be predicted.
    """
    if case.snapshot is None or case.line:
        return None
    from calibrate.attribution.measurement import attribute_record
    from calibrate.records import record

    return attribute_record(record.read(case.file), case.file)


def of_worst_case(comparisons: Iterable[Comparison]) -> History | None:
    """History of the worst case that has a memory history; None if none has."""
    for comparison in sorted(comparisons, key=lambda comparison: -comparison.worst_error):
        try:
            attributed = attribution(comparison.case)
        except InputError:  # calibrate.regression.causes reports it, if the case is among the worst
            continue
        if attributed is not None:
            return history(comparison.case, attributed)
    return None


def history(case: Case, attributed: Attribution) -> History:
    """Both peaks of a case by factor."""
    recorded, predicted = attributed.recorded, attributed.predicted
    measured: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    for row in np.flatnonzero(recorded.alive(recorded.peak_at)).tolist():
        partner = int(attributed.partner[row])
        factor = predicted.factor_of(partner) if partner >= 0 else None
        measured[factor.value if factor else DEVICE_ONLY] += int(recorded.bytes[row])
    for row in np.flatnonzero(predicted.alive(predicted.peak_at)).tolist():
        factor = predicted.factor_of(row)
        assert factor is not None  # every predicted allocation has one
        expected[factor.value] += int(predicted.bytes[row])
    return History(case, dict(measured), dict(expected))
