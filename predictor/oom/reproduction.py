"""Repeats a reported out-of-memory error with the job's configuration, and checks remedies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from predictor.answer import decisive_defaults
from predictor.answer.failure import LimitOutcome, with_limit
from predictor.answer.predict import predict
from predictor.answer.prediction import Prediction, Remedy
from predictor.answer.remedies import remedies, with_remedies
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.progress import Progress
from predictor.jobs import dispatch
from predictor.oom import gpus_of_log
from predictor.oom.amounts import Amount
from predictor.oom.explanation import Explanation
from predictor.oom.message import Message
from predictor.workload.workload import Workload

ALLOCATED = "allocated"
SCALARS_BYTES = 8 * 512
"""Scalars that a Trainer logs or DeepSpeed has for a moment are not predicted: at most eight blocks of 512 bytes."""


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
        missed_bytes: how much more the job took than its prediction, at least: what was allocated at the failure beyond
            the predicted failure's; of a job that is predicted to survive, what PyTorch or its tensors needed then
            beyond the predicted peaks. 0 if the numbers agree.
        missed_tensor_bytes: the part of it that tensors took; the rest was idle.
    """

    rank: int | str
    outcome: LimitOutcome
    compared: tuple[Compared, ...]
    missed_bytes: int = 0
    missed_tensor_bytes: int = 0

    @property
    def agrees(self) -> bool:
        """Whether the predicted failure is the reported one: all numbers are equal, up to the message's rounding."""
        return self.outcome.failure is not None and all(item.agrees for item in self.compared)


@dataclass(frozen=True)
class PredictedJob:
    """What the job's configuration adds to a message.

    Attributes:
        prediction: the job on a whole GPU with the memory of the message, with the runtime that predictions assume.
        assumed: sentences about what nobody gave: the GPU, their number, and defaults that decide the prediction.
        other_bytes: the memory that the user gave for the GPU, where the message has another; None if both agree.
        are_gpus_doubtful: whether the job may have had another number of GPUs.
        reproduction: None if the message does not tell how much memory PyTorch could have.
        remedies: changes, judged with the memory that PyTorch could have there less what the prediction missed, also of
            a job that is predicted to survive, as it did not. If the message does not tell that memory, they are judged
            on the GPU; None if the job is predicted to survive there.
    """

    prediction: Prediction
    assumed: tuple[str, ...]
    other_bytes: int | None
    are_gpus_doubtful: bool
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
        compared = _compare(explanation, outcome, workload)
        found = Reproduction(asked.rank, outcome, compared, *_missed(explanation.message, outcome, compared))
        if found.agrees:
            return found
        first = first or found
    return first


def predicted_job(found: Sequence[Explanation], workload: Workload, *, every: bool = False,
                  progress: Progress | None = None) -> PredictedJob:
    """Predicts the job of a log, and judges remedies with the memory that PyTorch had where it failed.

    Args:
        found: the log's messages. The first is compared with the prediction; the others tell how many GPUs there are.
        workload: the message's capacity is filled in where it has none or another one, and a GPU of that size.
        every: judge all changes, and trace models where that is needed.

    Raises:
        InputError: neither the message nor the workload tells the GPU's memory; or as
            :func:`predictor.answer.predict.predict`.
    """
    explanation, total = found[0], found[0].message.capacity
    workload, assumed_gpu = _on_gpu_of(explanation.message, workload)
    given, capacity = workload.capacity, workload.capacity if total is None else total.bytes
    assert given is not None and capacity is not None  # _on_gpu_of fills it in
    is_other = not gpus.are_alike(given, capacity)
    workload = workload.replace(capacity_bytes=capacity) if is_other else workload
    prediction = predict(workload, progress=progress)
    again = reproduce(explanation, workload, capacity, progress)
    if again is None:
        judged = with_remedies(prediction, workload, every=every, trace=every, progress=progress).remedies
    else:
        room = _capacity(explanation, again, workload, progress)
        judged = remedies(workload.replace(capacity_bytes=room), every=every, trace=every, progress=progress)
        judged = _with_idle_memory(judged, again, workload, room, progress)
    too_few = tuple(gpus_of_log.fewest([item.message for item in found], workload))
    return PredictedJob(
        prediction, (*assumed_gpu, *prediction.assumptions, *too_few), given if is_other else None,
        bool(too_few or decisive_defaults.assumed_gpus_of(prediction)), again, judged)


