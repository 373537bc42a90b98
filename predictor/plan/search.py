"""The walk through the space: from the cheapest configuration on, until enough configurations fit.

The cost of a configuration is known before its memory. So settings wait in a priority queue, sorted by the cheapest
shape that they may still have. The walk takes the first setting and checks whether that shape fits; if not, the setting
waits again with its next shape. Configurations that cost more than the last result are never composed. A setting
appears in the result only with its best shape, because all its other shapes are worse.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from predictor.answer.answer import answer
from predictor.answer.prediction import Prediction
from predictor.common.errors import InputError
from predictor.common.progress import Progress
from predictor.engine.setup import MICRO_STEPS
from predictor.formula import learned, store
from predictor.plan.background import Background
from predictor.plan.cost import Estimate
from predictor.plan.memory import Memory, Point, Question
from predictor.plan.setting import ALONE, Setting

GOALS = ("cost", "batch", "sequence")
"""Goals of a search: the lowest cost per sample, the largest micro batch, or the longest sequence."""
WORTH = 0.01
"""Fraction of the cost that DeepSpeed has to save on one GPU to rank before a plain loop. The estimate is not more
exact than that."""


Priority = tuple[tuple[bool, int], int, bool, float]
"""Sort key of a shape: whether samples are cut and in how many ways training differs, the goal, whether a plain loop
ranks before it, and the cost."""


@dataclass(frozen=True)
class Wanted:
    """The goal and the limits of a search.

    Attributes:
        gpus: number of all GPUs (data-parallel replicas x tensor-parallel ranks); None: the degrees in the keys, fixed.
        global_batch_size: samples of an optimizer step on all GPUs together; None: any.
        maximize: the first criterion of the ranking, one of :data:`GOALS`.
        top: number of configurations to find.
        vary, keep: names of axes (:data:`predictor.plan.space.AXES`) to vary also, and not to vary.
        firm: given keys that no other way to train may replace; None: all of them.
    """

    gpus: int | None = None
    global_batch_size: int | None = None
    maximize: str = "cost"
    top: int = 5
    vary: Collection[str] = ()
    keep: Collection[str] = ()
    firm: Collection[str] | None = None

    def __post_init__(self) -> None:
        if self.maximize not in GOALS:
            raise InputError(f"maximize {self.maximize}: one of {', '.join(GOALS)}")


@dataclass(frozen=True)
class Candidate:
    """A shape of a setting: samples of a micro batch, micro batches of a step, tokens of a sample."""

    batch: int
    accumulation: int
    sequence: int | None


@dataclass
class Queue:
    """One setting with its shapes, best first.

    Attributes:
        keys: sort key of each shape.
        estimated: the cost estimate, as a function of batch, accumulation and sequence.
        at: index of the best shape that may still fit.
        shapes: all shapes, those without a formula too.
        states_bytes: bytes that every shape needs at least.
        decided: numbers of micro-steps whose shapes the closed form has compared with the capacity.
        questions: number of micro-steps -> which of those shapes fit.
        doubted: the rank that ran out of memory at the last predicted shape. At the next shapes it is simulated alone
            first: the job fits only where it survives.
    """

    setting: Setting
    candidates: list[Candidate]
    keys: list[Priority]
    estimated: Callable[..., Estimate]
    at: int = 0
    states_bytes: int = 0
    decided: set[int] = field(default_factory=set)
    questions: dict[int, Question] = field(default_factory=dict)
    doubted: int | None = None
    shapes: Sequence[Candidate] = field(init=False)

    def __post_init__(self) -> None:
        self.shapes = tuple(self.candidates)

    @property
    def key(self) -> Priority:
        """The setting's priority in the walk."""
        return self.keys[self.at]


@dataclass(frozen=True)
class Configuration:
    """A setting at one shape, with its estimate and its full prediction."""

    setting: Setting
    candidate: Candidate
    estimate: Estimate
    prediction: Prediction


