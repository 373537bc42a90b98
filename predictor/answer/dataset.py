"""Batches of a dataset, padded to their longest sample: the job of the worst batch, and how likely others fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from predictor.answer import random_batches
from predictor.answer.prediction import Chances
from predictor.common.errors import InputError
from predictor.common.progress import Progress
from predictor.common.suggestions import quoted
from predictor.common.value_types import thaw
from predictor.events import timeline
from predictor.events.sizes import Shape
from predictor.formula import learned
from predictor.formula.formula_key import check_pictures, regimes_at
from predictor.jobs import training_job
from predictor.model import models
from predictor.model.model_config import Modality
from predictor.model.request import Request
from predictor.workload import compared
from predictor.workload.compared import Line
from predictor.workload.samples import Samples
from predictor.workload.workload import Workload

MOST_IN_A_BATCH = 512
"""Samples; the binomial coefficients of larger batches overflow floats."""
VERDICTS = ("fits", "uncertain", "does_not_fit")


@dataclass(frozen=True, eq=False)
class Dataset:
    """A workload whose batches are drawn from samples. Longer samples are truncated to its ``sequence_length``."""

    NOTES = ("what the allocator's cache keeps of batches of other shapes",
             "batches that are not drawn at random: group_by_length puts the longest together")

    workload: Workload
    samples: Samples
    progress: Progress | None = None

    @classmethod
    def of(cls, workload: Workload, samples: Samples, progress: Progress | None = None) -> Dataset:
        """The dataset of a workload. If samples differ in length, padding is masked unless the workload says otherwise.

        Raises:
            InputError: there are fewer samples than a batch has, or the workload sets ``images_per_sample``.
        """
        if samples.pictures:
            raise InputError("samples: they tell the sizes of pictures, and the worst batch of such samples is not "
                             "predicted: add --steps or --epochs, which simulates the batches that are drawn")
        _check_size(workload.per_device_train_batch_size, samples)
        workload, samples = as_the_model_takes_them(workload, samples)
        varied = workload.per_device_train_batch_size > 1 and samples.tokens.min() < samples.tokens.max()
        return cls(workload.fill(padding="right") if varied else workload, samples, progress)

    @property
    def size(self) -> int:
        """Number of samples in a batch."""
        return self.workload.per_device_train_batch_size

    def job(self, tokens: int, images: int) -> training_job.Job:
        """The job of a batch.

        Args:
            tokens: tokens of each sample, padding included.
            images: images of all samples together.
        """
        workload = self.workload.replace(sequence_length=tokens).fill(padding=self.workload.padding)
        shape = Shape(self.size, tokens, max(images, self.least_images))
        return training_job.job_of_request(Request.of(workload, shape), self.progress)

    @property
    def least_images(self) -> int:
        """The smallest number of images that a batch is predicted with, where samples have any: one or none would need
        a formula of its own, which the worst batch rarely has."""
        takes_images = models.find(self.workload.model).kind is Modality.IMAGE_TEXT
        return min(self.size, 2) if takes_images and self.samples.images.any() else 0

    def worst(self) -> training_job.Job:
        """The job of the batch with the highest requested peak.

        Raises:
            InputError: as :func:`check_samples`, or as :func:`predictor.jobs.dispatch.prepare`.
        """
        jobs = [self.job(*batch) for batch in random_batches.largest(self.samples, self.size)]
        facts = jobs[0].formula.facts
        check_samples(self.samples, facts.tokens_per_image, facts.positions)
        if not all(job.formula.regime.is_wide for job in jobs):
            raise InputError(f"samples: {self.workload.model} handles images or tokens one by one, so that each "
                             "batch would have to be traced: predict the largest batches without samples")
        return max(jobs, key=lambda job: job.run(None).peak)

    def chances(self, worst: training_job.Job) -> Chances:
        """Memory that random batches need and, if the workload has a capacity, how likely a batch fits.

        Args:
            worst: the job of the worst batch.
        """
        lengths = np.unique(self.samples.tokens)
        largest = dict(random_batches.largest(self.samples, self.size))
        most_images = max(largest.values())

        def below(first: np.ndarray) -> float:
            """Probability that a batch is shorter than ``lengths[first[images]]``, for its number of images."""
            return random_batches.probability(self.samples, self.size, np.append(0, lengths)[first])

        peaks = self._peaks(lengths, most_images)
        values = np.unique(peaks)

        def quantile(share: float) -> int:
            return int(values[bisect_left(values, share, key=lambda peak: below(_first(peaks > peak)))])

        highest = peaks[min(worst.shape.images, most_images), np.searchsorted(lengths, worst.shape.sequence)]
        verdicts = None
        if self.workload.capacity is not None:
            judge = cache(lambda tokens, images: self.job(tokens, images).judge().verdict)
            fits, may_fit = (below(_falling(lengths, most_images, lambda *batch, bad=bad: judge(*batch) in bad))
                             for bad in (VERDICTS[1:], VERDICTS[2:]))
            verdicts = dict(zip(VERDICTS, (fits, may_fit - fits, 1 - may_fit)))
        return Chances(
            samples=len(self.samples), tokens=worst.shape.sequence, images=largest[worst.shape.sequence],
            answered_images=worst.shape.images, varied=bool(np.ptp(self.samples.tokens)),
            probability=1 - below(_first(peaks >= highest)), median_peak_requested_bytes=quantile(0.5),
            percentile_99_peak_requested_bytes=quantile(0.99), verdicts=verdicts)

    def _peaks(self, lengths: np.ndarray, most_images: int) -> np.ndarray:
        """Requested peak in bytes, without a profile: ``int64[images, lengths]``, for 0 to ``most_images`` images."""
        plain = replace(self, workload=self.workload.replace(profile="none").fill(padding=self.workload.padding))
        images = np.maximum(np.arange(most_images + 1), self.least_images)
        peaks = np.empty((len(images), len(lengths)), dtype=np.int64)
        for few in np.unique(np.minimum(images, 2)).tolist():  # a regime has one image or more
            rows = np.minimum(images, 2) == few
            shapes = [Shape(self.size, tokens, few) for tokens in lengths.tolist()]
            regimes = regimes_at(Request.of(self.workload, shapes[0]), shapes)
            for regime in set(regimes):
                columns = np.array([other == regime for other in regimes])
                job = plain.job(int(lengths[columns.argmax()]), few)
                form = timeline.closed_form(job.run(None).events, at_least=job.lowest())
                image, tokens = np.meshgrid(images[rows], lengths[columns], indexing="ij")
                flat = form.peaks(np.full(tokens.size, self.size), tokens.ravel(), image.ravel(), job.gpu)
                peaks[np.ix_(rows, columns)] = flat.reshape(tokens.shape)
        return peaks


def _first(reached: np.ndarray) -> np.ndarray:
    """Index of the first true value in each row; the row's length if all are false."""
    return np.where(reached.any(axis=1), reached.argmax(axis=1), reached.shape[1])


