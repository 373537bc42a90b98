"""Simulates a course on one rank: its steps, one after another, through one allocator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np

from predictor.allocator.simulate import Device
from predictor.course.evaluation import EvaluationRuns
from predictor.course.player import Player, Shortage
from predictor.course.runs import Batch, BatchRuns
from predictor.course.sampler import Step

COLUMNS = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "requested_bytes", "allocated_bytes",
           "reserved_bytes", "retries", "granted", "returned")


@dataclass(frozen=True, eq=False)
class StepsMemory:
    """Memory of each step of a rank: ``int64[steps]`` each, in bytes. The first row is start-up.

    Attributes:
        peak_requested_bytes, peak_allocated_bytes, peak_reserved_bytes: the most during the step.
        requested_bytes, allocated_bytes, reserved_bytes: after the step.
        retries: how often the allocator has released its whole cache since start-up, because the driver refused.
        granted, returned: segments (or ranges of pages) that the driver has granted and got back since start-up.
    """

    peak_requested_bytes: np.ndarray
    peak_allocated_bytes: np.ndarray
    peak_reserved_bytes: np.ndarray
    requested_bytes: np.ndarray
    allocated_bytes: np.ndarray
    reserved_bytes: np.ndarray
    retries: np.ndarray
    granted: np.ndarray
    returned: np.ndarray

    @property
    def idle_bytes(self) -> np.ndarray:
        """What PyTorch reserved in a step beyond what blocks needed at once."""
        return self.peak_reserved_bytes - self.peak_allocated_bytes


@dataclass(frozen=True)
class OutOfMemoryAt:
    """The first allocation of a course that fails.

    Attributes:
        step, micro_step: from 1 on; 0 in start-up.
        samples: indices of the batch's samples, from 0 on.
        evaluated: number of the batch in the evaluation after the step, from 1 on; 0 in training. ``samples`` are then
            those of the evaluation.
    """

    rank: int
    step: int
    micro_step: int
    epoch: int
    samples: tuple[int, ...]
    batch: Batch | None
    shortage: Shortage
    evaluated: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """By which failures of ranks are compared: step, micro-step, and batch of the evaluation."""
        return self.step, self.micro_step, self.evaluated


@dataclass(frozen=True, eq=False)
class RankCourse:
    """The course of one rank. ``unmatched`` as in :class:`predictor.course.player.Player`."""

    rank: int
    memory: StepsMemory
    failure: OutOfMemoryAt | None
    unmatched: int


def simulate(runs: BatchRuns, steps: Iterable[Step], rank: int, device: Device, *,
             empty_cache_steps: int | None = None, held: int | None = 1, evaluation: EvaluationRuns | None = None
             ) -> RankCourse:
    """Plays the steps of a rank until they end, or one runs out of memory.

    Args:
        empty_cache_steps: transformers' ``torch_empty_cache_steps``: before backward the cache is emptied in each step
            after a multiple of so many (5.17, trainer.py, ``training_step``).
        held: as for :class:`predictor.course.player.Player`.
        evaluation: what is evaluated between steps; it counts to the step before. None for nothing.
    """
    playing = _Playing(runs, rank, device, Player(device, held), empty_cache_steps, evaluation)
    rows: list[list[int]] = []
    failure = None
    waiting = iter(steps)
    first = next(waiting)
    for number, step in enumerate(chain((None, first), waiting)):
        failure = playing.step(number, step) if step else playing.start(first)
        rows.append([getattr(playing.player.state(), name) for name in COLUMNS])
        playing.player.reset_peaks()
        if failure:
            break
    columns = np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS)).T
    return RankCourse(rank, StepsMemory(*columns), failure, playing.player.unmatched)


@dataclass(frozen=True)
class _Playing:
    """The arguments of :func:`simulate`, and the player. Each method plays, up to a failure."""

    runs: BatchRuns
    rank: int
    device: Device
    player: Player
    empty_cache_steps: int | None
    evaluation: EvaluationRuns | None

    def _samples(self, step: Step) -> list[np.ndarray]:
        """The samples of the rank's batches in a step."""
        place = self.runs.place(self.rank)
        return [of_ranks[place % len(of_ranks)] for of_ranks in step.batches]

    def start(self, first: Step) -> OutOfMemoryAt | None:
        """Start-up."""
        run, sizes = self.runs.of(self.runs.batch(self._samples(first)[0]), self.rank, self.device.limit_bytes)
        shortage = self.player.play(run.start, sizes)
        return OutOfMemoryAt(self.rank, 0, 0, 0, (), None, shortage) if shortage else None

    def step(self, number: int, step: Step) -> OutOfMemoryAt | None:
        """The micro-steps of a step, its optimizer step, and the evaluation that follows."""
        drawn = self._samples(step)
        empties = bool(self.empty_cache_steps) and (number - 1) % (self.empty_cache_steps or 1) == 0
        for index, indices in enumerate(drawn):
            batch = self.runs.batch(indices)
            run, sizes = self.runs.of(batch, self.rank, self.device.limit_bytes)
            parts = [run.micro_step(number, index, len(drawn))]
            if index == len(drawn) - 1:
                parts.append(run.optimizer_step(number))
            for part in parts:
                shortage = self.player.play(part, sizes, run.first_only(part), empties_cache=empties)
                if shortage:
                    return OutOfMemoryAt(self.rank, number, index + 1, step.epoch, tuple(indices.tolist()), batch,
                                         shortage)
        return self._evaluation(number, step) if self.evaluation and number % self.evaluation.every == 0 else None

    def _evaluation(self, number: int, step: Step) -> OutOfMemoryAt | None:
        assert self.evaluation is not None  # the caller looks
        for index, indices in enumerate(self.evaluation.of_rank(self.rank)):
            batch = self.evaluation.batch(indices)
            shortage = self.player.play(*self.evaluation.part(batch), evaluates=True)
            if shortage:
                return OutOfMemoryAt(self.rank, number, len(step.batches), step.epoch, tuple(indices.tolist()), batch,
                                     shortage, index + 1)
        self.player.free_evaluated()
        return None