@dataclass
class Found:
    """The result of the walk.

    Attributes:
        fitting: settings that fit, each at its best shape, in order of rank; on one GPU also the first plain loop.
        failed: settings without a shape that fits.
        unseen: settings that were not examined, because they cost more than the ranking.
        left_out: settings that cannot be predicted, each with the reason.
        cheapest: the first configuration that fits, by way of sharing the work. It may be below the ranking.
    """

    fitting: list[Configuration] = field(default_factory=list)
    failed: list[Setting] = field(default_factory=list)
    unseen: list[Setting] = field(default_factory=list)
    left_out: list[tuple[Setting, str]] = field(default_factory=list)
    cheapest: dict[str, Configuration] = field(default_factory=dict)

    def is_enough(self, wanted: int, settings: Sequence[Setting]) -> bool:
        """Whether settings that rank after all that was found would change nothing."""
        return len(self.fitting) >= wanted and all(setting.sharing in self.cheapest for setting in settings)


def queue(setting: Setting, candidates: Sequence[Candidate], goal: str, estimated: Callable[..., Estimate],
          states_bytes: int = 0) -> Queue:
    """A setting with its shapes, sorted by the goal.

    Args:
        estimated: the cost estimate, as a function of arrays of batch, accumulation and sequence.
        states_bytes: bytes that every shape needs at least.
    """
    batch, accumulation, sequence = np.array([(c.batch, c.accumulation, c.sequence or 0) for c in candidates]).T
    cost = np.broadcast_to(estimated(batch, accumulation, sequence).seconds_per_sample, batch.shape)
    first = {"cost": np.zeros_like(batch), "batch": -batch, "sequence": -sequence}[goal]
    order = np.lexsort((-batch, cost, first)).tolist()
    # DeepSpeed partitions nothing on one GPU, so plain PyTorch ranks before it there if the goal is equal
    alone = setting.keys.get("engine") == "deepspeed" and (setting.keys.get("data_parallel_size") or 1) == 1
    later = [alone and goal != "cost"] * len(order)
    ranked = cost[order] * (1 + WORTH) if alone else cost[order]
    keys = list(zip([differing(setting)] * len(order), first[order].tolist(), later, ranked.tolist()))
    return Queue(setting, [candidates[index] for index in order], keys, estimated, states_bytes=states_bytes)


@dataclass(frozen=True)
class Step:
    """What a walk knows before it examines a setting.

    Attributes:
        setting: the setting that comes next.
        waiting: number of settings that wait after it.
        best: the best configuration that was found so far; None if none fits yet.
    """

    setting: Setting
    waiting: int
    best: Configuration | None


class Telling(NamedTuple):
    """How a search shows its progress: wraps the shapes of a trace, and is told each step before it is taken."""

    tracing: Progress | None = None
    step: Callable[[Step], None] = lambda step: None


QUIET = Telling()
"""Shows nothing."""


def differing(setting: Setting) -> tuple[bool, int]:
    """The first part of the sort key: whether samples are cut, and in how many ways training differs."""
    return setting.cuts, len(setting.differs)


def walk(queues: Sequence[Queue], memory: Memory, wanted: int, capacity_bytes: int, found: Found,
         telling: Telling, background: Background) -> None:
    """Adds to what was found, until it has the ``wanted`` best settings that fit, each at its best shape.

    The result also has the best configuration of each way to share the work. On one GPU the best plain loop is always
    in the ranking, even if it costs more.

    Args:
        telling: is told each examination before it begins.
        background: traces formulas for the settings that will be examined in any case.
    """
    found.failed += [queue.setting for queue in queues if queue.states_bytes > capacity_bytes]
    waiting = [(queue.key, number, queue) for number, queue in enumerate(queues)
               if queue.states_bytes <= capacity_bytes]
    memory.counts.ruled_out += sum(len(queue.candidates) for queue in queues if queue.states_bytes > capacity_bytes)
    heapq.heapify(waiting)
    while waiting:
        _, number, queue = heapq.heappop(waiting)
        ranked, sharing = len(found.fitting) < wanted, queue.setting.sharing
        if not ranked and sharing in found.cheapest:
            found.unseen.append(queue.setting)
            continue
        step = Step(queue.setting, len(waiting), found.fitting[0] if found.fitting else None)
        telling.step(step)
        following = heapq.nsmallest(wanted - len(found.fitting) - 1, waiting)
        goes_on = len(found.fitting) + 1 + len(waiting) < wanted  # even if all that are left fit
        background.begin([_question(other) for _, _, other in following], with_later=goes_on)
        question = _question(queue)
        background.finish(question, partial(telling.step, step))
        try:
            fitting = predicted(queue, memory) if _may_fit(queue, question, memory) else None
        except InputError as error:
            if isinstance(error, store.NotTraced) and keeps_formulas(queue, memory):
                heapq.heappush(waiting, (queue.key, number, queue))
            else:
                found.left_out.append((queue.setting, str(error)))
            continue
        if fitting and fitting.prediction.verdict == "fits":
            listed = ranked or sharing == ALONE
            found.fitting += [fitting] if listed else []
            found.cheapest.setdefault(sharing, fitting)
            continue
        queue.at += fitting is not None
        if queue.at < len(queue.candidates):
            heapq.heappush(waiting, (queue.key, number, queue))
        else:
            found.failed.append(queue.setting)


