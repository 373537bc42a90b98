"""Evaluations between the steps of a course: every so many steps all batches of a dataset, one forward each.

Hugging Face's Trainer runs them without gradients, and keeps only the loss (transformers 5.17, trainer.py,
``evaluation_loop`` and ``prediction_step``). What training holds stays on the GPU meanwhile, its last batch too. Each
batch of the evaluation is freed when the next one is there, and the last one at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from predictor.common.errors import InputError
from predictor.common.progress import Progress
from predictor.course.parts import INPUT, Part
from predictor.course.runs import Batch, BatchRuns
from predictor.course.sampler import Sampler, Sampling
from predictor.events.events import FACTORS, EventType, Factor
from predictor.events.micro_step import MicroStep
from predictor.jobs import training_job
from predictor.jobs.training_job import Job
from predictor.model.request import Request
from predictor.workload.samples import Samples
from predictor.workload.workload import Workload

BATCH = 8
"""The Trainer's default of ``per_device_eval_batch_size``."""


@dataclass(frozen=True, eq=False)
class Evaluating:
    """When a course evaluates, and on what.

    Attributes:
        every: optimizer steps between two evaluations, the Trainer's ``eval_steps``.
        samples: the dataset; its batches are taken in its order.
        size: samples of a batch on each rank, ``per_device_eval_batch_size``.
    """

    every: int
    samples: Samples
    size: int = BATCH

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(f"eval_steps {self.every}: must be at least 1")


class EvaluationRuns(BatchRuns):
    """The evaluation's batches of each rank, and the events of their forwards.

    Args:
        workload: that of the training.
        packing: as of the training's :class:`Sampling`.
        progress: as for :class:`BatchRuns`.

    Raises:
        InputError: a batch cannot be predicted.
    """

    def __init__(self, workload: Workload, evaluating: Evaluating, packing: str = "none",
                 progress: Progress | None = None) -> None:
        super().__init__(workload, evaluating.samples, progress)
        self.every = evaluating.every
        sampler = sampler_of(workload, evaluating, packing)
        self._turns = [step.batches[0] for step in sampler.steps(sampler.steps_per_epoch)]
        self._parts: dict[MicroStep, Part] = {}
        self.check(self.batch(indices) for turn in self._turns for indices in turn)

    def __len__(self) -> int:
        """Batches of an evaluation on each rank."""
        return len(self._turns)

    def of_rank(self, rank: int) -> list[np.ndarray]:
        """The batches of a rank in one evaluation, as indices of samples."""
        return [turn[self.place(rank) % len(turn)] for turn in self._turns]

    def part(self, batch: Batch) -> tuple[Part, Callable[[np.ndarray], np.ndarray]]:
        """The forward of a batch, and the function that gives the bytes of rows of its buffers."""
        kind, job = self._found(batch)
        micro = job.formula.micro
        if micro not in self._parts:
            self._parts[micro] = forward_of(micro)
        return self._parts[micro], self.sizes(micro.events, kind, job, batch)

    def _other_ranks_wait(self, with_images: Batch, of_text: Batch) -> bool:
        """No: nothing gets a gradient, and with sharded weights evaluations are refused."""
        return False

    def _job_of(self, request: Request) -> Job:
        return training_job.job_of_evaluation(request, self._progress)

    def _is_missing(self, request: Request) -> bool:
        return training_job.needs_trace(request, evaluation=True)


def sampler_of(workload: Workload, evaluating: Evaluating, packing: str) -> Sampler:
    """Gives an evaluation's batches; those of an epoch are those of one evaluation. Arguments as above."""
    return replace(Sampler.of(evaluating.samples.tokens, workload, Sampling("sequential", packing=packing)),
                   size=evaluating.size, micro_steps=1)


def forward_of(micro: MicroStep) -> Part:
    """A traced forward as a part, which leaves its batch only.

    The workspaces of libraries that the trace holds exist since training.
    """
    events, stays = micro.events, micro.persistent
    is_input = events.buffers.factor[stays] == FACTORS.index(Factor.INPUTS)
    inputs = np.isin(events.buffer, stays[is_input]) & (events.kind == EventType.ALLOCATE)
    own = ~np.isin(events.buffer, stays)
    origin = np.concatenate([np.flatnonzero(inputs), np.flatnonzero(own)]).astype(np.int32)
    rows = events.buffer[origin]
    count = int(inputs.sum())
    buffers = np.concatenate([np.unique(rows[count:]), rows[:count]]).astype(np.int32)
    number = np.empty(len(events.buffers), dtype=np.int32)
    number[buffers] = np.arange(len(buffers))
    return Part(events, 0, np.ascontiguousarray(events.kind[origin]), origin, number[rows], buffers, (INPUT,) * count,
                (False,) * count, (), (), count, 0)