def _with_idle_memory(judged: tuple[Remedy, ...], found: Reproduction, workload: Workload, room_bytes: int,
                      progress: Progress | None) -> tuple[Remedy, ...]:
    """The remedies, that of the allocator judged with the memory that more tensors than predicted left.

    Memory that was idle beyond the prediction counts for the others, and is what expandable segments make useful.
    """
    idle = found.missed_bytes - found.missed_tensor_bytes
    if not idle:
        return judged
    with_more = remedies(workload.replace(capacity_bytes=room_bytes + idle), progress=progress)
    own = {"allocator_conf"}
    return (*(remedy for remedy in with_more if remedy.keys.keys() == own and remedy.fits),
            *(remedy for remedy in judged if remedy.keys.keys() != own))


def _on_gpu_of(message: Message, workload: Workload) -> tuple[Workload, tuple[str, ...]]:
    """The workload with a GPU: its own, or one with the message's memory, and then a sentence about it."""
    capacity = workload.capacity
    if capacity is None and message.capacity is not None:
        capacity = message.capacity.bytes
    if capacity is None:
        raise InputError("the message does not tell the GPU's memory: add --gpu NAME or --capacity-bytes SIZE")
    if workload.gpu is not None:
        return workload, ()
    gpu, assumed = gpus_of_log.by_memory(capacity)
    return workload.replace(gpu=gpu, capacity_bytes=capacity), (assumed,)


def _capacity(explanation: Explanation, found: Reproduction, workload: Workload, progress: Progress | None) -> int:
    """The memory of a GPU on which a prediction leaves PyTorch what it had at the failure, less what it missed."""
    message, room = explanation.message, found.outcome.limit_bytes
    if message.reserved and message.free and "per_process_memory_fraction" in (workload.allocator_conf or ""):
        room = (message.reserved + message.free).bytes  # the simulated allocator takes the fraction itself
    return max(1, room - found.missed_bytes) + dispatch.prepare(workload, progress).margin.runtime_high


def _candidates(limit: Amount, capacity_bytes: int) -> list[int]:
    return [max(1, min(size, capacity_bytes)) for size in (
        limit.bytes, limit.bytes - limit.rounding_bytes, limit.bytes + limit.rounding_bytes)]


def _of_rank(explanation: Explanation, workload: Workload) -> Workload:
    """The workload with the rank that the log names, unless the user chose one or it is no data-parallel rank."""
    rank = gpus_of_log.rank_of(explanation.message)
    if workload.rank != "worst" or rank is None or workload.tensor_parallel_size != 1:
        return workload
    return workload.replace(rank=rank) if rank < workload.data_parallel_size else workload


def _compare(explanation: Explanation, outcome: LimitOutcome, workload: Workload) -> tuple[Compared, ...]:
    """The numbers that both the message and the prediction have. Without a predicted failure these are the peaks."""
    message, failure = explanation.message, outcome.failure
    predicted = [("tried to allocate", message.requested, outcome.segment_bytes),
                 (ALLOCATED, message.allocated,
                  outcome.peak_allocated_bytes if failure is None else failure.allocated_bytes),
                 ("reserved", message.reserved,
                  outcome.peak_reserved_bytes if failure is None else failure.reserved_bytes)]
    left_out = {ALLOCATED: SCALARS_BYTES} if workload.engine == "deepspeed" else {}
    return tuple(Compared(name, reported, size, left_out.get(name, 0)) for name, reported, size in predicted
                 if reported is not None and size is not None)


def _missed(message: Message, outcome: LimitOutcome, compared: Sequence[Compared]) -> tuple[int, int]:
    """:attr:`Reproduction.missed_bytes`, and :attr:`Reproduction.missed_tensor_bytes`."""
    if outcome.failure is None and message.requested is not None:
        needed = [max(0, (held + message.requested).bytes - peak) for held, peak in (
            (message.allocated, outcome.peak_allocated_bytes), (message.reserved, outcome.peak_reserved_bytes))
            if held is not None]
        return max(needed, default=0), needed[0] if needed else 0  # of tensors, if the message tells what they held
    more = max((-item.difference_bytes for item in compared
                if item.name == ALLOCATED and not item.agrees and item.difference_bytes < 0), default=0)
    return more, more