def keeps_formulas(queue: Queue, memory: Memory) -> bool:
    """Takes the shapes without a formula out of the queue; False if that leaves all of them, or none."""
    if learned.is_learned_file(queue.setting.keys["model"]):
        return False
    left, found = range(queue.at, len(queue.candidates)), set[Point]()
    with suppress(InputError):
        found = memory.with_formula(queue.setting, sorted({_point(queue.candidates[index]) for index in left}))
    kept = [index for index in left if _point(queue.candidates[index]) in found]
    if not 0 < len(kept) < len(left):
        return False
    memory.counts.no_formula += len(left) - len(kept)
    queue.candidates = [queue.candidates[index] for index in kept]
    queue.keys = [queue.keys[index] for index in kept]
    queue.questions.clear()
    queue.at = 0
    return True


def predicted(queue: Queue, memory: Memory, *, minimum_capacity: bool = False) -> Configuration:
    """The prediction of a setting at the best shape that it has left, with all its micro-steps, without cautions."""
    chosen = queue.candidates[queue.at]
    job = memory.job(queue.setting, _point(chosen), chosen.accumulation)
    outcome = job.judge()
    queue.doubted = outcome.failure.run.rank if outcome.failure else None
    prediction = answer(job, outcome, with_timeline=False, with_history=False, with_cautions=False,
                        minimum_capacity_bytes=job.minimum_capacity() if minimum_capacity else None)
    memory.counts.simulated += 1
    cost = queue.estimated(chosen.batch, chosen.accumulation, chosen.sequence or 0)
    return Configuration(queue.setting, chosen, cost, prediction)


def any_shape(setting: Setting, shapes: Sequence[Candidate]) -> Question:
    """Which of all shapes of a setting fit, before it is known which is the best."""
    return Question(setting, min(shapes[0].accumulation, MICRO_STEPS), sorted(set(map(_point, shapes))), ())


def _question(queue: Queue) -> Question:
    """Which shapes of a queue fit, of those with as many micro-steps as its best shape."""
    micro_steps = min(queue.candidates[queue.at].accumulation, MICRO_STEPS)  # further micro-steps allocate the same
    if micro_steps not in queue.questions:
        points = sorted({_point(c) for c in queue.candidates if min(c.accumulation, MICRO_STEPS) == micro_steps})
        smaller = sorted({_point(c) for c in queue.shapes if _point(c) < points[0]})
        queue.questions[micro_steps] = Question(queue.setting, micro_steps, points, smaller)
    return queue.questions[micro_steps]


def _may_fit(queue: Queue, question: Question, memory: Memory) -> bool:
    """Whether the queue's best shape may fit. If not, moves the queue on to its next shape that may fit."""
    chosen, points, micro_steps = queue.candidates[queue.at], question.points, question.micro_steps
    if micro_steps not in queue.decided:
        queue.decided.add(micro_steps)
        memory.counts.decided += len(points)
    last = memory.answer(question)
    if last >= 0 and _point(chosen) <= points[last]:
        dies = queue.doubted is not None and not memory.survives(
            queue.setting, _point(chosen), chosen.accumulation, queue.doubted)
        queue.at += dies
        return not dies
    memory.short.add(queue.setting.rest)
    largest = points[last] if last >= 0 else None
    while queue.at < len(queue.candidates):
        other = queue.candidates[queue.at]
        if min(other.accumulation, MICRO_STEPS) != micro_steps or (largest is not None and _point(other) <= largest):
            break
        queue.at += 1
    return False


def _point(candidate: Candidate) -> Point:
    return Point(candidate.batch, candidate.sequence)
