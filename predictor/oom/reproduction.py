"""Repeats a reported out-of-memory error with the job's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.answer.failure import LimitOutcome, with_limit
from predictor.common.progress import Progress
from predictor.oom.amounts import Amount
from predictor.oom.comparison import Compared, agree, compare
from predictor.oom.explanation import Explanation
from predictor.workload.workload import Workload


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
        return agree(self.compared, self.outcome)


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
        found = Reproduction(asked.rank, outcome, compare(explanation, outcome))
        if found.agrees:
            return found
        first = first or found
    return first


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
