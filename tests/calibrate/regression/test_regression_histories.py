"""A case's memory history: the requested peak by factor, measured beside predicted."""

import numpy as np

from calibrate.attribution import Attribution, JobAllocations
from calibrate.regression import histories
from calibrate.regression.histories import DEVICE_ONLY, History
from predictor.common.errors import InputError
from predictor.events.events import FACTORS, Factor
from tests.calibrate.regression_cases import case, compared


def side(sizes: list[int], factors: list[int]) -> JobAllocations:
    """Allocated one after the other; then the first is freed."""
    count = len(sizes)
    return JobAllocations(np.array(sizes), ("aten::mm",) * count, ("",) * count, np.array(factors, dtype=np.int8),
                          np.arange(count), np.array([count] + [count + 1] * (count - 1)), np.array([*range(count), 0]),
                          np.array([1] * count + [-1], dtype=np.int8), np.zeros(count + 1, dtype=np.int8),
                          np.zeros(count + 1, dtype=np.int8))


PARAMETERS, ACTIVATIONS = FACTORS.index(Factor.PARAMETERS), FACTORS.index(Factor.ACTIVATIONS)
ALIGNED = Attribution(side([100, 24, 7], [-1, -1, -1]), side([100, 20], [PARAMETERS, ACTIVATIONS]), np.array([0, 1, -1]))


def test_a_recorded_buffer_has_the_factor_of_its_partner_and_its_own_size():
    found = histories.history(case(), ALIGNED)
    assert found == History(case(), {"parameters": 100, "activations": 24, DEVICE_ONLY: 7},
                            {"parameters": 100, "activations": 20})


def test_the_worst_case_with_a_memory_history_is_taken(monkeypatch):
    near, far, gone = (compared(case(length), (100, 110 + off, 120, None))
                       for length, off in ((1, 1), (2, 2), (3, 3)))

    def attribution(one):
        if one is gone.case:
            raise InputError("its memory history is gone")
        return ALIGNED

    monkeypatch.setattr(histories, "attribution", attribution)
    assert histories.of_worst_case([near, far, gone]).case is far.case


def test_without_memory_histories_there_is_none():
    assert histories.of_worst_case([compared()]) is None
