"""Decides which kind of job a workload is: training, inference, or a learned formula."""

from __future__ import annotations

from predictor.common.progress import Progress
from predictor.formula import learned
from predictor.jobs import inference_job, learned_job, training_job
from predictor.jobs.training_job import Job
from predictor.model.request import Request
from predictor.workload.workload import Workload


def prepare(workload: Workload, progress: Progress | None = None) -> Job:
    """A workload with its formula, and with the defaults that only the model could settle.

    Raises:
        InputError: as :func:`predictor.answer.predict.predict`.
    """
    if learned.is_named(workload.model):
        return learned_job.prepare(workload)
    return _of(workload).prepare(workload, progress)


def resolve(workload: Workload) -> Request:
    """The request of a workload, with what a sample has, as far as the model settles it: tokens, images.

    Raises:
        InputError: an unknown model, or one that does not take such samples.
    """
    return _of(workload).resolve(workload)


def _of(workload: Workload):
    return inference_job if workload.mode == "inference" else training_job
