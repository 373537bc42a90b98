"""From a workload to its prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from predictor.answer import inference_details
from predictor.answer.answer import answer
from predictor.answer.dataset import Dataset
from predictor.answer.maximum_load import searched
from predictor.answer.prediction import Prediction
from predictor.common.errors import InputError
from predictor.common.progress import Progress
from predictor.jobs import dispatch
from predictor.workload.samples import Samples
from predictor.workload.workload import Workload


def predict(workload: Workload, *, timeline: bool = False, history: bool = False,
            minimum_capacity: bool | Callable[[int], None] = False, maximum_load: bool = False,
            samples: Samples | None = None, progress: Progress | None = None) -> Prediction:
    """Predict one workload's peak memory.

    Args:
        workload: what is trained and how.
        timeline: keep the curve of live bytes and the candidates' formulas (for ``explain``).
        history: keep the memory history that it is of (for ``--snapshot``).
        minimum_capacity: also search the smallest GPU memory that the job survives in: a second or two, with
            ``max_split_size_mb`` up to a minute; a function in place of True hears of each limit, in bytes, that the
            search tries.
        maximum_load: of inference, also search the longest prompt, or the most turns, and the most sequences that fit:
            some seconds.
        samples: what batches are drawn from; the answer is the worst batch's, and says how likely others are.
        progress: wraps the list of shapes that must be traced, for example with a progress bar.

    Raises:
        InputError: an unknown model, a shape without room for its images, a setting that is not
            modelled, or a model that must be traced while torch is not installed.
    """
    if samples is not None and workload.mode == "inference":
        raise InputError("samples are of training: leave them out, or mode inference")
    if samples is not None:
        drawn = Dataset.of(workload, samples, progress)
        job = drawn.worst()
    else:
        job = dispatch.prepare(workload, progress)
    searching = [minimum_capacity] if callable(minimum_capacity) else []
    found = answer(job, job.judge(), with_timeline=timeline, with_history=history,
                   minimum_capacity_bytes=job.minimum_capacity(*searching) if minimum_capacity else None)
    if workload.mode == "inference":
        held = inference_details.inference(job)
        held = searched(job, held, progress) if maximum_load else held
        return replace(found, inference=held, **{"verdict": "does_not_fit"} if held.paged and not held.paged.sequences
                       else {})
    if maximum_load:
        raise InputError("maximum_load is of inference: add mode inference, or leave it out")
    if samples is None:
        return found
    return replace(found, samples=drawn.chances(job), not_modelled=found.not_modelled + drawn.NOTES,
                   filled_in=tuple(name for name in found.filled_in if name != "images_per_sample"))