def _falling(lengths: np.ndarray, most_images: int, reached: Callable[[int, int], bool]) -> np.ndarray:
    """Index of the first length at which ``reached(tokens, images)`` is true, for 0 to ``most_images`` images.

    If it is true, it is also true for more tokens or more images, so the indices never rise and halving finds them.
    """

    @cache
    def first(images: int) -> int:
        return bisect_left(lengths, True, key=lambda tokens: reached(int(tokens), images))

    def between(low: int, high: int) -> list[int]:
        """The indices for ``low`` to ``high - 1`` images."""
        if first(low) == first(high) or high - low == 1:
            return [first(low)] * (high - low)
        middle = (low + high) // 2
        return between(low, middle) + between(middle, high)

    return np.array([*(between(0, most_images) if most_images else ()), first(most_images)])


def as_the_model_takes_them(workload: Workload, samples: Samples, line: Line = compared.SAMPLES
                            ) -> tuple[Workload, Samples]:
    """The samples without what the model does not take, truncated to the workload's sequence length.

    If the workload has no sequence length, it becomes that of the longest sample.

    Args:
        line: what was compared of that which the samples are for.

    Raises:
        InputError: the workload contradicts the samples.
    """
    _check_workload(workload, line)
    samples = _of_model(samples, workload)
    if workload.sequence_length is None:
        workload = workload.fill(sequence_length=int(samples.tokens.max()))
    assert workload.sequence_length is not None  # just filled
    return workload, samples.cut(workload.sequence_length)


