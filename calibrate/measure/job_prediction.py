"""Predicts a job before it is measured: the rank to measure, and requested bytes by moment and step.

The prediction never uses a calibration profile: profiles are made from measurements and judged by them.
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
    """The rank to measure, and the source of the choice.

    It is the rank that torchrun gave this process, or the workload's rank. For "worst" it is the rank with the highest
    predicted peak.

    Raises:
        InputError: the rank is "worst" of several and cannot be predicted, or torchrun started another number of ranks
            than the workload has.
    """
    if single_rank.launched():
        if int(os.environ["WORLD_SIZE"]) != workload.world_size:
            raise InputError(f"torchrun started {os.environ['WORLD_SIZE']} ranks, but data_parallel_size is "
                             f"{workload.data_parallel_size}, tensor_parallel_size {workload.tensor_parallel_size}: "
                             "make them agree")
        return int(os.environ["RANK"]), RankChoice.LAUNCHER
    if not isinstance(workload.rank, str):  # the only text is "worst"
        return workload.rank, RankChoice.WORKLOAD
    if workload.world_size == 1:
        return 0, RankChoice.WORKLOAD
    try:
        return dispatch.prepare(workload.replace(profile="none")).rank, RankChoice.PREDICTION
    except InputError as error:
        raise InputError(f"the rank with the highest peak cannot be predicted ({error}): to measure anyway, "
                         f"choose a rank with --rank 0 … {workload.world_size - 1}") from None


def predict_requested(workload: Workload, rank: int) -> Predicted:
    """Predicts the requested bytes of one rank, by moment and step.

    Raises:
        InputError: for the same reasons as :func:`predictor.answer.predict.predict`.
    """
    run = dispatch.prepare(workload.replace(profile="none")).run(workload.capacity, rank)
    events, live = run.events, run.live
    highest = timeline.highest_by_moment(live, events.step, events.moment)
    tag = events[int(np.argmax(live))].tag
    return Predicted(Peak(run.peak, tag.moment, tag.step), tuple(
        PredictedMoment(step, moment, int(live[index])) for (step, moment), index in highest.items()))
