"""A course over a dataset: reserved memory step by step, the first out-of-memory error, its chance, and what cures it.

    Simulation(workload, samples, Request(steps=1000)).run()
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from predictor.allocator.simulate import Device
from predictor.common.errors import InputError
from predictor.common.progress import Progress, Tell, silent
from predictor.course import cures
from predictor.course.cures import Cure, Setting
from predictor.course.evaluation import Evaluating, EvaluationRuns, sampler_of
from predictor.course.intervals import exact
from predictor.course.runs import Batch, BatchRuns
from predictor.course.sampler import Sampler, Sampling, Step
from predictor.course.simulate import COLUMNS, OutOfMemoryAt, RankCourse, simulate
from predictor.jobs.training_job import Job
from predictor.workload.engines import ENGINES
from predictor.workload.samples import Samples
from predictor.workload.workload import Workload

MOST_RANKS = 16
"""Most ranks of a job that are simulated; of more, an even selection from the first to the last."""
MOST_STEPS = 1_000_000
RANK_STEPS = 25_000
"""Steps of all ranks and seeds together that the default number of seeds stays within: about a minute."""
MOST_CURED = 3
"""Seeds that run out of memory with which a cure is tried."""
MOST_SEEDS, FEWEST_SEEDS = 20, 3
MOST_SEEDS_ASKED = 10_000
LARGEST_SEED = 2**32 - 1
SEED_STRIDE = 1_000
"""Between two seeds; each epoch of a course adds 1 to its seed."""


@dataclass(frozen=True)
class Request:
    """What to simulate.

    Attributes:
        steps: number of optimizer steps; None for ``epochs``.
        epochs: number of epochs, which may be a fraction.
        sampling: how batches are drawn.
        seeds: number of seeds for the chance of an out-of-memory error; None for as many as take about a minute.
        empty_cache_steps: transformers' ``torch_empty_cache_steps``; None for never.
        evaluating: evaluations between the steps; None for none.
    """

    steps: int | None = None
    epochs: float | None = None
    sampling: Sampling = Sampling()
    seeds: int | None = None
    empty_cache_steps: int | None = None
    evaluating: Evaluating | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) is (self.epochs is None):
            raise InputError("a course needs --steps or --epochs, and not both")
        for name, value, most in (("steps", self.steps, MOST_STEPS), ("epochs", self.epochs, MOST_STEPS),
                                  ("seeds", self.seeds, MOST_SEEDS_ASKED),
                                  ("empty_cache_steps", self.empty_cache_steps, MOST_STEPS)):
            if value is not None and not 0 < value <= most:
                raise InputError(f"{name} {value}: must be above 0, and at most {most:,}")
        if not 0 <= self.sampling.seed <= LARGEST_SEED:
            raise InputError(f"seed {self.sampling.seed}: must be from 0 to {LARGEST_SEED}, as transformers' set_seed "
                             "gives it to numpy")
        if self.seeds and not self.sampling.is_random:
            raise InputError(f"seeds {self.seeds}: batches in the file's order are the same with every seed: leave it "
                             "out")


@dataclass(frozen=True)
class Failure:
    """The first allocation that fails in a course.

    Attributes:
        step, micro_step, epoch: from 1 on; step 0 is start-up.
        samples: the batch's samples, as their numbers in the file, from 1 on.
        tokens, images: of the batch: tokens of its longest sample (of packed samples of all), images of all.
        packed: whether the batch's samples share one row.
        requested_bytes: what could not be allocated.
        idle_bytes: what PyTorch had reserved and no block held.
        evaluated: number of the batch in the evaluation after the step, from 1 on; 0 in training. The batch is then one
            of the evaluation.
    """

    rank: int
    step: int
    micro_step: int
    epoch: int
    samples: tuple[int, ...]
    tokens: int
    images: int
    moment: str
    module: str
    operator: str
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    evaluated: int = 0
    packed: bool = False

    @property
    def idle_bytes(self) -> int:
        return self.reserved_bytes - self.allocated_bytes

    @classmethod
    def of(cls, found: OutOfMemoryAt) -> Failure:
        """The failure that a simulation found."""
        shortage, batch = found.shortage, found.batch
        return cls(found.rank, found.step, found.micro_step, found.epoch + 1,
                   tuple(index + 1 for index in found.samples), batch.row_tokens if batch else 0,
                   batch.shape.images if batch else 0, shortage.tag.moment.value, shortage.tag.module,
                   shortage.tag.operator, shortage.requested_bytes, shortage.allocated_bytes, shortage.reserved_bytes,
                   found.evaluated, batch is not None and batch.padding == "packed")


@dataclass(frozen=True)
class Chance:
    """How likely a course runs out of memory.

    Attributes:
        seeds: number of seeds of the sampler that were simulated.
        failed: number of those that ran out of memory.
        low, high: bounds of the probability, with 95 % confidence (the exact interval of Clopper and Pearson).
        failed_at: the step of each failure, in ascending order.
        failed_seeds: the seeds that failed.
    """

    seeds: int
    failed: int
    low: float
    high: float
    failed_at: tuple[int, ...]
    failed_seeds: tuple[int, ...]


@dataclass(frozen=True)
class Trial:
    """The course under a changed setting.

    Attributes:
        setting: the change, as the user would write it.
        failed_at: the step at which it runs out of memory; None if it survives.
        peak_reserved_bytes: the most that a rank reserves.
        calls_per_step: segments (or ranges of pages) that the driver granted or got back, per step of a rank.
        seeds: number of seeds of :attr:`Chance.failed_seeds` that were simulated with it.
        failed: number of those that still run out of memory.
        costs: its other price in words.
    """

    setting: str
    failed_at: int | None
    peak_reserved_bytes: int
    calls_per_step: float
    seeds: int
    failed: int
    costs: str

    @property
    def prevents(self) -> bool:
        """Whether no simulated course runs out of memory with it."""
        return self.failed_at is None and not self.failed


@dataclass(frozen=True, eq=False)
class Course:
    """A simulated course.

    Attributes:
        samples: number of samples in the dataset.
        steps, steps_per_epoch: optimizer steps.
        ranks: the simulated ranks; :attr:`left_out` is the number of others.
        limit_bytes: what PyTorch may reserve; None without a capacity.
        verdict: ``fits``, ``uncertain``, ``does_not_fit``; None without a capacity.
        rank: the rank of the columns: the one that fails first, or else the one that reserves the most.
        columns: for each name of :data:`COLUMNS` the value after start-up and after (or the most during) each step, up
            to the failing one.
        failure: None if no rank runs out of memory.
        chance: None if the GPU is not named, if no seed changes the order of the samples, or if start-up fails.
        trials: other settings; empty if the GPU is not named, if no seed runs out of memory, or if start-up fails.
        caveats: what the course leaves out.
        eval_steps: steps between two evaluations; None if none is simulated.
        eval_batches: batches of an evaluation on each rank.
        adds_images: whether batches of text alone were given images (:meth:`predictor.course.runs.BatchRuns.batch`).
    """

    samples: int
    steps: int
    steps_per_epoch: int
    sampling: Sampling
    empty_cache_steps: int | None
    ranks: tuple[int, ...]
    left_out: int
    limit_bytes: int | None
    verdict: str | None
    rank: int
    columns: dict[str, tuple[int, ...]]
    failure: Failure | None
    calls_per_step: float
    chance: Chance | None = None
    trials: tuple[Trial, ...] = ()
    caveats: tuple[str, ...] = ()
    eval_steps: int | None = None
    eval_batches: int = 0
    adds_images: bool = False

    @property
    def fails_in_training(self) -> bool:
        """Whether a batch of training fails: none of an evaluation, nor start-up."""
        return self.failure is not None and bool(self.failure.samples) and not self.failure.evaluated

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that the rank reserved."""
        return max(self.columns["peak_reserved_bytes"])

    @property
    def peak_allocated_bytes(self) -> int:
        """The most that blocks of the rank held."""
        return max(self.columns["peak_allocated_bytes"])

    @property
    def idle_bytes(self) -> tuple[int, ...]:
        """For each step what PyTorch reserved beyond what blocks held at most."""
        return tuple(np.subtract(self.columns["peak_reserved_bytes"], self.columns["peak_allocated_bytes"]).tolist())

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        document = asdict(replace(self, columns={}, failure=None)) | {
            "peak_allocated_bytes": self.peak_allocated_bytes, "peak_reserved_bytes": self.peak_reserved_bytes,
            "columns": {name: list(values) for name, values in self.columns.items()} | {
                "idle_bytes": list(self.idle_bytes)},
            "failure": self.failure and asdict(self.failure) | {"samples": list(self.failure.samples),
                                                                "idle_bytes": self.failure.idle_bytes}}
        return document