def check_samples(samples: Samples, tokens_per_image: int, positions: int | None, option: str = "samples") -> None:
    """Checks that no sample has more tokens than the model has positions, and that each has room for its images and a
    token of text.

    Args:
        samples: truncated to the workload's sequence length. Where they tell the sizes of pictures, their batches are
            checked for room (:class:`predictor.course.runs.BatchRuns`).
        tokens_per_image, positions: the model's; None if its positions have no end.
        option: names their file.

    Raises:
        InputError: one has not; the message names the first.
    """
    if positions is not None and samples.tokens.max() > positions:
        longer = int(np.argmax(samples.tokens > positions))
        raise InputError(f"{option}: sample {longer + 1:,} has {samples.tokens[longer]:,} tokens: the model knows "
                         f"{positions:,} positions only: give sequence_length {positions}, to which longer samples are "
                         "truncated")
    least = samples.images * tokens_per_image + 1
    wrong = np.flatnonzero((samples.tokens < least) & (not samples.pictures))
    if len(wrong):
        first = wrong[0]
        assumed = "; a file without a column of images has one image a sample" if (samples.images == 1).all() else ""
        raise InputError(f"{option}: sample {first + 1:,}: {samples.tokens[first]:,} tokens have no room for "
                         f"{samples.images[first]} image(s) of {tokens_per_image}: count the tokens of its images too, "
                         f"and let sequence_length leave {least[first]:,}{assumed}")


def _check_workload(workload: Workload, line: Line) -> None:
    """Rejects a workload that contradicts the samples, or that is not predicted together with them."""
    for key in line.unseen(vars(workload)):
        raise InputError(line.says.get(key) or f"{key} {quoted(thaw(getattr(workload, key)), 80)}: not "
                         "predicted with samples yet: leave one of them out")
    if learned.is_learned_file(workload.model):
        raise InputError(f"model {quoted(workload.model, 200)}: a learned formula predicts one shape, and does not "
                         "take samples yet: leave them out, and give the tokens of the longest batch")
    if "images_per_sample" not in workload.filled_in:
        raise InputError("images_per_sample: the samples say how many images each has; leave it out")
    if len(workload.image_sizes) > 1:
        raise InputError(f"image_size {workload.image_size}: samples do not say which size each has: give one size")


def _check_size(size: int, samples: Samples) -> None:
    """Rejects a batch that is larger than the dataset, or too large to compute how likely other batches are."""
    if size > len(samples):
        raise InputError(f"per_device_train_batch_size {size}: there are only {len(samples):,} samples: give at most "
                         "as many, or --steps")
    if size > MOST_IN_A_BATCH:
        raise InputError(f"per_device_train_batch_size {size}: at most {MOST_IN_A_BATCH} with samples")


def _of_model(samples: Samples, workload: Workload) -> Samples:
    """The samples as the model takes them: without the image of each sample if it takes only text."""
    config = models.find(workload.model)
    check_pictures(workload, config)
    if config.kind is Modality.IMAGE:
        raise InputError(f"samples: {config.name} takes no tokens, so all its batches need the same memory: leave "
                         "samples out")
    if config.kind is Modality.TEXT:
        if samples.images.max() > 1:
            raise InputError(f"samples: some have images, which {config.name} does not take")
        samples = replace(samples, images=np.zeros_like(samples.images), pictures=())
    return samples
