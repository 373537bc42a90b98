"""The requested peak of a case by factor, measured beside predicted, from its memory history."""

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
"""In place of a factor: what nothing was predicted for."""


@dataclass(frozen=True)
class History:
    """One case whose record has a memory history.

    Attributes:
        case: the measurement.
        measured: factor to requested bytes alive at the measured peak; a buffer has the factor of the predicted one
            that it is, and :data:`DEVICE_ONLY` if it is none.
        predicted: the same at the predicted peak, without a profile.
    """

    case: Case
    measured: Mapping[str, int]
    predicted: Mapping[str, int]


def attribution(case: Case) -> Attribution | None:
    """Each recorded allocation beside the predicted one; None where the record has no memory history.

    Raises:
        InputError: the memory history is gone or of another job, or the job cannot be predicted.
    """
    if case.snapshot is None or case.line:
        return None
    from calibrate.attribution.measurement import attribute_record
    from calibrate.records import record

    return attribute_record(record.read(case.file), case.file)


def first(comparisons: Iterable[Comparison]) -> History | None:
    """Of the worst case that has a memory history; None if none has."""
    for one in sorted(comparisons, key=lambda one: -one.worst_error):
        try:
            found = attribution(one.case)
        except InputError:  # the case says so, if it is far off: causes
            continue
        if found is not None:
            return history(one.case, found)
    return None


def history(case: Case, found: Attribution) -> History:
    """Both peaks by factor."""
    recorded, predicted = found.recorded, found.predicted
    measured, said = Counter(), Counter()
    for row in np.flatnonzero(recorded.alive(recorded.peak_at)).tolist():
        partner = int(found.partner[row])
        factor = predicted.factor_of(partner) if partner >= 0 else None
        measured[factor.value if factor else DEVICE_ONLY] += int(recorded.bytes[row])
    for row in np.flatnonzero(predicted.alive(predicted.peak_at)).tolist():
        said[predicted.factor_of(row).value] += int(predicted.bytes[row])
    return History(case, dict(measured), dict(said))