class Simulation:
    """The courses of one workload over one dataset, under several seeds and settings.

    Args:
        workload: its sequence length cuts longer samples.
        samples: as the model takes them.
        progress: shows the shapes that are traced.
        tell: receives a line about what is simulated.

    Raises:
        InputError: a batch cannot be predicted.
    """

    def __init__(self, workload: Workload, samples: Samples, request: Request, progress: Progress | None = None,
                 tell: Tell = silent) -> None:
        self._workload, self._samples, self._request, self._tell = workload, samples, request, tell
        self._progress = progress
        self._runs = BatchRuns(workload, samples, progress)
        self._sampler = Sampler.of(samples.tokens, workload, request.sampling)
        self.steps_per_epoch = self._sampler.steps_per_epoch
        self.steps = request.steps or max(1, math.ceil((request.epochs or 0) * self.steps_per_epoch))
        if self.steps > MOST_STEPS:
            raise InputError(f"epochs {request.epochs}: are {self.steps:,} steps, more than {MOST_STEPS:,}: give fewer")
        self._check_evaluated(request.evaluating)
        self._evaluations: dict[int, EvaluationRuns] = {}
        eval_size = request.evaluating.size if request.evaluating else None
        self._evaluation = self._in_batches_of(eval_size)
        self._drawn: dict[Sampling, list[Step]] = {}
        first = self._runs.batch(self.drawn(request.sampling)[0].batches[0][0])
        self.job: Job = self._runs.job(first)
        different = self.job.different_ranks() if workload.rank != "worst" else list(range(self.job.setup.world_size))
        if workload.rank != "worst":
            different = [int(workload.rank)]
        self._ranks = different if len(different) <= MOST_RANKS else [
            different[place * (len(different) - 1) // (MOST_RANKS - 1)] for place in range(MOST_RANKS)]
        self._left_out = len(different) - len(self._ranks)
        self._setting = Setting(workload.allocator_conf or "", request.empty_cache_steps, request.sampling, eval_size)

    def _check_evaluated(self, evaluating: Evaluating | None) -> None:
        """Checks that all evaluations together have few enough batches.

        Raises:
            InputError: they have too many.
        """
        if evaluating is None or evaluating.every > self.steps:
            return
        of_one = sampler_of(self._workload, evaluating, self._request.sampling.packing).steps_per_epoch
        if (evaluated := self.steps // evaluating.every * of_one) > MOST_STEPS:
            raise InputError(f"eval_steps: {evaluated:,} batches are evaluated, more than {MOST_STEPS:,}: give fewer "
                             "steps, or fewer samples to evaluate")

    @property
    def tokens_per_image(self) -> int:
        """Tokens that an image of training fills; 0 if no sample has one."""
        return self._runs.tokens_per_image

    @property
    def eval_tokens_per_image(self) -> int:
        """Tokens that an image of the evaluations fills; 0 if none is evaluated."""
        return self._evaluation.tokens_per_image if self._evaluation else 0

    @property
    def positions(self) -> int | None:
        """The longest sequence that the model takes; None if there is none."""
        return self.job.formula.facts.positions

    def heaviest(self, course: Course) -> Job:
        """The job of the training batch of a course's rank that fails, or else of that which requests the most memory.

        Of a course with evaluations, whose requests the columns hold too, it is the one with the most tokens.
        """
        steps, place = self.drawn(self._request.sampling), self._runs.place(course.rank)
        if course.failure and course.fails_in_training:
            return self._runs.exact_job(self._runs.batch(np.array(course.failure.samples) - 1))
        if self._evaluation is None:
            highest = max(1, int(np.argmax(course.columns["peak_requested_bytes"])))
            steps = steps[highest - 1 : highest]
        batches = [self._runs.batch(of_ranks[place % len(of_ranks)]) for step in steps for of_ranks in step.batches]
        return self._runs.exact_job(max(batches, key=lambda batch: (batch.shape.batch * batch.shape.sequence,
                                                                    batch.shape.images)))

    def in_loop(self, loop: Mapping[str, str]) -> Simulation:
        """The same course in another training loop, given by the workload's keys ``keep_outputs`` and ``zero_grad``."""
        self._tell("the loop with " + ", ".join(f"{key} {value}" for key, value in loop.items()))
        return Simulation(self._workload.replace(**loop), self._samples, self._request, self._progress, self._tell)

    def ends(self, limit_bytes: int | None, held: int = 1) -> RankCourse:
        """The course of the rank that decides how it ends, as :meth:`worst` finds it.

        Args:
            limit_bytes: bytes that PyTorch can reserve; None for no limit.
            held: as for :class:`predictor.course.player.Player`.
        """
        return self.worst(self._setting, limit_bytes, held)

    def run(self) -> Course:
        """The course; with a GPU also its verdict, its chance over seeds, and its cures."""
        capacity, margin = self._workload.capacity, self.job.margin
        limit = None if capacity is None else max(0, capacity - margin.runtime_expected)
        self._tell(f"{self.steps:,} steps on {len(self._ranks)} rank(s)")
        worst = self.worst(self._setting, limit)
        course = Course(
            samples=len(self._samples), steps=self.steps, steps_per_epoch=self.steps_per_epoch,
            sampling=self._request.sampling, empty_cache_steps=self._request.empty_cache_steps,
            ranks=tuple(self._ranks), left_out=self._left_out, limit_bytes=limit, verdict=None, rank=worst.rank,
            columns={name: tuple(getattr(worst.memory, name).tolist()) for name in COLUMNS},
            failure=Failure.of(worst.failure) if worst.failure else None, calls_per_step=_calls(worst),
            caveats=tuple(self._caveats(worst)), eval_steps=self._evaluation.every if self._evaluation else None,
            eval_batches=len(self._evaluation or ()), adds_images=self._runs.adds_images)
        if capacity is None:
            return course
        dies = [self.worst(self._setting, bound).failure is not None for bound in margin.limits(capacity)]
        verdict = "uncertain" if len({*dies, worst.failure is not None}) > 1 else "does_not_fit" if dies[0] else "fits"
        course = replace(course, verdict=verdict)
        if course.failure and not course.failure.step:  # start-up is the same with every seed and every order
            return course
        chance = self._chance(self._setting, limit, self._seeds()) if self._request.sampling.is_random else None
        evaluates = bool(course.failure and course.failure.evaluated)
        changed = cures.of(self._setting, evaluates) if verdict != "fits" or (chance and chance.failed) else ()
        return replace(course, chance=chance, trials=tuple(self._trial(cure, limit, chance) for cure in changed))

    # courses ----------------------------------------------------------------------------------------------------

    def drawn(self, sampling: Sampling) -> list[Step]:
        """The steps, as a sampler draws them."""
        if sampling not in self._drawn:
            self._tell(f"drawing the batches of {self.steps:,} steps")
            steps = replace(self._sampler, sampling=sampling).steps(self.steps)
            self._runs.check(self._batches(steps))
            self._drawn = {**dict(list(self._drawn.items())[-3:]), sampling: steps}  # few are needed again
        return self._drawn[sampling]

    def _batches(self, steps: Sequence[Step]) -> Iterator[Batch]:
        """All batches of all ranks."""
        for step in steps:
            self._tell(f"drawing the batches of step {step.number:,} of {len(steps):,}")
            for batches in step.batches:
                yield from map(self._runs.batch, batches)

    def _told(self, steps: Sequence[Step], rank: int) -> Iterator[Step]:
        """The steps, each told before it is simulated."""
        for step in steps:
            self._tell(f"step {step.number:,} of {len(steps):,} on rank {rank}")
            yield step

    def worst(self, setting: Setting, limit_bytes: int | None, held: int = 1) -> RankCourse:
        """The course of the rank that runs out of memory first, or else of the one that reserves the most."""
        steps = self.drawn(setting.sampling)
        device = Device(setting.allocator, limit_bytes, self._workload.capacity)
        evaluation = self._in_batches_of(setting.eval_size)
        first: RankCourse | None = None
        most: RankCourse | None = None
        for rank in self._ranks:
            found = simulate(self._runs, self._told(steps, rank), rank, device, held=held,
                             empty_cache_steps=setting.empty_cache_steps, evaluation=evaluation)
            if found.failure and (first is None or found.failure.order < _order(first)):
                first, steps = found, steps[: found.failure.step]
            if most is None or found.memory.peak_reserved_bytes.max() > most.memory.peak_reserved_bytes.max():
                most = found
        assert most is not None  # a job has a rank
        return first or most

    def _in_batches_of(self, size: int | None) -> EvaluationRuns | None:
        """The evaluation in batches of so many samples; None without one."""
        evaluating = self._request.evaluating
        if evaluating is None or size is None:
            return None
        if size not in self._evaluations:
            self._evaluations[size] = EvaluationRuns(self._workload, replace(evaluating, size=size),
                                                     self._request.sampling.packing, self._progress)
        return self._evaluations[size]

    # chances and cures ------------------------------------------------------------------------------------------

    def _seeds(self) -> int:
        """The number of seeds to simulate."""
        affordable = RANK_STEPS // (self.steps * len(self._ranks))
        return self._request.seeds or min(MOST_SEEDS, max(FEWEST_SEEDS, affordable))

    def _chance(self, setting: Setting, limit: int | None, seeds: int) -> Chance:
        failed: list[tuple[int, int]] = []
        for number in range(seeds):
            self._tell(f"seed {number + 1} of {seeds}")
            seed = setting.sampling.seed + SEED_STRIDE * number
            found = self._of_seed(setting, limit, seed).failure
            failed += [(found.step, seed)] if found else []
        failed.sort()
        return Chance(seeds, len(failed), *exact(len(failed), seeds), tuple(step for step, _ in failed),
                      tuple(seed for _, seed in failed))

    def _of_seed(self, setting: Setting, limit: int | None, seed: int) -> RankCourse:
        return self.worst(replace(setting, sampling=replace(setting.sampling, seed=seed)), limit)

    def _trial(self, cure: Cure, limit: int | None, chance: Chance | None) -> Trial:
        """The course with a cure, and if that survives, the first seeds that failed without it."""
        self._tell(cure.text)
        worst = self.worst(cure.setting, limit)
        seeds = [] if worst.failure or not chance else [
            seed for seed in chance.failed_seeds if seed != cure.setting.sampling.seed]
        seeds = seeds[:MOST_CURED]
        failed = sum(self._of_seed(cure.setting, limit, seed).failure is not None for seed in seeds)
        return Trial(cure.text, worst.failure.step if worst.failure else None,
                     int(worst.memory.peak_reserved_bytes.max()), _calls(worst), len(seeds), failed, cure.costs)

    def _caveats(self, worst: RankCourse) -> Iterator[str]:
        """What the course leaves out, beside other loops."""
        if self._evaluation is None:
            yield "evaluations between the steps"
        if not ENGINES[self.job.setup.engine].whole:
            yield "the saving of checkpoints between the steps, for which sharded parameters are gathered"
        if self._left_out:
            yield f"{self._left_out} of the {self._left_out + len(self._ranks)} ranks: their batches are others"
        if self._workload.padding == "packed" and self._request.sampling.packing == "none":
            yield "rows that are packed before training, which hold as many samples as fit: add --packing bfd"
        if self._request.sampling.strategy == "group_by_length":
            yield "the Trainer's own order of batches: group_by_length draws it from a generator whose state is unknown"
        if worst.unmatched:
            yield f"{worst.unmatched} buffers that batches of different kinds hand over in different ways"


def _order(course: RankCourse) -> tuple[int, int, int]:
    assert course.failure is not None
    return course.failure.order


def _calls(course: RankCourse) -> float:
    """Segments that the driver granted or got back after start-up, per step."""
    memory, steps = course.memory, len(course.memory.granted) - 1
    calls = (memory.granted + memory.returned)[[0, -1]]
    return float(calls[1] - calls[0]) / max(steps, 1)
