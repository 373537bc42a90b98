"""Draws the batches of each step and rank as Hugging Face's Trainer does, over one or more epochs.

Sources: transformers 5.17, trainer.py (``_get_train_sampler``, ``train_sampling_strategy``) and trainer_pt_utils.py
(``get_length_grouped_indices``); accelerate 1.15, data_loader.py (``SeedableRandomSampler``, ``BatchSamplerShard``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from predictor.common.errors import InputError
from predictor.common.suggestions import quoted
from predictor.course import packing
from predictor.course.permutation import LARGEST, randperm
from predictor.workload.workload import Workload

STRATEGIES = ("random", "group_by_length", "sequential")
"""Values of transformers' ``train_sampling_strategy``."""
PACKINGS = ("none", "bfd")
"""``none``, and a value of TRL's ``packing_strategy``."""
MOST_GROUPED = 50
"""Most batches of a mega-batch, in which samples are sorted by length."""


@dataclass(frozen=True)
class Sampling:
    """How a trainer draws batches.

    Attributes:
        strategy: one of :data:`STRATEGIES`.
        seed: ``data_seed`` or ``seed`` of the Trainer. Each epoch adds its number to it.
        drop_last: whether samples that do not fill a batch at the end of an epoch are left out.
        longest_first: whether the step with the longest batch of the course is moved to its beginning.
        packing: one of :data:`PACKINGS`: how samples are packed into rows, of which batches are then drawn.
    """

    strategy: str = "random"
    seed: int = 42
    drop_last: bool = False
    longest_first: bool = False
    packing: str = "none"

    def __post_init__(self) -> None:
        if self.packing not in PACKINGS:
            raise InputError(f"packing {quoted(self.packing)}: must be {', '.join(PACKINGS)}")
        if self.strategy not in STRATEGIES:
            raise InputError(f"sampling {quoted(self.strategy)}: must be {', '.join(STRATEGIES)}")

    @property
    def is_random(self) -> bool:
        """Whether another seed draws other batches."""
        return self.strategy != "sequential"


@dataclass(frozen=True, eq=False)
class Step:
    """The batches of one optimizer step.

    Attributes:
        number: from 1 on.
        epoch: from 0 on.
        batches: for each micro-step, the batch of each data-parallel rank, as indices of samples.
    """

    number: int
    epoch: int
    batches: list[list[np.ndarray]]


@dataclass(frozen=True, eq=False)
class Sampler:
    """The batches of a training.

    Attributes:
        lengths: ``int64[samples]``, tokens of each sample.
        size: samples in a batch.
        ranks: data-parallel ranks; each gets its own batches.
        micro_steps: micro-steps of an optimizer step.
        padded: whether batches are padded to their longest sample.
        rows: the samples of each row that is drawn, as indices; None if each sample is drawn on its own.
    """

    lengths: np.ndarray
    size: int
    ranks: int
    micro_steps: int
    sampling: Sampling
    padded: bool = True
    rows: Sequence[np.ndarray] | None = None

    @classmethod
    def of(cls, lengths: np.ndarray, workload: Workload, sampling: Sampling) -> Sampler:
        """The sampler of a training, over samples that are not longer than its sequence length."""
        rows = packing.rows(lengths, workload.sequence_length or 0) if sampling.packing == "bfd" else None
        return cls(lengths, workload.per_device_train_batch_size, workload.data_parallel_size,
                   workload.gradient_accumulation_steps, sampling, workload.padding != "packed", rows)

    @cached_property
    def _drawn_lengths(self) -> np.ndarray:
        """Tokens of what is drawn."""
        return self.lengths if self.rows is None else np.array([self.lengths[row].sum() for row in self.rows])

    def __post_init__(self) -> None:
        if len(self.lengths) >= LARGEST:
            raise InputError(f"samples: {len(self.lengths):,}: at most {LARGEST - 1:,} are drawn")
        if not self.steps_per_epoch:
            raise InputError(f"samples: {len(self.lengths):,} are fewer than the batches of one step have, and "
                             "incomplete ones are dropped")

    @property
    def batches_per_epoch(self) -> int:
        """Batches that each rank gets in an epoch."""
        whole, rest = divmod(len(self._drawn_lengths), self.size)
        batches = whole + (rest > 0 and not self.sampling.drop_last)
        return batches // self.ranks if self.sampling.drop_last else -(-batches // self.ranks)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch; the last may have fewer micro-steps."""
        return -(-self.batches_per_epoch // self.micro_steps)

    def steps(self, count: int) -> list[Step]:
        """The first ``count`` steps."""
        steps = list(islice(self._endless(), count))
        if self.sampling.longest_first:
            longest = max(range(len(steps)), key=lambda index: self._longest(steps[index]))
            first, other = steps[0], steps[longest]
            steps[0] = Step(1, first.epoch, other.batches)
            steps[longest] = Step(other.number, other.epoch, first.batches)
        return steps

    def _longest(self, step: Step) -> int:
        """Tokens of the step's largest batch, padding included."""
        lengths = [self.lengths[batch] for batches in step.batches for batch in batches]
        return max(int(of_batch.max()) * len(of_batch) if self.padded else int(of_batch.sum()) for of_batch in lengths)

    def _endless(self) -> Iterator[Step]:
        number = epoch = 0
        while True:
            batches = self._epoch(epoch)
            for start in range(0, len(batches), self.micro_steps):
                number += 1
                yield Step(number, epoch, [list(map(self._samples, of_ranks))
                                           for of_ranks in batches[start : start + self.micro_steps]])
            epoch += 1

    def _samples(self, batch: np.ndarray) -> np.ndarray:
        """The samples of a batch of rows."""
        return batch if self.rows is None else np.concatenate([self.rows[row] for row in batch.tolist()])

    def _epoch(self, epoch: int) -> list[list[np.ndarray]]:
        """The batches of an epoch: of each turn of the ranks, one for each rank.

        If several ranks do not share the batches evenly, samples from the beginning of the epoch fill up the last turn
        (``even_batches``); a single rank gets a smaller batch.
        """
        order, each = self._order(epoch), self.size * self.ranks
        turns, rest = divmod(len(order), each)
        if rest and not self.sampling.drop_last and self.ranks > 1:
            order, turns, rest = np.concatenate([order, np.resize(order[:each], each - rest)]), turns + 1, 0
        batches = list(order[: turns * each].reshape(turns, self.ranks, self.size))
        result = [list(of_ranks) for of_ranks in batches]
        return result + [[order[turns * each :]]] if rest and not self.sampling.drop_last else result

    def _order(self, epoch: int) -> np.ndarray:
        if self.sampling.strategy == "sequential":
            return np.arange(len(self._drawn_lengths))
        order = randperm(len(self._drawn_lengths), self.sampling.seed + epoch)
        return self._grouped(order) if self.sampling.strategy == "group_by_length" else order

    def _grouped(self, order: np.ndarray) -> np.ndarray:
        """Samples sorted by length within mega-batches, with the longest of all first."""
        size = self.size * self.micro_steps
        mega = size * max(1, min(len(order) // (4 * size), MOST_GROUPED))
        parts = [order[start : start + mega] for start in range(0, len(order), mega)]
        parts = [part[np.argsort(-self._drawn_lengths[part], kind="stable")] for part in parts]
        longest = int(np.argmax([self._drawn_lengths[part[0]] for part in parts]))
        parts[0][0], parts[longest][0] = parts[longest][0], parts[0][0]
        return np.concatenate(parts)
