"""Baselines: estimates of the same workload by other people's methods."""

from __future__ import annotations

from calibrate.regression.baselines import (
    accelerate_estimator,
    deepspeed_estimator,
    equation_1,
    mem_tracker,
    states_only,
)
from calibrate.regression.baselines.baseline import Baseline, Estimate
from predictor.common.errors import InputError
from predictor.workload.workload import Workload

__all__ = ["BASELINES", "Baseline", "Estimate", "estimates"]

BASELINES: dict[str, Baseline] = {
    "equation_1": equation_1.BASELINE,
    "deepspeed": deepspeed_estimator.BASELINE,
    "accelerate": accelerate_estimator.BASELINE,
    "states_only": states_only.BASELINE,
    "mem_tracker": mem_tracker.BASELINE,
}
"""Key in JSON -> method, in the order of the tables."""


def estimates(workload: Workload, *, slow: bool = False) -> dict[str, Estimate]:
    """Each method's estimate of a workload. Methods that take a minute or more run only with ``slow``.

    No method raises: if a model cannot be found, built or traced, the estimate is None with the reason.
    """
    return {key: _estimate(baseline, workload) for key, baseline in BASELINES.items() if slow or not baseline.slow}


def _estimate(baseline: Baseline, workload: Workload) -> Estimate:
    try:
        return baseline.estimate(workload)
    except InputError as error:
        return Estimate(None, " ".join(str(error).split()))
