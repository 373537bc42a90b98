"""Remedies: changes of a workload that does not fit, each predicted and judged on the workload's GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from predictor.answer import changes, largest_size
from predictor.answer.changes import Change
from predictor.answer.prediction import Prediction, Remedy
from predictor.common.errors import InputError
from predictor.common.progress import Progress
from predictor.formula import learned, store
from predictor.jobs import dispatch
from predictor.jobs.survival import FITS, Peaks
from predictor.jobs.training_job import Job
from predictor.workload.value_sources import OwnChange
from predictor.workload.workload import Workload

ENOUGH = 3
"""Remedies that fit; after these the search ends, unless all are asked for."""
MOST_TOGETHER = 4
"""Changes that are made together at most."""


@dataclass(frozen=True)
class _Trial:
    """Changes that were tried.

    Attributes:
        keys: the workload's changed keys.
        own: the changes in the words of what was read; None if there are none.
        job: the job of the changed workload; None if it was not predicted.
        peak_requested_bytes: of the rank that requests the most; None if it was not predicted.
        room_bytes: bytes that this leaves of what PyTorch certainly gets; None if it was not predicted.
    """

    made: tuple[Change, ...]
    keys: Mapping[str, Any]
    own: OwnChange | None = None
    job: Job | None = None
    peak_requested_bytes: int | None = None
    room_bytes: int | None = None
    why_not: str = ""
    needs_trace: bool = False

    @property
    def fits(self) -> bool:
        return self.peaks is not None

    @cached_property
    def peaks(self) -> Peaks | None:
        """The peaks of all ranks, which are simulated at the first call; None if they do not surely fit."""
        return None if self.job is None or self.room_bytes is None or self.room_bytes < 0 else self.job.fitting()

    def remedy(self) -> Remedy:
        """The result for the user."""
        remedy = Remedy(
            tuple(change.text for change in self.made), self.keys, tuple(change.costs for change in self.made),
            tuple(change.differs for change in self.made if change.differs),
            None if self.peak_requested_bytes is None else self.fits, self.peak_requested_bytes,
            why_not=self.why_not, needs_trace=self.needs_trace, room_bytes=self.room_bytes)
        if self.own:
            remedy = replace(remedy, own_words=self.own.text, where=self.own.where)
        if self.peaks:
            remedy = replace(remedy, peak_allocated_bytes=self.peaks.allocated_bytes,
                             peak_reserved_bytes=self.peaks.reserved_bytes)
        return remedy


def with_remedies(prediction: Prediction, workload: Workload, *, every: bool = False, trace: bool = False,
                  progress: Progress | None = None) -> Prediction:
    """The prediction with its remedies, if the workload does not surely fit or ``every`` change is asked for.

    Arguments are those of :func:`remedies`.

    The worst batch of a dataset has no remedies yet, because a change can make another batch the worst.

    Raises:
        InputError: as :func:`remedies`.
    """
    wanted = every or (workload.capacity is not None and prediction.verdict != FITS)
    if prediction.samples is not None or not wanted:
        return prediction
    return replace(prediction, remedies=remedies(workload, every=every, trace=trace, progress=progress))


def remedies(workload: Workload, *, every: bool = False, trace: bool = False,
             progress: Progress | None = None) -> tuple[Remedy, ...]:
    """Judges changes of a workload on its GPU. Those that keep training the same come first.

    Of the changes of one family, such as smaller batches, the first that fits is returned, or else the last. If no
    single change fits, several are made together.

    Args:
        every: judge all changes. Otherwise the search ends after :data:`ENOUGH` changes that fit.
        trace: trace models where that is needed. Otherwise changes that need a trace are returned without a verdict.
        progress: wraps the shapes that are traced.

    Raises:
        InputError: the workload cannot be predicted, or names no GPU.
    """
    if workload.capacity is None:
        raise InputError("remedies need a GPU: add --gpu NAME or --capacity-bytes SIZE")
    trials: list[_Trial] = []
    with store.existing_only(not trace):
        job = dispatch.prepare(workload, progress)
        start = _Trial((), {}, None, job, job.run(job.margin.limits(workload.capacity)[0]).peak)
        for trial in _singles(start, progress):
            trials.append(trial)
            if not every and sum(trial.fits for trial in trials) >= ENOUGH:
                break
        if not any(trial.fits for trial in trials):
            together = _together(start, trials, progress)
            trials += [together] if together else []
    return tuple(trial.remedy() for trial in trials)


def _singles(start: _Trial, progress: Progress | None) -> Iterator[_Trial]:
    """One more change after those already made, of each family."""
    assert start.job is not None  # only predicted trials are continued
    workload = start.job.workload
    families = changes.of(workload)
    if learned.is_learned_file(workload.model):  # only its allocator is free, and its shape where it varied
        families = [family for family in families if family[0].keys.keys() <= {"allocator_conf"}]
    for family in families:
        yield _first_that_fits(start, family, progress)


def _first_that_fits(start: _Trial, family: Sequence[Change], progress: Progress | None) -> _Trial:
    """The first change of a family that fits; if none does, one that needs a trace, or else the last predicted one."""
    @cache
    def trial(size: int) -> _Trial:
        """Sizes count from the last change, which lowers the peak the most, to the first."""
        return _try(start, family[len(family) - size], progress)

    least = next((size for size in range(1, len(family)) if not trial(size).why_not), len(family))
    fitting = largest_size.largest(lambda size: trial(size).room_bytes, lambda size: trial(size).fits,
                                   least, len(family))
    if fitting >= least:
        return trial(fitting)
    return next((trial(size) for size in range(least - 1, 0, -1) if trial(size).needs_trace), trial(least))


def _try(start: _Trial, change: Change, progress: Progress | None) -> _Trial:
    """A workload with one more change, not simulated yet."""
    assert start.job is not None  # only predicted trials are continued
    workload = start.job.workload
    keys, own = changes.said(workload, {**start.keys, **change.keys})
    untried = _Trial((*start.made, change if own else changes.named(workload, change)), keys, own)
    try:
        job = dispatch.prepare(workload.replace(**keys), progress)
        surely, _ = job.margin.limits(job.workload.capacity or 0)
        peak = job.run(surely).peak
        return replace(untried, job=job, peak_requested_bytes=peak, room_bytes=surely - peak)
    except store.NotTraced:
        return replace(untried, why_not="it has no formula yet", needs_trace=True)
    except InputError as error:
        return replace(untried, why_not=str(error))


def _together(start: _Trial, singles: Sequence[_Trial], progress: Progress | None) -> _Trial | None:
    """Changes that fit together, or come closest: in each round the change that lowers the requested peak the most.

    A change that makes training different is made only where no other lowers the peak. None if at most one change
    lowers it.
    """
    best, rows = start, list(singles)
    for _ in range(MOST_TOGETHER - 1):
        lowest = _lowest(rows, best)
        if lowest is None:
            break
        best, rows = lowest, []
        for row in _singles(lowest, progress):
            if row.fits:
                return row
            rows.append(row)
    return best if len(best.made) > 1 else None


def _lowest(rows: Sequence[_Trial], before: _Trial) -> _Trial | None:
    """The trial with the lowest requested peak, if it is lower than before. Other hardware is not combined."""
    lower = [row for row in rows if row.peak_requested_bytes is not None and not row.made[-1].is_hardware
             and row.peak_requested_bytes < (before.peak_requested_bytes or 0)]
    return min(lower, key=lambda row: (bool(row.made[-1].differs), row.peak_requested_bytes), default=None)
