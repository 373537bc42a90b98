"""The largest load that fits even where a caution comes true: with each loop and framework that it may name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from predictor.answer import largest_size
from predictor.answer.cautions import of_framework
from predictor.answer.largest_size import Attempt, Tried, attempts
from predictor.answer.loop_difference import loops, with_loop
from predictor.answer.prediction import Bound, Caution
from predictor.common.errors import InputError
from predictor.jobs.training_job import Job


@dataclass(frozen=True)
class Sizes:
    """The sizes of a search: samples of a batch, or tokens of a sequence.

    Attributes:
        least: the smallest that is predicted.
        given: that of the workload.
        unit: multiples of it are tried.
    """

    least: int
    given: int
    unit: int = 1


def largest_below(attempt: Attempt, size: int, sizes: Sizes) -> int:
    """The largest size below one with a caution that fits even then; 0 if none does.

    Args:
        attempt: tries a size with the loop that is assumed. No size needs a trace.
    """
    tried = attempt(size)
    assert isinstance(tried, Tried)  # it fits
    trials = [attempt, *(attempts(partial(_with_loop, attempt, dict(loop))) for loop in loops(tried.job))]
    cautious = _Cautious(tuple(trials), sizes.unit)
    least, most = -(-sizes.least // sizes.unit), -(-size // sizes.unit) - 1
    given = sizes.given // sizes.unit
    if least < given <= most and cautious.shortage_bytes(given) is None and cautious.fits(given):
        least = given
    found = largest_size.largest(cautious.room_bytes, cautious.fits, least, most, cautious.shortage_bytes)
    return sizes.unit * found if found >= least else int(sizes.unit == 1 < least and cautious.fits(1))


@dataclass(frozen=True)
class _Cautious:
    """The same size with several loops.

    Attributes:
        trials: tries a size with one loop each, the one that is assumed first.
        unit: sizes are multiples of it, and given in it.
    """

    trials: tuple[Attempt, ...]
    unit: int

    def _jobs(self, units: int) -> list[Tried] | None:
        """The jobs of a size; None if one is not predicted."""
        jobs = [trial(self.unit * units) for trial in self.trials]
        return None if any(isinstance(job, InputError) for job in jobs) else [
            job for job in jobs if isinstance(job, Tried)]

    def fits(self, units: int) -> bool:
        """Whether a size surely fits with each loop, and with what a framework may take."""
        jobs = self._jobs(units)
        return jobs is not None and all(job.room_bytes >= 0 and job.fits for job in reversed(jobs)) and _framework(
            jobs[0], jobs[0].reserved) is None

    def room_bytes(self, units: int) -> int | None:
        """An upper bound on what a size leaves free; None if it is not predicted."""
        jobs = self._jobs(units)
        return None if jobs is None else min(job.room_bytes for job in jobs)

    def shortage_bytes(self, units: int) -> int | None:
        """About the bytes that a size lacks; None if it probably fits."""
        jobs = self._jobs(units)
        if jobs is None:
            return 0
        lacking = [job.shortage_bytes for job in jobs if job.shortage_bytes is not None]
        if lacking:
            return max(lacking)
        caution = _framework(jobs[0], jobs[0].likely_reserved)
        return None if caution is None else caution.more_bytes - caution.free_bytes


def _framework(tried: Tried, reserved: Bound) -> Caution | None:
    """What a framework may take beyond a job that surely fits; None if that is not enough to change it."""
    job = tried.job
    return next(of_framework(job, job.workload.source, reserved), None)


def _with_loop(attempt: Attempt, loop: dict[str, str], size: int) -> Job:
    tried = attempt(size)
    if isinstance(tried, InputError):
        raise tried
    other = with_loop(tried.job, **loop)
    assert other is not None  # the loop is assumed at every size
    return other
