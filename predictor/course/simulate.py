"""Simulates a course on one rank: its steps, one after another, through one allocator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictor.allocator.simulate import Device
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
    """

    rank: int
    step: int
    micro_step: int
    epoch: int
    samples: tuple[int, ...]
    batch: Batch | None
    shortage: Shortage

    @property
    def order(self) -> tuple[int, int]:
        """By which failures of ranks are compared: step and micro-step."""
        return self.step, self.micro_step


@dataclass(frozen=True, eq=False)
class RankCourse:
    """The course of one rank. ``unmatched`` as in :class:`predictor.course.player.Player`."""

    rank: int
    memory: StepsMemory
    failure: OutOfMemoryAt | None
    unmatched: int


def simulate(runs: BatchRuns, steps: Sequence[Step], rank: int, device: Device, *,
             empty_cache_steps: int | None = None, held: int | None = 1) -> RankCourse:
    """Plays the steps of a rank until they end, or one runs out of memory.

    Args:
        empty_cache_steps: transformers' ``torch_empty_cache_steps``: before backward the cache is emptied in each step
            after a multiple of so many (5.17, trainer.py, ``training_step``).
        held: as for :class:`predictor.course.player.Player`.
    """
    player = Player(device, held)
    rows: list[list[int]] = []
    place = runs.place(rank)
    batches = [[runs.batch(indices[place % len(indices)]) for indices in step.batches] for step in steps]

    def result(failure: OutOfMemoryAt | None = None) -> RankCourse:
        columns = np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS)).T
        return RankCourse(rank, StepsMemory(*columns), failure, player.unmatched)

    def note() -> None:
        state = player.state()
        rows.append([getattr(state, name) for name in COLUMNS])
        player.reset_peaks()

    run, sizes = runs.of(batches[0][0], rank, device.limit_bytes)
    shortage = player.play(run.start, sizes)
    note()
    if shortage:
        return result(OutOfMemoryAt(rank, 0, 0, 0, (), None, shortage))
    for step, of_step in zip(steps, batches):
        number, count = len(rows), len(of_step)
        empties = bool(empty_cache_steps) and (number - 1) % (empty_cache_steps or 1) == 0
        for index, batch in enumerate(of_step):
            run, sizes = runs.of(batch, rank, device.limit_bytes)
            parts = [run.micro_step(number, index, count)]
            if index == count - 1:
                parts.append(run.optimizer_step(number))
            for part in parts:
                shortage = player.play(part, sizes, run.first_only(part), empties_cache=empties)
                if shortage:
                    note()
                    drawn = step.batches[index][place % len(step.batches[index])]
                    return result(OutOfMemoryAt(rank, number, index + 1, step.epoch, tuple(drawn.tolist()), batch,
                                                shortage))
        note()
    return result()
