"""Chooses the job type of a workload: training, inference, or a learned formula."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from predictor.common.errors import OtherReleases
from predictor.common.progress import Progress
from predictor.formula import installed_versions, learned, store
from predictor.jobs import inference_job, learned_job, training_job
from predictor.jobs.training_job import Job
from predictor.model.request import Request
from predictor.workload.workload import Workload

Result = TypeVar("Result")


def for_installed(workload: Workload, work: Callable[[Workload], Result]) -> Result:
    """The result of work on a workload; of the workload in the installed releases, where the work must trace with them,
    or may not trace, and the workload gives no versions. So all that the work predicts is for the same releases.

    Raises:
        InputError: as the work.
    """
    try:
        return work(workload)
    except (OtherReleases, store.NotTraced) as problem:
        installed = installed_versions.versions()
        installed.pop("python")
        here = workload.replace(versions={**workload.versions, **installed})
        if "versions" not in workload.filled_in or here.versions == workload.versions:
            raise
        try:
            return work(here)
        except store.NotTraced:
            raise problem from None


def prepare(workload: Workload, progress: Progress | None = None, *, one_length: bool = False) -> Job:
    """Prepares the job of a workload: finds its formula, and fills in the defaults that depend on the model.

    A model without a shipped formula is traced with the packages that are installed, and predicted for their releases,
    unless the workload gives versions.

    Args:
        one_length: the caller will not ask for other sequence lengths. Then a regime that does not hold for all batches
            is traced at this shape only.

    Raises:
        InputError: as :func:`predictor.answer.predict.predict`.
    """
    if learned.is_learned_file(workload.model):
        return learned_job.prepare(workload)
    return for_installed(workload, lambda workload: _of(workload).prepare(workload, progress, one_length=one_length))


def resolve(workload: Workload) -> Request:
    """The request of a workload, with the defaults that depend on the model, such as images per sample.

    Raises:
        InputError: the model is unknown, or does not take such samples.
    """
    return _of(workload).resolve(workload)


def _of(workload: Workload) -> ModuleType:
    return inference_job if workload.mode == "inference" else training_job
