"""Repeats a reported out-of-memory error with the job's configuration, and checks remedies."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.answer.failure import LimitOutcome, with_limit
from predictor.answer.predict import predict
from predictor.answer.prediction import Prediction, Remedy
from predictor.answer.remedies import remedies, with_remedies
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.progress import Progress
from predictor.jobs import dispatch
from predictor.oom.amounts import Amount
from predictor.oom.explanation import Explanation
from predictor.workload.workload import Workload

SCALARS_BYTES = 8 * 512
"""DeepSpeed's own scalars (loss scaling, norms, checks) are not predicted: at most eight blocks of 512 bytes."""


@dataclass(frozen=True)
class Compared:
    """One number of a message and its prediction. ``left_out_bytes`` may be missing in the prediction."""

    name: str
    reported: Amount
    predicted_bytes: int
    left_out_bytes: int = 0

    @property
    def difference_bytes(self) -> int:
        """Predicted minus reported."""
        return self.predicted_bytes - self.reported.bytes

    @property
    def agrees(self) -> bool:
        """Whether the message would print the predicted number as the reported one, up to what may be left out."""
        rounding = self.reported.rounding_bytes
        return -rounding - self.left_out_bytes <= self.difference_bytes <= rounding


@dataclass(frozen=True)
class Reproduction:
    """The predicted failure beside the reported one.

    Attributes:
        rank: the rank that was predicted: the log's, or ``worst``.
        outcome: the job with the memory that PyTorch could have according to the message.
        compared: the numbers that both have.
    """

    rank: int | str
    outcome: LimitOutcome
    compared: tuple[Compared, ...]

    @property
    def agrees(self) -> bool:
        """Whether the predicted failure is the reported one: all numbers are equal, up to the message's rounding."""
        return self.outcome.failure is not None and all(item.agrees for item in self.compared)


@dataclass(frozen=True)
class PredictedJob:
    """What the job's configuration adds to a message.

    Attributes:
        prediction: the job on the whole GPU, with the runtime that predictions assume.
        assumed_gpu: a sentence that names the GPU whose kernels are predicted; empty if the user named it.
        reproduction: None if the message does not tell how much memory PyTorch could have.
        remedies: changes, judged with the memory that PyTorch could have there, also of a job that is predicted to
            survive, as it did not. If the message does not tell that memory, they are judged on the GPU; None if the
            job is predicted to survive there.
    """

    prediction: Prediction
    assumed_gpu: str
    reproduction: Reproduction | None
    remedies: tuple[Remedy, ...] | None


def reproduce(explanation: Explanation, workload: Workload, capacity_bytes: int,
              progress: Progress | None = None) -> Reproduction | None:
    """Predicts where the job fails with the memory that it had. None if the message does not tell how much that was.

    The message rounds this memory. If the job fails elsewhere with the printed number, the ends of the range that it
    stands for are tried, too.

    Raises:
        InputError: as :func:`predictor.answer.predict.predict`.
    """
    limit = explanation.limit
    if limit is None:
        return None
    asked = _of_rank(explanation, workload)
    first: Reproduction | None = None
    for bytes in dict.fromkeys(_candidates(limit, capacity_bytes)):
        outcome = with_limit(asked, bytes, capacity_bytes, progress)
        found = Reproduction(asked.rank, outcome, _compare(explanation, outcome, workload))
        if found.agrees:
            return found
        first = first or found
    return first


def predicted_job(explanation: Explanation, workload: Workload, *, every: bool = False,
                  progress: Progress | None = None) -> PredictedJob:
    """Predicts the job of a message, and judges remedies with the memory that PyTorch had there.

    Args:
        workload: the message's capacity is filled in where it has none, and a GPU of that size.
        every: judge all changes, and trace models where that is needed.

    Raises:
        InputError: neither the message nor the workload tells the GPU's memory; or as
            :func:`predictor.answer.predict.predict`.
    """
    total, assumed_gpu = explanation.message.capacity, ""
    capacity = workload.capacity if total is None or workload.capacity is not None else total.bytes
    if capacity is None:
        raise InputError("the message does not tell the GPU's memory: add --gpu NAME or --capacity-bytes SIZE")
    if workload.gpu is None:
        gpu, assumed_gpu = _gpu_of(capacity)
        workload = workload.replace(gpu=gpu, capacity_bytes=capacity)
    prediction = predict(workload, progress=progress)
    found = reproduce(explanation, workload, capacity if total is None else total.bytes, progress)
    if found is None:
        judged = with_remedies(prediction, workload, every=every, trace=every, progress=progress).remedies
    else:
        there = workload.replace(capacity_bytes=_capacity(explanation, found, workload, progress))
        judged = remedies(there, every=every, trace=every, progress=progress)
    return PredictedJob(prediction, assumed_gpu, found, judged)


def _gpu_of(capacity_bytes: int) -> tuple[str, str]:
    """The GPU to predict for, by its memory, and a sentence about that. Of several the usual one, or the nearest."""
    near = gpus.as_large(capacity_bytes)
    chosen = next((gpu for gpu in near if gpu.name == gpus.DEFAULT), *near[:1] or [gpus.find(gpus.DEFAULT)])
    others = [gpu.name for gpu in near if gpu is not chosen]
    if near and not others:
        return chosen.name, f"Taken to be {chosen.name}, by its memory; --gpu NAME names another."
    why = f"as large: {', '.join(others[:2])}{' …' if others[2:] else ''}" if others else "no known GPU is as large"
    return chosen.name, f"Assumed the kernels of {chosen.name} ({why}): give --gpu NAME."


def _capacity(explanation: Explanation, found: Reproduction, workload: Workload, progress: Progress | None) -> int:
    """The memory of a GPU on which a prediction leaves PyTorch what it had where the job failed, in bytes."""
    message, room = explanation.message, found.outcome.limit_bytes
    if message.reserved and message.free and "per_process_memory_fraction" in (workload.allocator_conf or ""):
        room = (message.reserved + message.free).bytes  # the simulated allocator takes the fraction itself
    return room + dispatch.prepare(workload, progress).margin.runtime_high


def _candidates(limit: Amount, capacity_bytes: int) -> list[int]:
    return [max(1, min(size, capacity_bytes)) for size in (
        limit.bytes, limit.bytes - limit.rounding_bytes, limit.bytes + limit.rounding_bytes)]


def _of_rank(explanation: Explanation, workload: Workload) -> Workload:
    """The workload with the rank that the log names, unless the user chose one or it is no data-parallel rank."""
    name, _, number = explanation.message.source.partition(" ")
    if workload.rank != "worst" or name != "rank" or workload.tensor_parallel_size != 1:
        return workload
    rank = int(number)
    return workload.replace(rank=rank) if rank < workload.data_parallel_size else workload


def _compare(explanation: Explanation, outcome: LimitOutcome, workload: Workload) -> tuple[Compared, ...]:
    """The numbers that both the message and the prediction have. Without a predicted failure these are the peaks."""
    message, failure = explanation.message, outcome.failure
    predicted = [("tried to allocate", message.requested, outcome.segment_bytes),
                 ("allocated", message.allocated,
                  outcome.peak_allocated_bytes if failure is None else failure.allocated_bytes),
                 ("reserved", message.reserved,
                  outcome.peak_reserved_bytes if failure is None else failure.reserved_bytes)]
    left_out = {"allocated": SCALARS_BYTES} if workload.engine == "deepspeed" else {}
    return tuple(Compared(name, reported, size, left_out.get(name, 0)) for name, reported, size in predicted
                 if reported is not None and size is not None)
