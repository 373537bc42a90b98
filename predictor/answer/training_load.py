"""The maximum load of a GPU in training: the largest batch and the longest sequence that fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from predictor.allocator.settings import EXPANDABLE, with_expandable_segments
from predictor.answer import cautious_load, largest_size
from predictor.answer.cautions import cautions
from predictor.answer.cautious_load import Sizes
from predictor.answer.largest_size import (
    STEP_TOKENS,
    Attempt,
    Tried,
    attempts,
    fits,
    least_predicted,
    may_fit_too,
    not_predicted,
    reason,
)
from predictor.answer.prediction import Caution, MaximumLoad
from predictor.common.errors import InputError
from predictor.common.progress import Tell, silent
from predictor.jobs.learned_job import LearnedJob
from predictor.jobs.survival import FITS
from predictor.jobs.training_job import Job
from predictor.workload.limits import MOST_SAMPLES, MOST_TOKENS
from predictor.workload.samples import Samples
from predictor.workload.workload import Workload


class Load(NamedTuple):
    """A load that was searched.

    Attributes:
        size: the largest that surely fits; 0 if none does.
        limits: sentences about what is not predicted or was not tried.
        caution: what the user's loop or framework may take beyond it, where it is enough to change that it fits.
        cautious: the largest that was found to fit even then; 0 if none was, None without a caution.
    """

    size: int
    limits: tuple[str, ...]
    caution: Caution | None = None
    cautious: int | None = None


DECIDE_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu")
"""Keys of a DeepSpeed config that fix the batch."""


@dataclass(frozen=True)
class Search:
    """A search around one workload.

    Attributes:
        workload: the workload, with a capacity. Each size is searched alone: all other keys keep their values.
        job: its job. With samples that is the job of their worst batch.
        prepare: prepares the job of another workload. The second argument says whether all of them have one sequence
            length.
        samples: the dataset that batches are drawn from; None without one.
        tell: receives each size that is tried.
    """

    workload: Workload
    job: Job
    prepare: Callable[[Workload, bool], Job]
    samples: Samples | None = None
    tell: Tell = silent

    def result(self) -> MaximumLoad:
        """The largest batch, also with expandable segments, and the longest sequence."""
        batch, expandable, length = self.largest_batch(), None, None
        conf = with_expandable_segments(str(self.job.setup.allocator))
        if conf:
            expandable = self._largest_batch(self.workload.replace(allocator_conf=conf),
                                             f"Larger batches with {EXPANDABLE}")
            expandable = expandable._replace(limits=() if expandable.size == batch.size else expandable.limits)
        if self.job.shape.sequence:
            length = self._longest_sequence()
        names = (field.name for field in fields(MaximumLoad))
        searched = {name: load for name, load in zip(names, (batch, expandable, length)) if load}
        return MaximumLoad(batch.size, expandable and expandable.size, length and length.size,
                           tuple(limit for load in searched.values() for limit in load.limits),
                           {name: load.caution for name, load in searched.items() if load.caution},
                           {name: load.cautious for name, load in searched.items() if load.cautious is not None})

    def largest_batch(self) -> Load:
        """The largest batch that fits."""
        return self._largest_batch(self.workload, "Larger batches")

    def _largest_batch(self, workload: Workload, larger: str) -> Load:
        """The largest batch that fits.

        If the given batch does not fit, the search begins at the smallest power of 2 that is predicted. A batch of one
        sample comes last, because it allocates unlike all others, so that it needs a formula of its own.

        Args:
            larger: name of larger batches at the start of a sentence.
        """
        free, given = _with_free_batch(workload), workload.per_device_train_batch_size
        attempt = attempts(lambda size: self.prepare(free.replace(per_device_train_batch_size=size), True), self.tell,
                           "batch")
        least = given if fits(attempt, given) else least_predicted(attempt, 2, given)
        found = largest_size.largest_that_fits(attempt, least, MOST_SAMPLES)
        size = found.size or int(fits(attempt, 1))
        if not size:
            return Load(0, not_predicted("Smaller batches", reason(attempt, max(least - 1, 1))))
        return _load(attempt, size, Sizes(least_predicted(attempt, 2, given), given), (
            *_less_sure("Batch", attempt, size), *may_fit_too(f"{larger} of", found),
            *not_predicted(larger, reason(attempt, size + 1))))

    def _longest_sequence(self) -> Load:
        """The longest sequence that fits at the given batch."""
        attempt = attempts(lambda tokens: self.prepare(self.workload.replace(sequence_length=tokens), False),
                           self.tell, "sequence length")
        facts = self.job.formula.facts
        assert self.workload.sequence_length is not None  # the model takes tokens
        most = min(facts.positions or MOST_TOKENS, MOST_TOKENS // self.workload.per_device_train_batch_size)
        images = -(-self.job.shape.images // self.job.shape.batch)
        if self.samples is not None:
            most, images = min(most, int(self.samples.tokens.max())), int(self.samples.images.max())
        sizes = Sizes(facts.room(images) + images + 1, min(self.workload.sequence_length, most), STEP_TOKENS)
        longest = largest_size.longest_that_fits(  # the least has text between images
            attempt, sizes.given if fits(attempt, sizes.given) else sizes.least, most)
        found = longest.size
        if self.samples is not None and found == int(self.samples.tokens.max()):
            return _load(attempt, found, sizes, (f"No sample has more than {found:,} tokens.",))
        if not found:
            return Load(0, not_predicted("Shorter sequences", reason(attempt, max(sizes.given - 1, 1))))
        configured = self.job.request.config.positions if self.job.request.config else None
        beyond = () if found <= (configured or found) else (
            f"The model's configuration says {configured:,} positions: longer sequences train, but are new to it.",)
        return _load(attempt, found, sizes, (
            *beyond, *_less_sure("Sequence length", attempt, found), *may_fit_too("Lengths of", longest),
            *not_predicted("Longer sequences", reason(attempt, found + 1))))


def _load(attempt: Attempt, size: int, sizes: Sizes, limits: tuple[str, ...]) -> Load:
    """A load that fits, with its caution and, where no size needs a trace, the largest that fits even then."""
    caution, tried = _caution(attempt, size), attempt(size)
    if caution is None or isinstance(tried, InputError) or not tried.is_quick:
        return Load(size, limits, caution)
    return Load(size, limits, caution, cautious_load.largest_below(attempt, size, sizes))


def _caution(attempt: Attempt, size: int) -> Caution | None:
    """What the user's loop or framework may take beyond a load that fits, where it is enough to change that."""
    tried = attempt(size)
    assert isinstance(tried, Tried)  # it fits
    return next(iter(cautions(tried.job, FITS, tried.reserved)), None)


def _less_sure(what: str, attempt: Attempt, size: int) -> tuple[str, ...]:
    """Sentences on how a size is outside of those that a learned formula was recorded at; empty for other formulas."""
    tried = attempt(size)
    if isinstance(tried, InputError) or not isinstance(tried.job, LearnedJob):
        return ()
    return tuple(f"{what} {size:,} is less sure ({note})." for note in tried.job.beyond)


def _with_free_batch(workload: Workload) -> Workload:
    """The workload without what its DeepSpeed config says about the batch. Accumulation steps stay."""
    config: Mapping[str, Any] = workload.deepspeed or {}
    if not any(config.get(key, "auto") != "auto" for key in DECIDE_BATCH):
        return workload
    return workload.replace(deepspeed={key: value for key, value in config.items() if key not in DECIDE_BATCH},
                            per_device_train_batch_size=workload.per_device_train_batch_size,
                            gradient_accumulation_steps=workload.gradient_accumulation_steps)
