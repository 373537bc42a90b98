"""A plan: which configuration to train with, out of all that are sensible, and what it rests on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from predictor.common.errors import InputError
from predictor.common.progress import Progress
from predictor.engine.setup import MICRO_STEPS
from predictor.formula import learned
from predictor.jobs.training_job import Job
from predictor.plan import cost, knobs, precision
from predictor.plan.memory import Counts, Memory, Point
from predictor.plan.methods import Method, methods
from predictor.plan.minimum_states import least_bytes
from predictor.plan.search import Candidate, Configuration, Found, Queue, Wanted, predicted, queue, walk
from predictor.plan.space import BATCH, DATA, LENGTH, NOT_DEEPSPEED, STEPS, TENSOR, Setting, Space, space
from predictor.workload.limits import MOST_TOKENS
from predictor.workload.value_sources import Source
from predictor.workload.workload import Workload

MOST_BATCH = 4_096
LONGEST, LENGTH_STEP = 131_072, 64
"""Samples of a micro batch and tokens of a sample that are looked at, where the user does not say."""
COST = Wanted()
"""The cheapest sample, on as many GPUs as the keys say."""


@dataclass(frozen=True)
class Plan:
    """The answer.

    Attributes:
        goal: one of :data:`GOALS`.
        gpus: all of them.
        settings, configurations: how many there are, without and with their shapes; ``counts`` says what was done.
        closest: where nothing fits, the smallest configuration that needs the least, with its least GPU memory.
        found: what fits, the proposed configuration first, and what became of the rest.
        methods: the cheapest of each kind of sharing the work, or why none fits; none of one GPU.
        kept: keys that the user fixed and that would vary otherwise.
        largest: largest micro batch, or sequence, that fits in the proposed setting; None where nothing fits.
        knobs: what each would give, from the configuration that ``standing`` names, whose peaks are ``before``.
        source: where the values came from, if a framework's configuration was read.
        seconds: how long it took.
    """

    goal: str
    gpu: str
    gpus: int
    global_batch_size: int | None
    capacity_bytes: int
    found: Found
    methods: tuple[Method, ...]
    settings: int
    configurations: int
    counts: Counts
    largest: Candidate | None
    closest: Configuration | None
    kept: tuple[str, ...]
    standing: str
    before: knobs.Peaks
    knobs: tuple[knobs.Knob, ...]
    assumptions: tuple[str, ...]
    not_modelled: tuple[str, ...]
    source: Source | None
    seconds: float

    @property
    def proposed(self) -> Configuration | None:
        """The best; None where nothing fits."""
        return self.found.fitting[0] if self.found.fitting else None


@dataclass(frozen=True)
class Waiting:
    """The settings of a space, ready to be walked.

    Attributes:
        queues: those that can be predicted, with their shapes.
        left_out: the others, and why.
        configurations: how many shapes there are of all.
    """

    queues: tuple[Queue, ...]
    left_out: tuple[tuple[Setting, str], ...]
    configurations: int

    @classmethod
    def of(cls, made: Space, examples: Examples, wanted: Wanted, label: Callable[[str], str]) -> Waiting:
        """Every setting with its shapes, in the order of what is wanted."""
        job = examples.job
        candidates = lru_cache(partial(_candidates, made.fixed, job, wanted, label))
        queues, left_out, configurations = [], [], 0
        for setting in made.settings:
            try:
                shapes = candidates(setting.keys.get(DATA) or job.workload.data_parallel_size)
                configurations += len(shapes)
                queues.append(queue(setting, shapes, wanted.maximize, *examples.known(setting)))
            except InputError as error:
                left_out.append((setting, str(error)))
        return cls(tuple(queues), tuple(left_out), configurations)


@dataclass(frozen=True)
class Standing:
    """The configuration from which knobs are turned: what it is called, its peaks, and what each knob would give."""

    name: str
    workload: Workload
    before: knobs.Peaks
    knobs: tuple[knobs.Knob, ...]

    @classmethod
    def of(cls, name: str, workload: Workload) -> Standing:
        """Turns every knob of it.

        Raises:
            InputError: it cannot be predicted.
        """
        return cls(name, workload, *knobs.turned(workload))


def plan(given: Mapping[str, Any], wanted: Wanted = COST, *, trace: bool = True, label: Callable[[str], str] = str,
         progress: Progress | None = None, whole: Mapping[str, Any] | None = None,
         source: Source | None = None) -> Plan:
    """Search the space around what the user fixed.

    Args:
        given: keys of a workload, with ``gpu`` or ``capacity_bytes``; each is kept, all others may vary.
        wanted: what the search is for.
        trace: whether what no formula is shipped for may be traced.
        label: what a key is called in messages.
        progress: wraps the shapes that are traced.
        whole: the configuration that the user has now, from which knobs are turned, and whose samples of an optimizer
            step are those to keep unless others are wanted; None: ``given``, if it is whole.
        source: where the values came from, if a framework's configuration was read.

    Raises:
        InputError: keys that no workload may have, or that leave nothing to plan.
    """
    started = time.perf_counter()
    _check(given, label)
    wanted = _with_batch_of(whole, wanted, label)
    made, memory = space(given, wanted.vary, wanted.keep, label, wanted.gpus, whole), Memory(progress, trace)
    examples = Examples(made, memory)
    made = examples.revised()
    waiting = Waiting.of(made, examples, wanted, label)
    found = walk(waiting.queues, memory, wanted.top, examples.job.workload.capacity)
    found.left_out += waiting.left_out
    if not found.fitting and not found.failed:
        raise InputError(found.left_out[0][1])
    best = found.fitting[0] if found.fitting else None
    closest = None if best else _closest(waiting.queues, memory)
    chosen = best or closest
    try:
        standing = Standing.of(*_standing(whole, made, chosen))
    except InputError as error:  # what the user has now
        found.left_out.append((Setting("what was given, as it is", (), (), whole or given), str(error)))
        standing = Standing.of(*_found(chosen))
    workload = standing.workload
    return Plan(
        goal=wanted.maximize, gpu=workload.gpu or "the given capacity", gpus=workload.world_size,
        global_batch_size=wanted.global_batch_size, capacity_bytes=workload.capacity, found=found,
        methods=methods(found, waiting.queues, memory) if workload.world_size > 1 else (),
        settings=len(made.settings), configurations=waiting.configurations, counts=memory.counts,
        largest=largest(best, wanted.maximize, memory) if best else None, closest=closest,
        kept=made.kept, standing=standing.name, before=standing.before, knobs=standing.knobs,
        assumptions=cost.assumptions(examples.job.gpu, workload.world_size, examples.tensor_parallel),
        not_modelled=chosen.prediction.not_modelled + (source.left_out(workload_of(chosen)) if source else ()),
        source=source, seconds=time.perf_counter() - started)


def _check(given: Mapping[str, Any], label: Callable[[str], str]) -> None:
    """Refuses keys that no plan can be made of."""
    if given.get("mode") == "inference":
        raise InputError(f"{label('mode')} is inference, but a plan is for training: leave it out, or use peakcast "
                         "predict")
    if given.get("gpu") is None and given.get("capacity_bytes") is None:
        raise InputError(f"{label('gpu')} is not given: name one, such as h100-80gb, or give {label('capacity_bytes')}")


def _with_batch_of(whole: Mapping[str, Any] | None, wanted: Wanted, label: Callable[[str], str]) -> Wanted:
    """What is wanted, with the samples of an optimizer step that the user has now, where none are and cost counts."""
    if not whole or wanted.global_batch_size is not None or wanted.maximize != "cost":
        return wanted
    now = Workload.from_mapping(whole, label)
    return replace(wanted, global_batch_size=now.per_device_train_batch_size * now.gradient_accumulation_steps *
                   now.data_parallel_size)


class Examples:
    """A predictable job of each recipe and degree of tensor parallelism: what the estimate needs to know of a model."""

    def __init__(self, made: Space, memory: Memory) -> None:
        self.made, self.memory = made, memory
        self.found: dict[tuple[str, int], Job | InputError] = {}
        self.settings: dict[tuple[str, int], list[Setting]] = {}
        for setting in made.settings:
            self.settings.setdefault(self._group(setting), []).append(setting)
        self.job = self._of(made.settings[0])

    def revised(self) -> Space:
        """The space, now that it is known what trains."""
        return replace(self.made, settings=tuple(filter(None, map(self._revised, self.made.settings))))

    def _revised(self, setting: Setting) -> Setting | None:
        try:
            facts = self._of(setting).formula.facts
        except InputError:  # it is left out by name
            return setting
        return precision.revised(setting, facts, self.made.own, self.made.fixed)

    @property
    def tensor_parallel(self) -> bool:
        """Whether any has layers that ranks share."""
        return any(degree > 1 and isinstance(job, Job) for (_, degree), job in self.found.items())

    def known(self, setting: Setting) -> tuple[Callable[..., cost.Estimate], int]:
        """What estimates it, of arrays of batch, accumulation and sequence; and what it needs at least, in bytes."""
        job, whole = self._of(setting), None
        if self._group(setting)[1] > 1:
            alone = {"engine": "torch", "ddp": None, **NOT_DEEPSPEED, DATA: 1, TENSOR: 1}
            whole = self._of(replace(setting, keys={**setting.keys, **alone}))
        workload = setting.workload(1, 1, None).fill(images_per_sample=job.workload.images_per_sample)
        model = cost.Model.of(job.formula.facts, whole and whole.formula.facts)
        return partial(cost.estimate, workload, model, job.gpu), least_bytes(workload, job.formula.facts)

    def _of(self, setting: Setting) -> Job:
        group = self._group(setting)
        if group not in self.found:
            self.found[group] = self._first(self.settings.get(group, [setting]))
        found = self.found[group]
        if isinstance(found, InputError):
            raise found
        return found

    def _first(self, settings: Sequence[Setting]) -> Job | InputError:
        """The first that needs no trace, or else that can be traced; or why none can."""
        for traces in (False, True):
            problem = None
            for setting in settings:
                try:
                    return self.memory.example(setting, trace=traces)
                except InputError as error:
                    problem = problem or error
        return problem

    @staticmethod
    def _group(setting: Setting) -> tuple[str, int]:
        workload = setting.workload(1, 1, None)
        return workload.recipe, workload.tensor_parallel_size


def _candidates(fixed: Mapping[str, Any], job: Job, wanted: Wanted, label: Callable[[str], str],
                degree: int) -> list[Candidate]:
    """Every shape of so many replicas that agrees with what the user fixed.

    Raises:
        InputError: keys that contradict what is to be found.
    """
    batch, steps, length = (fixed.get(key) for key in (BATCH, STEPS, LENGTH))
    facts, maximize, total = job.formula.facts, wanted.maximize, wanted.global_batch_size
    sought = {"batch": BATCH, "sequence": LENGTH}.get(maximize)
    if sought in fixed:
        raise InputError(f"maximize {maximize}: {label(sought)} is given, too: leave it out")
    if maximize == "sequence":
        room = facts.room(job.workload.images_per_sample)
        lengths = range(room - room % LENGTH_STEP + LENGTH_STEP, min(LONGEST, facts.positions or LONGEST) + 1,
                        LENGTH_STEP)
        batch = batch or 1
    else:
        lengths = (length,)
    fewest = job.lowest().batch if learned.is_named(job.workload.model) else 1
    batches = (batch,) if batch else range(fewest, _most_batch(length) + 1)
    if total is None:
        return [Candidate(size, steps or 1, tokens) for size in batches for tokens in lengths]
    shapes = [(size, total // (size * degree)) for size in batches if total % (size * degree) == 0]
    if steps:
        shapes = [shape for shape in shapes if shape[1] == steps]
    if not shapes:
        what = " x ".join(str(part) for part in (batch, steps) if part)
        raise InputError(f"global batch size {total}: is no multiple of data_parallel_size {degree}"
                         f"{f' x {what}' if what else ''}: give one that is, or leave the others out")
    return [Candidate(*shape, tokens) for shape in shapes for tokens in lengths]


def largest(best: Configuration, goal: str, memory: Memory) -> Candidate:
    """What fits in the proposed setting, whatever the wanted global batch: the largest micro batch, or sequence."""
    chosen = best.candidate
    if goal == "sequence":
        return chosen
    points = [Point(size, chosen.sequence) for size in range(chosen.batch, _most_batch(chosen.sequence) + 1)]
    size = memory.largest(best.setting, min(chosen.accumulation, MICRO_STEPS), points) + chosen.batch
    while size > chosen.batch and memory.job(best.setting, Point(size, chosen.sequence),
                                             chosen.accumulation).judge().verdict != "fits":
        size -= 1
    return replace(chosen, batch=size)


def _most_batch(length: int | None) -> int:
    return min(MOST_BATCH, MOST_TOKENS // (length or 1))


def _closest(queues: Sequence[Queue], memory: Memory) -> Configuration:
    """Of settings that do not fit, the one whose smallest shape needs the least."""
    least = min(queues, key=lambda one: memory.least.get(one.setting, math.inf))
    least.at = min(range(len(least.candidates)), key=lambda at: (least.candidates[at].batch * (
        least.candidates[at].sequence or 1), least.candidates[at].accumulation))
    return predicted(least, memory, minimum_capacity=True)


def _standing(whole: Mapping[str, Any] | None, made: Space, found: Configuration) -> tuple[str, Workload]:
    """Whose configuration knobs are turned from: the user's, if what they gave is a whole one."""
    if whole:
        return "given", Workload.from_mapping(whole)
    engine = {"engine", "zero_stage", "deepspeed"} & made.fixed.keys() or (made.given.get(DATA) or 1) == 1
    if BATCH in made.fixed and engine and (LENGTH in made.fixed or found.candidate.sequence is None):
        return "given", Workload.from_mapping(made.given)
    return _found(found)


def _found(found: Configuration) -> tuple[str, Workload]:
    return "proposed" if found.prediction.verdict == "fits" else "closest", workload_of(found)


def workload_of(one: Configuration) -> Workload:
    """With its shape."""
    return one.setting.workload(one.candidate.batch, one.candidate.accumulation, one.candidate.sequence)
