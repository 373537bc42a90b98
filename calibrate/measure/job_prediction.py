"""What the predictor says of a job that is to be measured: its rank, and requested bytes by moment and step.

Always without a profile: a measurement is what profiles are made from and judged by.
"""

from __future__ import annotations

import os

import numpy as np

from calibrate.job import single_rank
from calibrate.records.record import Peak, Predicted, PredictedMoment, RankChoice
from predictor.common.errors import InputError
from predictor.events import timeline
from predictor.jobs import dispatch
from predictor.workload.workload import Workload


def choose_rank(workload: Workload) -> tuple[int, RankChoice]:
    """The rank that torchrun gave this process, or the workload's; for "worst" the one whose predicted peak
    is highest.

    Raises:
        InputError: "worst" of several, and the predictor cannot answer; or torchrun started another
            number of ranks than the workload has.
    """
    if single_rank.launched():
        if int(os.environ["WORLD_SIZE"]) != workload.world_size:
            raise InputError(f"torchrun started {os.environ['WORLD_SIZE']} ranks, and data_parallel_size is "
                             f"{workload.data_parallel_size}, tensor_parallel_size {workload.tensor_parallel_size}: "
                             "make them agree")
        return int(os.environ["RANK"]), RankChoice.LAUNCHER
    if workload.rank != "worst":
        return workload.rank, RankChoice.WORKLOAD
    if workload.world_size == 1:
        return 0, RankChoice.WORKLOAD
    try:
        return dispatch.prepare(workload.replace(profile="none")).rank, RankChoice.PREDICTION
    except InputError as error:
        raise InputError(f"which rank is the worst cannot be predicted ({error}): if it runs all the same, "
                         f"give --rank 0 … {workload.world_size - 1}") from None


def predicted(workload: Workload, rank: int) -> Predicted:
    """Requested bytes of one rank.

    Raises:
        InputError: as :func:`predictor.answer.predict.predict`.
    """
    run = dispatch.prepare(workload.replace(profile="none")).run(workload.capacity, rank)
    events, live = run.events, run.live
    highest = timeline.highest_by_moment(live, events.step, events.moment)
    top = events[int(np.argmax(live))].tag
    return Predicted(Peak(run.peak, top.moment, top.step), tuple(
        PredictedMoment(step, moment, int(live[at])) for (step, moment), at in highest.items()))
