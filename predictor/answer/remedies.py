"""Remedies: changes of a workload that does not fit, each predicted and judged on the workload's GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from typing import Any

from predictor.answer import cautions, changes, largest_size
from predictor.answer.changes import Change
from predictor.answer.largest_size import Simulated, Tried
from predictor.answer.prediction import Prediction, Remedy
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.progress import Progress, Tell, silent
from predictor.engine.tape import MOST_BUFFERS, TooManyBuffers
from predictor.formula import learned, store
from predictor.jobs import dispatch
from predictor.jobs.survival import FITS, Peaks
from predictor.workload.value_sources import OwnChange
from predictor.workload.workload import Workload

MOST_SECONDS = 0.5
"""Once something fits on the same GPUs and the search has taken about so long, no further family of changes is
simulated, unless all are asked for."""
LATEST_SECONDS = 0.7
"""Once something fits there and the search has taken about so long, no other change is even composed, unless all are
asked for."""
LONGEST_SECONDS = 2.0
"""Where nothing fits, the search ends after about so long, unless all are asked for."""
PREPARED_PER_SECOND = 200
"""About how many changed workloads are prepared, or refused, in a second."""
FEW_RANKS, RANKS_PER_SECOND = 64, 700
"""About how many ranks whose memory differs are composed and compared in a second; few take no time that counts."""
OWN_PER_SECOND, ZERO3_PER_SECOND, TRACED_PER_SECOND = 1_000_000, 260_000, 35_000_000
"""About how many events of an engine's own, of ZeRO-3's own, and traced ones are composed in a second."""
ENOUGH = 3
"""Remedies that fit; after these the search ends, unless all are asked for."""
TOGETHER = Change("several changes together", {}, "")
"""Stands for all changes that were not made together."""
TRAINS_LESS = {"recipe", "lora", "quantization"}
"""Keys of changes with which other weights train. They come after those that only train otherwise."""
MOST_TOGETHER = 4
"""Changes that are made together at most."""
MOST_BASES = 4
"""Changes to each of which one more is added."""


@dataclass(frozen=True)
class _Trial:
    """Changes that were tried.

    Attributes:
        asked: the workload that is to be changed.
        made: the changes, in the order in which they were made.
        keys: the workload's changed keys.
        own: the changes as the user would type them; None if there are no such words.
        tried: the job of the changed workload; None if it was not predicted.
        has_sizes: whether the last change is one of several sizes.
    """

    asked: Workload
    made: tuple[Change, ...]
    keys: Mapping[str, Any]
    own: OwnChange | None = None
    tried: Tried | None = None
    why_not: str = ""
    needs_trace: bool = False
    needs_time: bool = False
    has_sizes: bool = False

    @property
    def fits(self) -> bool:
        """Whether it surely fits."""
        return self.peaks is not None

    @property
    def peaks(self) -> Peaks | None:
        """The peaks over all ranks; None if they do not surely fit."""
        return None if self.tried is None or self.tried.room_bytes < 0 else self.tried.peaks

    @property
    def fits_here(self) -> bool:
        """Whether it surely fits, on the same GPUs."""
        return self.fits and not any(change.is_hardware for change in self.made)

    @property
    def keeps_training(self) -> bool:
        """Whether the same model trains in the same way, on the same GPUs."""
        return all(change.keeps_training for change in self.made)

    def helps(self, start: _Trial) -> bool:
        """Whether it may be a remedy: of a job that fits, only what fits and lowers its reserved memory, if known."""
        if not start.peaks or not self.tried:
            return True
        return self.peaks is not None and self.peaks.reserved_bytes < start.peaks.reserved_bytes

    def is_outdone(self, others: Sequence[_Trial]) -> bool:
        """Whether it shrinks the global batch, though as large a micro batch fits, or may, with more accumulation."""
        return self.made[-1].differs == changes.SMALLER and any(
            (other.fits or other.needs_trace) and other.keeps_training
            and other.keys.get(changes.BATCH, 0) >= self.keys[changes.BATCH] for other in others)

    @property
    def room_bytes(self) -> int | None:
        """Bytes that tensors leave of what PyTorch certainly gets; None if it was not predicted."""
        return None if self.tried is None else self.tried.room_bytes

    @property
    def shortage_bytes(self) -> int | None:
        """As in :class:`Tried`; 0 if it was not predicted."""
        return 0 if self.tried is None else self.tried.shortage_bytes

    @property
    def peak_requested_bytes(self) -> int | None:
        """Peak of the rank that requests the most; None if it was not predicted."""
        return None if self.tried is None else self.tried.job.sure_bytes - self.tried.room_bytes

    def for_later(self) -> _Trial:
        """The same without a verdict, because that takes too long."""
        return replace(self, tried=None, why_not="it takes longer than the others", needs_time=True)

    def remedy(self) -> Remedy:
        """The result for the user."""
        made = self.made if self.own else [changes.named(self.asked, change) for change in self.made]
        remedy = Remedy(
            tuple(change.text for change in made), self.keys, tuple(change.costs for change in self.made),
            tuple(change.differs for change in self.made if change.differs),
            None if self.peak_requested_bytes is None else self.fits, self.peak_requested_bytes,
            why_not=self.why_not, needs_trace=self.needs_trace, needs_time=self.needs_time,
            room_bytes=self.room_bytes)
        if self.own:
            remedy = replace(remedy, own_words=self.own.text, where=self.own.where)
        if self.tried and self.peaks:
            job, reserved = self.tried.job, self.tried.reserved
            remedy = replace(
                remedy, peak_allocated_bytes=self.peaks.allocated_bytes, peak_reserved_bytes=reserved.bytes,
                peak_reserved_bytes_high=reserved.high,
                cautions=cautions.cautions(job, FITS, reserved))
        return remedy


def with_remedies(prediction: Prediction, workload: Workload, *, every: bool = False, trace: bool = False,
                  progress: Progress | None = None, tell: Tell = silent) -> Prediction:
    """The prediction with its remedies, if the workload does not surely fit or ``every`` change is asked for.

    Arguments are those of :func:`remedies`.

    The worst batch of a dataset has no remedies yet, because a change can make another batch the worst. Nor has paged
    serving that has no room for one sequence: its verdict names the setting that cures it. Of unequal GPUs, the
    remedies are for the one where the job fits worst, and leave the GPUs as they are.

    Raises:
        InputError: as :func:`remedies`.
    """
    wanted = every or (workload.capacity is not None and prediction.verdict != FITS)
    if prediction.samples is not None or prediction.has_no_room_for_pages or not wanted:
        return prediction
    workload = workload.replace(gpu=prediction.gpus[0].gpu) if prediction.gpus else workload
    found = remedies(workload, every=every, trace=trace, progress=progress, tell=tell)
    return replace(prediction, remedies=tuple(
        remedy for remedy in found if not (prediction.gpus and "gpu" in remedy.keys)))


def remedies(workload: Workload, *, every: bool = False, trace: bool = False,
             progress: Progress | None = None, tell: Tell = silent) -> tuple[Remedy, ...]:
    """Judges changes of a workload on its GPU. Those that keep training the same come first.

    Of the changes of one family, such as smaller batches, the first that fits is returned, or else the last. If few
    single changes that keep training the same fit, others are made together. Of a job that fits, only what lowers its
    reserved memory is returned.

    Args:
        every: judge all changes. Otherwise the search ends after :data:`ENOUGH` changes that fit, and what would take
            longer (:data:`MOST_SECONDS`) is returned without a verdict.
        trace: trace models where that is needed. Otherwise changes that need a trace are returned without a verdict.
        progress: wraps the shapes that are traced.
        tell: receives each change that is tried, in words.

    Raises:
        InputError: the workload cannot be predicted, or names no GPU.
    """
    if workload.capacity is None:
        raise InputError("remedies need a GPU: add --gpu NAME or --capacity-bytes SIZE")
    trials, looked_at = list[_Trial](), set[str]()
    with store.existing_only(not trace):
        before = Simulated(longest_seconds=math.inf if every else LONGEST_SECONDS, tell=tell)
        start = _Trial(workload, (), {}, tried=Tried.of(dispatch.prepare(workload, progress), before))
        for trial in _singles(start, progress, quick=not every and not trace):
            looked_at.add(trial.made[-1].text)
            trials += [] if trial.is_outdone(trials) else [trial]
            if not every and sum(trial.fits for trial in trials) >= ENOUGH:
                break
        rest = [family for family in _families(start) if looked_at.isdisjoint(change.text for change in family)]
        if sum(trial.fits and trial.keeps_training for trial in trials) < ENOUGH:
            trials += _together(start, trials, progress, every=every)
        trials += [_untried(start, _stands_for(start, family)).for_later() for family in rest]
    ordered = sorted(trials, key=lambda trial: (
        any(change.differs for change in trial.made), any(change.is_hardware for change in trial.made),
        not trial.keys.keys().isdisjoint(TRAINS_LESS)))
    return tuple(trial.remedy() for trial in ordered if trial.helps(start))


def _singles(start: _Trial, progress: Progress | None, *, quick: bool = False,
             fitting: Sequence[Change] = ()) -> Iterator[_Trial]:
    """One more change after those already made, of each family.

    Args:
        quick: leave out what takes longer.
        fitting: changes that fit alone; of their families only lesser changes are worth others beside them, and no
            other GPUs if one of them is a GPU, or if ``quick``.
    """
    assert start.tried is not None  # only predicted trials are continued
    families = [lesser for family in _families(start)
                if (lesser := _lesser(family, fitting)) and not _is_made(family[0], start.keys)]
    if any(change.is_hardware for change in fitting) or quick and fitting:
        families = [family for family in families if not family[0].is_hardware]
    any_fits = False
    for family in families:
        if quick and fitting and start.tried.before.seconds >= MOST_SECONDS:
            return
        if start.tried.before.is_over:
            yield _untried(start, _stands_for(start, family)).for_later()
        elif quick and any_fits and start.tried.before.seconds >= MOST_SECONDS:
            yield _not_simulated(start, family, progress)
        else:
            trial = replace(_first_that_fits(start, family, progress), has_sizes=len(family) > 1)
            any_fits |= trial.fits_here
            yield trial


def _families(start: _Trial) -> list[tuple[Change, ...]]:
    """The families of changes of the job that was tried."""
    assert start.tried is not None  # only predicted trials are continued
    workload = start.tried.job.workload
    families = changes.of(workload)
    if learned.is_learned_file(workload.model):  # only its allocator is free, and its shape where it varied
        families = [family for family in families if family[0].keys.keys() <= {"allocator_conf"}]
    return families


def _is_made(change: Change, keys: Mapping[str, Any]) -> bool:
    """Whether the changed keys hold a change of the same kind. A DeepSpeed config holds several kinds."""
    return change.keys.keys() <= keys.keys() and "deepspeed" not in change.keys


def _lesser(family: tuple[Change, ...], fitting: Sequence[Change]) -> tuple[Change, ...]:
    """The changes of a family before the first that fits alone."""
    alone = {change.text for change in fitting}
    return tuple(takewhile(lambda change: change.text not in alone, family))


def _not_simulated(start: _Trial, family: Sequence[Change], progress: Progress | None) -> _Trial:
    """The change that stands for a family if that needs no simulation; else one without a verdict. Another engine is
    not even composed."""
    assert start.tried is not None  # only predicted trials are continued
    change = _stands_for(start, family)
    if change.is_other_engine:
        return _untried(start, change).for_later()
    is_late = start.tried.before.seconds >= LATEST_SECONDS
    trial = _untried(start, change) if is_late else _try(start, change, progress)
    if trial.why_not or (trial.room_bytes or 0) < 0:
        return trial
    return trial.for_later()


def _stands_for(start: _Trial, family: Sequence[Change]) -> Change:
    """The change that is named for a family that is not searched: the smallest GPU that may do, or the last change."""
    return (*_large_enough(start, family)[:1], family[-1])[0]


def _large_enough(start: _Trial, family: Sequence[Change]) -> Sequence[Change]:
    """The GPUs of a family that have room for the job's tensors, where these take as much as here; none of a family of
    other changes."""
    assert start.tried is not None  # only predicted trials are continued
    if "gpu" not in family[0].keys:
        return ()
    enough = start.tried.job.gpu.capacity_bytes - min(start.tried.room_bytes, 0)
    return [change for change in family if gpus.find(change.keys["gpu"]).capacity_bytes >= enough]


def _smallest_gpu(start: _Trial, family: Sequence[Change], progress: Progress | None) -> _Trial:
    """The smallest GPU of a family that fits; if none does, the smallest that may and needs a trace, or the largest."""
    untraced = None
    for change in _large_enough(start, family):
        trial = _try(start, change, progress)
        if trial.fits:
            return trial
        untraced = untraced or (trial if trial.needs_trace else None)
    return untraced or _try(start, family[-1], progress)


def _first_that_fits(start: _Trial, family: Sequence[Change], progress: Progress | None) -> _Trial:
    """The first change of a family that fits; if none does, the last that needs a trace, or else the last predicted."""
    @cache
    def trial(size: int) -> _Trial:
        """Sizes count from the last change, which lowers the peak the most, to the first."""
        return _try(start, family[len(family) - size], progress)

    if "gpu" in family[0].keys:
        return _smallest_gpu(start, family, progress)
    least = next((size for size in range(1, len(family)) if not trial(size).why_not), len(family))
    fitting = largest_size.largest(lambda size: trial(size).room_bytes, lambda size: trial(size).fits,
                                   least, len(family), lambda size: trial(size).shortage_bytes)
    if fitting >= least:
        return trial(fitting)
    return next((trial(size) for size in range(1, least) if trial(size).needs_trace), trial(least))


def _untried(start: _Trial, change: Change) -> _Trial:
    """One more change, not predicted yet. A framework that has words for all changes decides further keys by them."""
    made = (*start.made, change)
    keys, own = changes.said(start.asked, {key: item for one in made for key, item in one.keys.items()})
    if own is None:
        keys, own = changes.said(start.asked, {**start.keys, **change.keys})
    return _Trial(start.asked, made, keys, own)


def _try(start: _Trial, change: Change, progress: Progress | None) -> _Trial:
    """A workload with one more change, not simulated yet; without a verdict if the search has taken too long."""
    assert start.tried is not None  # only predicted trials are continued
    untried, before = _untried(start, change), start.tried.before
    if before.is_over:
        return untried.for_later()
    before.tell(", ".join(made.text for made in untried.made))
    before.seconds += 1 / PREPARED_PER_SECOND
    try:
        refusal = "" if untried.own or start.asked.source is None else start.asked.source.refusal(change.keys)
        if refusal:
            return replace(untried, why_not=refusal)
        workload = start.tried.job.workload.replace(**untried.keys)
        if workload not in before.tried:  # the same changes may be made in another order
            tried = before.tried[workload] = Tried.of(dispatch.prepare(workload, progress), before)
            own = tried.events - tried.job.traced_events
            before.seconds += tried.job.traced_events / TRACED_PER_SECOND + own / (
                ZERO3_PER_SECOND if workload.zero_stage == 3 else OWN_PER_SECOND)
            ranks = len(tried.job.different_ranks(tried.job.sure_bytes))
            before.seconds += max(0, ranks - FEW_RANKS) / RANKS_PER_SECOND
        return replace(untried, tried=before.tried[workload])
    except store.NotTraced:
        return replace(untried, why_not="it has no formula yet", needs_trace=True)
    except InputError as error:
        if isinstance(error, TooManyBuffers):
            before.seconds += 2 * MOST_BUFFERS / OWN_PER_SECOND  # each was allocated and freed
        return replace(untried, why_not=str(error))


def _together(start: _Trial, singles: Sequence[_Trial], progress: Progress | None, *, every: bool) -> list[_Trial]:
    """Changes that fit together, or come closest.

    In each round one more change is added to each of the first few of those before. A change that makes training
    different is made only where no other helps. Of several remedies that change the same keys, the first is returned.
    If none fits, the next round adds to the changes that lowered the requested peak the most. Changes that include
    those of a remedy that fits without the others are not tried.

    Unless every change is asked for, others are made together only as long as an answer may take once something fits,
    and where something fits alone, on the same GPUs and on top of what keeps training the same.

    Args:
        singles: what each change leads to alone.
        every: as for :func:`remedies`.
    """
    assert start.tried is not None  # only predicted trials are continued
    fitting = [single.made[0] for single in singles if single.fits]
    quick = not every and any(single.fits_here for single in singles)
    best, rows = start, [single for single in singles if not single.fits]
    for _ in range(MOST_TOGETHER - 1):
        bases = [row for row in _bases(rows, best) if row.keeps_training or not quick]
        lowest = _lowest(bases, best)
        if lowest is None:
            break
        best, rows, found = lowest, [], list[_Trial]()
        chosen = bases[:MOST_BASES]
        for base in chosen if lowest in chosen else [*chosen[:-1], lowest]:
            if start.tried.before.is_over or (quick or found and not every) and \
                    start.tried.before.seconds >= MOST_SECONDS:
                return found or [_Trial(start.asked, (TOGETHER,), {}).for_later()] * (len(fitting) < ENOUGH)
            for row in _singles(base, progress, quick=quick, fitting=fitting):
                if row.fits:
                    if all(row.keys.keys() != other.keys.keys() for other in found):
                        found.append(row)
                    break
                if base is lowest:
                    rows.append(row)
        if found:
            return found
    return [best] if len(best.made) > 1 and not quick else []


def _bases(rows: Sequence[_Trial], before: _Trial) -> list[_Trial]:
    """The trials that may be continued: with no higher requested peak than before, on the same hardware.

    Changes that keep training the same come first, and of these the ones without a size. A size that does not fit alone
    is the extreme one, and better chosen after the others.
    """
    may = [row for row in rows if row.peak_requested_bytes is not None and not row.made[-1].is_hardware
           and row.peak_requested_bytes <= (before.peak_requested_bytes or 0)]
    return sorted(may, key=lambda row: (bool(row.made[-1].differs), row.has_sizes, row.peak_requested_bytes))


def _lowest(rows: Sequence[_Trial], before: _Trial) -> _Trial | None:
    """The trial with the lowest requested peak, if it is lower than before."""
    lower = [row for row in rows if (row.peak_requested_bytes or 0) < (before.peak_requested_bytes or 0)]
    return min(lower, key=lambda row: (bool(row.made[-1].differs), row.peak_requested_bytes), default=None)
