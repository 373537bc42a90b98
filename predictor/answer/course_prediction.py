"""``predict_course()``: from a workload and a dataset to the prediction of a whole course of training."""

from __future__ import annotations

from dataclasses import replace

from predictor.answer.answer import EVALUATED, LOOP, NOT_EVALUATED, answer, device_bound
from predictor.answer.cautions import of_framework
from predictor.answer.course_loops import course_cautions, course_variants
from predictor.answer.dataset import as_the_model_takes_them, check_samples
from predictor.answer.decisive_defaults import decisive_defaults
from predictor.answer.loop_variants import with_variants
from predictor.answer.prediction import Bound, OutOfMemory, Prediction
from predictor.common.errors import InputError
from predictor.common.progress import Progress, Tell, silent
from predictor.common.suggestions import quoted
from predictor.course.course import Course, Failure, Request, Simulation
from predictor.course.evaluation import BATCH
from predictor.events.events import Moment
from predictor.formula import learned
from predictor.jobs import dispatch
from predictor.jobs.training_job import Job
from predictor.workload import compared
from predictor.workload.engines import ENGINES, name_of
from predictor.workload.samples import Samples
from predictor.workload.workload import Workload

OTHER_LOOPS = "other loops, with which it may reserve more: --loops simulates them"
LEFT_OUT = "The job's evaluations are left out: add --eval-samples FILE and --eval-steps N."


def predict_course(workload: Workload, samples: Samples, request: Request, *, loops: bool = False,
                   progress: Progress | None = None, tell: Tell = silent) -> Prediction:
    """Predicts a training over a dataset, step by step, with the batches that its sampler draws.

    The prediction is for the batch of training that fails, or else for that which requests the most memory. Its
    reserved bytes, its verdict and the allocation that fails are those of the whole course, which is in ``course``:
    where an evaluation fails, more may be allocated then than at the prediction's peak. Of a course that fails reserved
    bytes are no less than the failing batch reserves, repeated without a limit, and what stays free is not said.

    Args:
        workload: the model, the engine and all other settings. Longer samples are truncated to ``sequence_length``.
        samples: lengths and images of the dataset's samples.
        request: how many steps, and how batches are drawn.
        loops: also simulate the course in other training loops; the interval of reserved memory then includes them.
        progress: wraps the list of shapes that must be traced, for example with a progress bar.
        tell: receives a line about what is simulated.

    Raises:
        InputError: the workload contradicts the samples, or a batch cannot be predicted.
    """
    if learned.is_learned_file(workload.model):
        raise InputError(f"model {quoted(workload.model, 200)}: a learned formula predicts one shape, and no course: "
                         "leave --steps and --epochs out")
    if request.seeds and workload.capacity is None:
        raise InputError(f"seeds {request.seeds}: whether a seed runs out of memory depends on the GPU: add --gpu NAME "
                         "or --capacity-bytes SIZE")
    if request.sampling.packing != "none" and workload.sequence_length is None:
        raise InputError("packing: needs sequence_length, the tokens of a row that samples are packed into")

    def predicted(workload: Workload) -> Prediction:
        if request.sampling.packing != "none" and workload.padding != "packed":
            raise InputError(f"packing {request.sampling.packing}: the samples of a row are packed, but padding is "
                             f"{workload.padding}: add padding packed")
        evaluates, size = workload.evaluates, workload.per_device_eval_batch_size or BATCH
        engine = ENGINES[name_of(workload.engine, workload.zero_stage)]
        if request.evaluating is not None and not engine.whole:
            raise InputError("eval_samples: the evaluation of sharded parameters is not predicted yet: leave "
                             "--eval-samples and --eval-steps out")
        if request.evaluating is not None:  # whether this job's evaluation can be predicted
            workload = workload.replace(per_device_eval_batch_size=size)
        workload = workload.replace(per_device_eval_batch_size=None) if workload.evaluates else workload
        evaluating = request.evaluating and replace(  # before the longest sample of training gives sequence_length
            request.evaluating, size=size, samples=as_the_model_takes_them(workload, request.evaluating.samples,
                                                                       compared.COURSES)[1])
        workload, taken = as_the_model_takes_them(workload, samples, compared.COURSES)
        simulation = Simulation(workload.fill(images_per_sample=int(taken.images.max() > 0)), taken,
                                replace(request, evaluating=evaluating), progress, tell)
        check_samples(taken, simulation.tokens_per_image, simulation.positions)
        if evaluating:
            check_samples(evaluating.samples, simulation.eval_tokens_per_image, simulation.positions, "eval_samples")
        prediction = _prediction(simulation, evaluates=evaluating is not None, loops=loops)
        left_out = (LEFT_OUT,) if evaluates and evaluating is None else ()
        return replace(prediction, assumptions=left_out + decisive_defaults(prediction))

    return dispatch.for_installed(workload, predicted)


def _prediction(simulation: Simulation, *, evaluates: bool, loops: bool) -> Prediction:
    """The prediction of a course, with its other loops or a note that they are left out."""
    course = simulation.run()
    job = simulation.heaviest(course)
    prediction = answer(job, job.judge(), with_timeline=False, with_history=False, minimum_capacity_bytes=None)
    prediction = _of_course(prediction, course, job, evaluates=evaluates)
    framework = tuple(of_framework(job, job.workload.source, prediction.reserved, course.verdict or ""))
    if loops:
        return with_variants(replace(prediction, cautions=framework), tuple(course_variants(simulation, course)), job)
    cautions = (*course_cautions(simulation, course, job, prediction.reserved), *framework)
    return replace(prediction, cautions=cautions, not_modelled=(*prediction.not_modelled, OTHER_LOOPS))


def _of_course(prediction: Prediction, course: Course, job: Job, *, evaluates: bool) -> Prediction:
    """The prediction of one batch, with what the course decides: reserved and device bytes, verdict, failure."""
    reserved_bytes = max(course.peak_reserved_bytes, prediction.reserved.bytes if course.failure else 0)
    reserved = Bound.of(reserved_bytes, job.margin.of("reserved"))
    capacity = job.workload.capacity
    return replace(
        prediction, course=course, reserved=reserved, verdict=course.verdict,
        out_of_memory=None if course.failure is None else _out_of_memory(course.failure),
        device=device_bound(reserved, job.margin) if prediction.device else None,
        headroom_bytes=None if capacity is None or course.failure else capacity - reserved.bytes,
        filled_in=tuple(name for name in prediction.filled_in if name != "images_per_sample"),
        not_modelled=(*(note.replace(LOOP.format(NOT_EVALUATED), LOOP.format(EVALUATED)) if evaluates else note
                        for note in prediction.not_modelled), *course.caveats))


def _out_of_memory(failure: Failure) -> OutOfMemory:
    return OutOfMemory(Moment(failure.moment), failure.module, failure.operator, failure.step, failure.rank,
                       failure.requested_bytes, failure.allocated_bytes, failure.reserved_bytes)
