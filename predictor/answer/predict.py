"""``predict()``: from a workload to its prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from predictor.answer import inference_details, unequal_gpus
from predictor.answer.answer import answer
from predictor.answer.dataset import Dataset
from predictor.answer.decisive_defaults import decisive_defaults
from predictor.answer.loop_variants import with_loops
from predictor.answer.maximum_load import searched
from predictor.answer.prediction import Prediction
from predictor.answer.training_load import Search
from predictor.common.errors import InputError
from predictor.common.progress import Progress, Tell, silent
from predictor.jobs import dispatch
from predictor.jobs.inference_job import InferenceJob
from predictor.jobs.training_job import Job
from predictor.workload.samples import Samples
from predictor.workload.workload import Workload


def predict(workload: Workload, *, timeline: bool = False, history: bool = False,
            minimum_capacity: bool = False, maximum_load: bool = False, samples: Samples | None = None,
            also_gpus: Sequence[str] = (), loops: bool = False, progress: Progress | None = None,
            tell: Tell = silent) -> Prediction:
    """Predict the peak GPU memory of one workload, in bytes.

    Args:
        workload: the model, the shape, the engine and all other settings.
        timeline: keep the curve of live bytes and the candidates' formulas (for ``explain``).
        history: keep the simulated memory history (for ``--snapshot``).
        minimum_capacity: also search the smallest GPU memory in which the job survives. It takes a second or two, with
            ``max_split_size_mb`` up to a minute.
        maximum_load: also search what fits at most: for training the largest batch and the longest sequence, for
            inference the longest prompt (or the number of turns) and the largest number of concurrent sequences. It
            takes some seconds, and longer where a model must be traced for each size.
        samples: lengths and image counts of the dataset's samples. The prediction is for its worst batch, and says how
            likely other batches fit.
        also_gpus: names of other GPUs that train in the same data-parallel job, once for each kind. The prediction is
            for the kind where the job fits worst, and says how large a micro-batch fits each.
        loops: also simulate the job in other training loops; the interval of reserved memory then includes them.
        progress: wraps the list of shapes that must be traced, for example with a progress bar.
        tell: receives what a search tries next, in a few words.

    Raises:
        InputError: an unknown model, a shape without room for its images, a setting that is not modelled, a model that
            must be traced while torch is not installed, or ``maximum_load`` of a workload that names no GPU.
    """
    if not isinstance(workload, Workload):
        raise TypeError(f"predict takes a Workload, not {type(workload).__name__}: Workload.from_mapping reads a dict")
    if not isinstance(samples, Samples | None):
        raise TypeError(f"samples must be Samples, not {type(samples).__name__}: predictor.workload.samples.read(path) "
                        "reads a file")
    if maximum_load and workload.capacity is None:
        raise InputError("maximum_load needs a GPU: add --gpu NAME or --capacity-bytes SIZE")

    def limit_told(limit_bytes: int) -> None:
        tell(f"survives with {limit_bytes / 2**30:,.2f} GiB for PyTorch")

    def predicted(workload: Workload) -> Prediction:
        kinds = unequal_gpus.shares(workload, also_gpus, _prepares(samples, progress)) if also_gpus else None
        workload = workload.replace(gpu=kinds[0].gpu) if kinds else workload
        dataset = None if samples is None else Dataset.of(workload, samples, progress)
        job = dispatch.prepare(workload, progress) if dataset is None else dataset.worst()
        prediction = answer(job, job.judge(), with_timeline=timeline, with_history=history,
                            minimum_capacity_bytes=job.minimum_capacity(limit_told) if minimum_capacity else None)
        if workload.mode == "inference":
            prediction = _with_inference(prediction, cast(InferenceJob, job), maximum_load, progress, tell)
        elif maximum_load:
            prediction = replace(prediction, maximum_load=_search(workload, job, samples, progress, tell).result())
        if dataset is not None:
            prediction = replace(
                prediction, samples=dataset.chances(job), not_modelled=prediction.not_modelled + dataset.NOTES,
                filled_in=tuple(name for name in prediction.filled_in if name != "images_per_sample"))
        prediction = with_loops(prediction, job) if loops else prediction
        return replace(prediction, gpus=kinds, assumptions=decisive_defaults(prediction))

    return dispatch.for_installed(workload, predicted)


def _with_inference(prediction: Prediction, job: InferenceJob, maximum_load: bool,
                    progress: Progress | None, tell: Tell) -> Prediction:
    details = inference_details.inference(job)
    details = searched(job, details, progress, tell) if maximum_load else details
    prediction = replace(prediction, inference=details)
    return replace(prediction, verdict="does_not_fit") if prediction.has_no_room_for_pages else prediction


def _search(workload: Workload, job: Job, samples: Samples | None, progress: Progress | None, tell: Tell) -> Search:
    """The search for the maximum load in training; with samples each batch is the worst one of them."""
    prepare = _prepares(samples, progress)
    if samples is None:
        return Search(workload, job, prepare, tell=tell)
    return Search(workload.fill(sequence_length=int(samples.tokens.max())), job, prepare, samples, tell)


def _prepares(samples: Samples | None, progress: Progress | None) -> Callable[[Workload, bool], Job]:
    """A function that prepares the job of a workload; with samples, that of their worst batch."""
    if samples is None:
        return lambda workload, one_length: dispatch.prepare(workload, progress, one_length=one_length)
    return lambda workload, _: Dataset.of(workload, samples, progress).worst()
