"""The search for the largest size whose job fits: a batch, a sequence length, or a number of turns.

Fitting need not be monotone in the size, because the allocator's blocks depend on every size. The search starts where
the requested peak reaches the limit, and goes down from there (:func:`largest`). So its result fits and the next larger
size does not; a much smaller size may also fail. Afterwards the sizes above it are tried (:func:`largest_of_all`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple

from predictor.allocator.simulate import events_per_second
from predictor.answer.prediction import Bound
from predictor.common.errors import InputError
from predictor.common.progress import Tell, silent
from predictor.jobs.learned_job import LearnedJob
from predictor.jobs.survival import Peaks, Shortage
from predictor.jobs.training_job import Job
from predictor.workload.workload import Workload

LEAPS = 12
"""Sizes that are tried by extrapolating along a line; after that the search halves."""
MOST_TRIED = 32
"""Sizes above the one that the search found that are tried one by one, from the largest with room downwards."""
COMPOSED_PER_SECOND = 5_000_000
"""About how many events of ranks are composed, with their sizes, in a second: for the least and the most memory."""
STEP_TOKENS = 8
"""Tokens; the first step of a search for a length, because rows of attention masks are padded to multiples of 8."""


class Found(NamedTuple):
    """The result of a search.

    Attributes:
        size: the largest size that was found to fit; one less than the least if none was.
        untried: larger sizes that have room and were not all tried, so that one of them may fit too.
    """

    size: int
    untried: range = range(0)


@dataclass
class Simulated:
    """What a search has simulated so far.

    Attributes:
        failed: ranks that ran out of memory where the rank with the highest requested peak survived.
        seconds: about how long that took on one core, judged by the number of events: an answer must not depend on what
            else the machine does.
        tried: the jobs so far, by their workloads.
        longest_seconds: the search should end after so long.
        tell: receives what is tried.
    """

    failed: set[int] = field(default_factory=set)
    seconds: float = 0
    tried: dict[Workload, Tried] = field(default_factory=dict)
    longest_seconds: float = math.inf
    tell: Tell = silent

    @property
    def is_over(self) -> bool:
        """Whether the search should end."""
        return self.seconds >= self.longest_seconds


@dataclass(frozen=True)
class Tried:
    """The job of one size. Properties that simulate do it once.

    Attributes:
        room_bytes: bytes that the requested peak leaves of what PyTorch certainly gets; negative if the job cannot fit.
        before: what the search has simulated; shared by its jobs.
        events: number of events of a rank's run.
        ranks: the ranks to simulate, the one with the highest requested peak first.
    """

    job: Job
    room_bytes: int
    before: Simulated
    events: int
    ranks: Sequence[int]

    @classmethod
    def of(cls, job: Job, before: Simulated) -> Tried:
        """A job, not simulated yet. Its workload has a capacity."""
        ranks = job.ranks(job.sure_bytes)
        run = job.run(job.sure_bytes, ranks[0])
        return cls(job, job.sure_bytes - run.peak, before, len(run.events), ranks)

    @property
    def fits(self) -> bool:
        """Whether the job surely fits."""
        return self.peaks is not None

    @cached_property
    def peaks(self) -> Peaks | None:
        """The peaks over all ranks if the job surely fits; None if it does not."""
        peaks = self._of_suspects
        if isinstance(peaks, Shortage):
            return None
        others = self._simulated([rank for rank in self.ranks if rank not in self._suspects])
        if isinstance(others, Shortage):
            self.before.failed.add(others.rank)
            return None
        return peaks.or_higher(others)

    @property
    def reserved(self) -> Bound:
        """The reserved peak with its interval. The job surely fits."""
        assert self.peaks is not None
        return self._bound(self.peaks)

    @property
    def likely_reserved(self) -> Bound:
        """As :attr:`reserved`, of the suspects alone. None of them runs out of memory."""
        assert isinstance(self._of_suspects, Peaks)
        return self._bound(self._of_suspects)

    def _bound(self, peaks: Peaks) -> Bound:
        high = peaks.reserved_high_bytes
        return Bound.of(peaks.reserved_bytes, self.job.margin.of("reserved"),
                        high=None if high == peaks.reserved_bytes else high)

    @property
    def shortage_bytes(self) -> int | None:
        """Idle bytes of a suspect that runs out of memory; None if all survive, so that the job probably fits."""
        if self.room_bytes < 0:
            return 0
        return self._of_suspects.idle_bytes if isinstance(self._of_suspects, Shortage) else None

    @cached_property
    def _suspects(self) -> list[int]:
        """The rank with the highest requested peak, and those that failed where it did not."""
        return [rank for rank in self.ranks if rank == self.ranks[0] or rank in self.before.failed]

    @cached_property
    def _of_suspects(self) -> Peaks | Shortage:
        return self._simulated(self._suspects)

    def _simulated(self, ranks: Sequence[int]) -> Peaks | Shortage:
        self.before.seconds += len(ranks) * self.events * (
            1 / events_per_second(self.events) + 1 / COMPOSED_PER_SECOND)
        return self.job.fitting(ranks)

    @property
    def is_quick(self) -> bool:
        """Whether other sizes are predicted without a trace for each of them."""
        return isinstance(self.job, LearnedJob) or self.job.formula.regime.is_wide


Room = Callable[[int], int | None]
"""Bytes for each size."""
Attempt = Callable[[int], Tried | InputError]
"""Tries a size: its job, or the reason why it is not predicted."""


def attempts(job_at: Callable[[int], Job], tell: Tell = silent, what: str = "size") -> Attempt:
    """Tries each size once.

    Args:
        job_at: prepares the job of a size.
        tell: receives each size that is tried.
        what: name of the sizes.
    """
    simulated = Simulated()

    @cache
    def attempt(size: int) -> Tried | InputError:
        tell(f"{what} {size:,}")
        try:
            return Tried.of(job_at(size), simulated)
        except InputError as error:
            return error

    return attempt


def reason(attempt: Attempt, size: int) -> InputError | None:
    """The reason why a size is not predicted; None if it is predicted."""
    tried = attempt(size)
    return tried if isinstance(tried, InputError) else None


def least_predicted(attempt: Attempt, least: int, given: int) -> int:
    """The first of ``least``, twice that, and so on up to ``given`` that is predicted; ``given`` if none is.

    Small sizes may not be predicted, because some kernels handle few rows in another way.
    """
    while least < given and reason(attempt, least) is not None:
        least *= 2
    return min(least, given)


def not_predicted(what: str, problem: InputError | None) -> tuple[str, ...]:
    """A sentence that says why sizes are not predicted; empty without a problem."""
    return () if problem is None else (f"{what} are not predicted: {problem}.",)


def fits(attempt: Attempt, size: int) -> bool:
    """Whether a size is predicted and fits."""
    tried = attempt(size)
    return not isinstance(tried, InputError) and tried.room_bytes >= 0 and tried.fits


def largest_that_fits(attempt: Attempt, least: int, most: int, *, most_tried: int = MOST_TRIED) -> Found:
    """The largest size from ``least`` to ``most`` whose job fits; 0 if not even ``least`` fits.

    A size that is not predicted counts as one that does not fit.

    Args:
        most_tried: as for :func:`largest_of_all`; 0 where each size needs a trace.
    """
    def room_at(size: int) -> int | None:
        tried = attempt(size)
        return None if isinstance(tried, InputError) else tried.room_bytes

    def quick(size: int) -> bool:
        tried = attempt(size)
        return not isinstance(tried, InputError) and tried.is_quick

    def shortage_at(size: int) -> int | None:
        tried = attempt(size)
        return 0 if isinstance(tried, InputError) else tried.shortage_bytes

    found = largest_of_all(room_at, lambda size: fits(attempt, size), least, most, shortage_at,
                           most_tried=lambda size: most_tried if quick(size) else 0)
    return found if found.size >= least else Found(0, found.untried)


def longest_that_fits(attempt: Attempt, least: int, most: int) -> Found:
    """As :func:`largest_that_fits`, for lengths in tokens: first among multiples of 8, then up to the next of them.

    There are too many lengths to try those above it.
    """
    steps, untried = largest_that_fits(lambda steps: attempt(STEP_TOKENS * steps), -(-least // STEP_TOKENS),
                                       most // STEP_TOKENS, most_tried=0)
    longest = STEP_TOKENS * steps
    first = longest + 1 if longest else least
    rest = range(min(most, -(-first // STEP_TOKENS) * STEP_TOKENS - 1), first - 1, -1)
    size = next((tokens for tokens in rest if fits(attempt, tokens)), longest)
    return Found(size, range(STEP_TOKENS * (untried.start + 1), STEP_TOKENS * untried.stop) if len(untried) > 1
                 else range(0))


def may_fit_too(what: str, found: Found) -> tuple[str, ...]:
    """A sentence about larger sizes that were not all tried; empty if there are none.

    Args:
        what: name of the sizes at the start of a sentence.
    """
    if not found.untried:
        return ()
    if len(found.untried) == 1:
        return (f"{what} {found.untried[0]:,} were not tried, and may fit too.",)
    return (f"{what} {found.untried[0]:,} to {found.untried[-1]:,} were not all tried: some may fit too, as the "
            "allocator's blocks depend on every size.",)


def largest_of_all(room: Room, fits: Callable[[int], bool], least: int, most: int, shortage: Room, *,
                   most_tried: Callable[[int], int] = lambda size: MOST_TRIED) -> Found:
    """As :func:`largest`, which also tries the sizes with room above the one that was found, the largest first.

    Args:
        most_tried: gives the number of sizes to try, from the largest one with room. If all sizes above the one that
            was found are tried, no size above the result fits.
    """
    found = largest(room, fits, least, most, shortage)
    above = range(_end_of_room(room, least, most), found, -1)
    if not above:
        return Found(found)
    tried = above[:most_tried(above[0])]
    larger = next((size for size in tried if (room(size) or 0) >= 0 and fits(size)), None)
    return Found(found, above[len(tried):][::-1]) if larger is None else Found(larger)


def largest(room: Room, fits: Callable[[int], bool], least: int, most: int, shortage: Room) -> int:
    """The largest size from ``least`` to ``most`` that fits; ``least - 1`` if none fits.

    The search is led by ``shortage``, and ``fits`` has the last word. It starts at the largest size with room.

    Args:
        room: an upper bound on the bytes that a size leaves free: negative if it cannot fit; None if it is not
            predicted. Quick.
        fits: whether a size fits. Slow.
        shortage: None if a size probably fits, and always if it fits; else about the room that one needs to fit.
    """
    while True:
        size = _largest_without_shortage(room, shortage, least, most)
        if size < least or fits(size):
            return size
        most = size - 1


def _largest_without_shortage(room: Room, shortage: Room, least: int, most: int) -> int:
    """About the largest size without a shortage: the next one has one. ``least - 1`` if none is without."""
    low, high, step = least - 1, most + 1, 1
    size = max(least, _end_of_room(room, least, most))
    while high - low > 1:
        left = room(size)
        missing = 0 if left is None or left < 0 else shortage(size)
        low, high = (size, high) if missing is None else (low, size)
        if high > most:
            size, step = min(size + step, most), 2 * step
        elif low >= least:
            size = (low + high) // 2
        else:
            led = _zero((least, _less(room(least), missing)), (size, _less(left, missing)))
            size, step = max(least, min(size - step, size if led is None else led)), 2 * step
    return low


def _less(room_bytes: int | None, missing_bytes: int | None) -> int | None:
    return None if room_bytes is None or missing_bytes is None else room_bytes - missing_bytes


def _end_of_room(room: Room, least: int, most: int) -> int:
    """About the largest size from ``least`` to ``most`` that leaves room; ``least - 1`` if none does.

    Room shrinks almost linearly as sizes grow. So the next size to try is the zero of the line through the last two
    sizes. It is at most four times the largest size that left room, because much larger sizes may take long to trace.
    """
    low, high = least - 1, most + 1
    tried: list[tuple[int, int | None]] = []
    while high - low > 1:
        size = (_zero(*tried[-2:]) if 1 < len(tried) <= LEAPS else None) or (low + high) // 2
        if tried and size == low:
            break
        size = max(low + 1, min(size, 4 * low, high - 1)) if tried else least
        left = room(size)
        low, high = (low, size) if left is None or left < 0 else (size, high)
        tried.append((size, left))
    return low


def _zero(first: tuple[int, int | None], second: tuple[int, int | None]) -> int | None:
    """The zero of the line through two sizes and their room, rounded down; None if room does not shrink."""
    (smaller, more), (larger, less) = sorted((first, second))
    if more is None or less is None or more <= less:
        return None
    return larger + less * (larger - smaller) // (more - less)
