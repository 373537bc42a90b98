"""The composed runs of a course: one for each kind of batch and rank, cut into parts, with sizes for each batch.

Batches of one kind have one list of events, and their sizes follow from their shape. Batches are of one kind if their
shapes share a regime, and they are padded alike, and their pictures have the same sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from predictor.common.errors import InputError
from predictor.common.progress import Progress
from predictor.course.parts import CutRun
from predictor.events.composed_run import sizes_at
from predictor.events.events import EventList
from predictor.events.regimes import Regime
from predictor.events.regimes import Rows as RowClass
from predictor.events.sizes import Shape
from predictor.formula.formula_key import regimes_at
from predictor.jobs import training_job
from predictor.jobs.training_job import Job
from predictor.model import models
from predictor.model.equal_pictures import of_one_kind
from predictor.model.request import Request
from predictor.profile import corrections
from predictor.workload.engines import ENGINES, name_of
from predictor.workload.samples import Samples, Sizes
from predictor.workload.workload import Workload

MOST_FORMULAS = 100
"""Most formulas that a course traces. Each takes seconds to minutes, and is kept for later courses."""


@dataclass(frozen=True)
class Batch:
    """What decides the memory of a micro-batch.

    Attributes:
        shape: samples, tokens of the longest sample (of packed samples the mean), images of all samples.
        padding: ``right``: a mask hides padding, because samples differ in length; ``packed``: they share one row.
        pictures: sizes of the images, where the model takes several; one size if all are treated the same.
    """

    shape: Shape
    padding: str
    pictures: Sizes = ()

    @property
    def row_tokens(self) -> int:
        """Tokens of each row, padding included."""
        return int(self.shape.sequence * (self.shape.batch if self.padding == "packed" else 1))


class BatchRuns:
    """The runs of a workload's batches.

    Args:
        workload: its batch is the largest of the course; its sequence length cuts longer samples.
        samples: tokens and images of each sample; images of text models are left out.
        progress: shows the shapes that are traced.

    Attributes:
        adds_images: whether a batch of text alone was given images.
    """

    def __init__(self, workload: Workload, samples: Samples, progress: Progress | None = None) -> None:
        self.workload, self.samples = workload, samples
        self._config, self._progress = models.find(workload.model), progress
        self.adds_images = False
        self._waits: bool | None = None
        self._requests: dict[Hashable, Request] = {}
        self._jobs: dict[Hashable, Job] = {}
        self._known: dict[Batch, tuple[Hashable, Job]] = {}
        self._runs: dict[Hashable, CutRun] = {}
        self._traced: dict[Hashable, np.ndarray] = {}
        self._constants: dict[EventList, np.ndarray] = {}

    @property
    def tokens_per_image(self) -> int:
        """Tokens that an image fills; 0 if no sample has one."""
        known = max((job.formula.facts.tokens_per_image for job in self._jobs.values()), default=0)
        if known or self._stand_in is None:
            return known
        alone = np.array([self._stand_in])
        return self.job(self._of(self.samples.tokens[alone], alone)).formula.facts.tokens_per_image

    @cached_property
    def _stand_in(self) -> int | None:
        """The sample with images that has the fewest tokens; None if no sample has images."""
        with_images = np.flatnonzero(self.samples.images)
        return int(with_images[np.argmin(self.samples.tokens[with_images])]) if len(with_images) else None

    def batch(self, indices: np.ndarray) -> Batch:
        """The batch of these samples.

        If other ranks would wait for a batch of text alone, it gets images, as training programs add them: two of its
        samples get those of the shortest sample that has some, and no fewer tokens than it has.
        """
        tokens = self.samples.tokens[indices]
        plain = self._of(tokens, indices)
        if plain.shape.images or self._stand_in is None:
            return plain
        longest = np.argsort(tokens)[-2:]
        tokens[longest] = np.maximum(tokens[longest], self.samples.tokens[self._stand_in])
        with_images = self._of(tokens, np.full(len(longest), self._stand_in))
        if self._waits is None:
            self._waits = self._other_ranks_wait(with_images, plain)
        self.adds_images |= self._waits
        return with_images if self._waits else plain

    def _other_ranks_wait(self, with_images: Batch, of_text: Batch) -> bool:
        """Whether ranks whose batches have images wait for one whose batch has none: all ranks gather sharded weights
        together, and they reduce together the gradients of weights that only images train."""
        if not ENGINES[name_of(self.workload.engine, self.workload.zero_stage)].whole:
            return True
        trained, by_text = ({*self.job(batch).formula.micro.ready[:, 1].tolist()} for batch in (with_images, of_text))
        return trained != by_text

    def _of(self, tokens: np.ndarray, pictured: np.ndarray) -> Batch:
        """The batch of samples of so many tokens, with the images of the samples ``pictured``."""
        images = int(self.samples.images[pictured].sum())
        pictures: Sizes = ()
        if self.samples.pictures:
            pictures = of_one_kind(self._config, sum((self.samples.pictures[index] for index in pictured.tolist()), ()))
        if self.workload.padding == "packed":
            return Batch(Shape.packed(len(tokens), int(tokens.sum()), images), "packed", pictures)
        return Batch(Shape(len(tokens), int(tokens.max()), images), "right" if np.ptp(tokens) else "none", pictures)

    def check(self, batches: Iterable[Batch]) -> None:
        """Finds the formulas of all batches, and traces those that are missing.

        Raises:
            InputError: a batch cannot be predicted, or more than :data:`MOST_FORMULAS` formulas are missing.
        """
        new = [batch for batch in dict.fromkeys(batches) if batch not in self._known]
        kinds: dict[Hashable, Batch] = {}
        for batch in new:
            kinds.setdefault(self._kind(batch), batch)
        missing = sum(self._is_missing(self._request(batch)) for kind, batch in kinds.items() if kind not in self._jobs)
        if missing > MOST_FORMULAS:
            raise InputError(f"samples: their batches are of {missing} kinds whose formulas must be traced, more than "
                             f"{MOST_FORMULAS}: give fewer steps, or image_sizes rounded to fewer sizes")
        for batch in new:
            self.job(batch)

    def job(self, batch: Batch) -> Job:
        """The job of a batch of this kind; its shape may be that of another batch."""
        return self._found(batch)[1]

    def exact_job(self, batch: Batch) -> Job:
        """The job of this batch, at its own shape."""
        return self._job_of(Request.of(self._workload(batch), batch.shape))

    def of(self, batch: Batch, rank: int,
           limit_bytes: int | None) -> tuple[CutRun, Callable[[np.ndarray], np.ndarray]]:
        """The run of a batch on a rank, and the function that gives the bytes of rows of its buffers.

        Args:
            limit_bytes: bytes that PyTorch can reserve, which some engines look at; None for no limit.
        """
        kind, job = self._found(batch)
        key = kind, rank, limit_bytes
        if key not in self._runs:
            self._runs[key] = CutRun(job.composed(limit_bytes, rank), job.formula.micro, job.setup.micro_steps)
        run = self._runs[key]
        return run, self.sizes(run.events, kind, job, batch)

    def sizes(self, events: EventList, kind: Hashable, job: Job, batch: Batch) -> Callable[[np.ndarray], np.ndarray]:
        """The function that gives the bytes of rows of a run's buffers at the shape of a batch."""
        return partial(self._bytes, events, self._rows(events, kind, job, batch.shape),
                       corrections.coefficients(job.profile))

    def place(self, rank: int) -> int:
        """The index of a rank among the data-parallel ranks, which decides its batches."""
        return rank // self.workload.tensor_parallel_size

    # formulas ---------------------------------------------------------------------------------------------------

    def _job_of(self, request: Request) -> Job:
        return training_job.job_of_request(request, self._progress)

    def _is_missing(self, request: Request) -> bool:
        """Whether the formula of a request must be traced."""
        return training_job.needs_trace(request)

    def _found(self, batch: Batch) -> tuple[Hashable, Job]:
        if batch not in self._known:
            kind = self._kind(batch)
            job = self._jobs.get(kind) or self._job_of(self._request(batch))
            self._jobs[kind] = job
            regime = job.formula.regime
            if not regime.is_wide or regime.is_family:  # a formula for this number of images, or this shape alone
                kind = kind, (batch.shape if not isinstance(regime.rows, RowClass) else
                              replace(batch.shape, sequence=0))
                job = self._jobs.get(kind) or self._job_of(self._request(batch))
                self._jobs[kind] = job
            self._check_room(batch, job)
            self._known[batch] = kind, job
        return self._known[batch]

    def _check_room(self, batch: Batch, job: Job) -> None:
        """Checks that pictures of different sizes fit into the rows of their batch. Of one size for all, samples are
        checked one by one (:func:`predictor.answer.dataset.check_samples`)."""
        if not batch.pictures or batch.padding == "packed":
            return
        filled = job.formula.facts.room(math.ceil(batch.shape.images / batch.shape.batch))
        if batch.shape.sequence <= filled:
            raise InputError(f"samples: a batch of {batch.shape.sequence:,} tokens a sample has no room for pictures "
                             f"that fill {filled:,}: count the tokens of pictures too, and let sequence_length leave "
                             f"{filled + 1:,}")

    def _kind(self, batch: Batch) -> Hashable:
        regime: Regime = regimes_at(self._request(batch), [batch.shape])[0]
        return regime, batch.padding, batch.pictures

    def _request(self, batch: Batch) -> Request:
        """The request of a batch. One workload stands for all batches that are padded alike and have equal pictures."""
        key = batch.padding, batch.pictures
        if key not in self._requests:
            self._requests[key] = Request.of(self._workload(batch), batch.shape)
        return self._requests[key].at(batch.shape)

    def _workload(self, batch: Batch) -> Workload:
        """The workload of a batch."""
        sizes = {"image_size": ",".join(f"{height}x{width}" for height, width in batch.pictures)}
        return self.workload.replace(
            sequence_length=math.ceil(batch.shape.sequence), per_device_train_batch_size=batch.shape.batch,
            **(sizes if batch.pictures else {})).fill(padding=batch.padding)

    # sizes ------------------------------------------------------------------------------------------------------

    def _rows(self, events: EventList, kind: Hashable, job: Job, shape: Shape) -> np.ndarray:
        """``int64[rows]``: bytes of every size row of a run at a shape; those of the trace are the same for all ranks.
        """
        traced = self._traced.get((kind, shape))
        if traced is None:
            traced = self._traced[kind, shape] = sizes_at(job.formula.micro.events, shape, job.gpu)
        if events not in self._constants:
            self._constants[events] = events.sizes.coefficients[len(traced):, 0]
        return np.concatenate([traced, self._constants[events]])

    @staticmethod
    def _bytes(events: EventList, row_bytes: np.ndarray, coefficients: tuple[float, ...] | None,
               rows: np.ndarray) -> np.ndarray:
        sizes = row_bytes[events.buffers.size[rows]]
        if coefficients is None:
            return sizes
        return np.rint(np.array(coefficients)[events.buffers.factor[rows]] * sizes).astype(np.int64)
