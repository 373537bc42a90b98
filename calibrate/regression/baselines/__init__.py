"""What other people's methods say of the same workload, to stand beside the prediction and the measurement."""

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
"""Key in JSON -> method, in the order of tables."""


def estimates(workload: Workload, *, slow: bool = False) -> dict[str, Estimate]:
    """What each method says; those that take a minute or more are left out unless ``slow`` is asked for.

    None of them raises: a model that cannot be found, built or traced is a method's reason to say nothing.
    """
    return {key: _one(baseline, workload) for key, baseline in BASELINES.items() if slow or not baseline.slow}


def _one(baseline: Baseline, workload: Workload) -> Estimate:
    try:
        return baseline.estimate(workload)
    except InputError as error:
        return Estimate(None, " ".join(str(error).split()))
