"""Walks the space from the cheapest configuration on, and stops when enough of them fit.

What a configuration costs is known before its memory is. So settings wait in order of the cheapest shape that they may
still have; the first is asked whether that fits, and waits again with its next one if not. Whatever costs more than
the last answer is never composed, and of a setting only its best shape is an answer: all others are dominated.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from predictor.answer.answer import answer
from predictor.answer.prediction import Prediction
from predictor.common.errors import InputError
from predictor.engine.setup import MICRO_STEPS
from predictor.plan.cost import Estimate
from predictor.plan.memory import Memory, Point
from predictor.plan.space import ALONE, Setting

GOALS = ("cost", "batch", "sequence")
"""What comes first: a cheap step, many samples in a micro batch, or long ones."""
WORTH = 0.01
"""The share of the cost that an engine has to save on one GPU: less than that is nothing, in an estimate."""


@dataclass(frozen=True)
class Wanted:
    """What a search is for.

    Attributes:
        gpus: all that there are, replicas x ranks that share layers; None: as many as the keys say, which then stay.
        global_batch_size: samples of an optimizer step on all GPUs together; None: as they come.
        maximize: what comes first, one of :data:`GOALS`.
        top: configurations to find.
        vary, keep: axes (:data:`predictor.plan.space.AXES`).
    """

    gpus: int | None = None
    global_batch_size: int | None = None
    maximize: str = "cost"
    top: int = 5
    vary: Collection[str] = ()
    keep: Collection[str] = ()

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
    """One setting with its shapes, the best first."""

    setting: Setting
    candidates: list[Candidate]
    keys: list[tuple]
    estimated: Callable[..., Estimate]
    at: int = 0
    states_bytes: int = 0
    decided: set[int] = field(default_factory=set)

    @property
    def key(self) -> tuple:
        """Where it waits."""
        return self.keys[self.at]


@dataclass(frozen=True)
class Configuration:
    """A setting at one shape, with its prediction, allocator and all."""

    setting: Setting
    candidate: Candidate
    estimate: Estimate
    prediction: Prediction


@dataclass
class Found:
    """What the walk came to.

    Attributes:
        fitting: settings with the best of their shapes, in order; on one GPU with the first plain loop.
        failed: settings none of whose shapes fits.
        unseen: those that cost more than all that was wanted.
        left_out: settings that cannot be predicted, and why.
        cheapest: kind -> the first of it that fits, though enough others may come before it.
    """

    fitting: list[Configuration] = field(default_factory=list)
    failed: list[Setting] = field(default_factory=list)
    unseen: list[Setting] = field(default_factory=list)
    left_out: list[tuple[Setting, str]] = field(default_factory=list)
    cheapest: dict[str, Configuration] = field(default_factory=dict)


def queue(setting: Setting, candidates: Sequence[Candidate], goal: str, estimated: Callable[..., Estimate],
          states_bytes: int = 0) -> Queue:
    """A setting with its shapes in the order of the goal.

    Args:
        estimated: takes arrays of the columns of candidates.
        states_bytes: what every shape needs.
    """
    batch, accumulation, sequence = np.array([(c.batch, c.accumulation, c.sequence or 0) for c in candidates]).T
    cost = np.broadcast_to(estimated(batch, accumulation, sequence).seconds_per_sample, batch.shape)
    first = {"cost": np.zeros_like(batch), "batch": -batch, "sequence": -sequence}[goal]
    order = np.lexsort((-batch, cost, first)).tolist()
    # DeepSpeed partitions nothing on one GPU: there plain PyTorch goes before it at an equal goal
    alone = setting.keys.get("engine") == "deepspeed" and (setting.keys.get("data_parallel_size") or 1) == 1
    later = [alone and goal != "cost"] * len(order)
    said = cost[order] * (1 + WORTH) if alone else cost[order]
    keys = list(zip([len(setting.differs)] * len(order), first[order].tolist(), later, said.tolist()))
    return Queue(setting, [candidates[index] for index in order], keys, estimated, states_bytes=states_bytes)


def walk(queues: Sequence[Queue], memory: Memory, wanted: int, capacity_bytes: int) -> Found:
    """The ``wanted`` best settings that fit, and the best of each kind, each at its best shape; on one GPU the best
    plain loop is in the ranking, though it may cost more."""
    found = Found(failed=[one.setting for one in queues if one.states_bytes > capacity_bytes])
    waiting = [(one.key, number, one) for number, one in enumerate(queues) if one.states_bytes <= capacity_bytes]
    memory.counts.ruled_out += sum(len(one.candidates) for one in queues if one.states_bytes > capacity_bytes)
    heapq.heapify(waiting)
    while waiting:
        _, number, one = heapq.heappop(waiting)
        ranked = len(found.fitting) < wanted
        if not ranked and one.setting.kind in found.cheapest:
            found.unseen.append(one.setting)
            continue
        try:
            fitting = predicted(one, memory) if _may_fit(one, memory) else None
        except InputError as error:
            found.left_out.append((one.setting, str(error)))
            continue
        if fitting and fitting.prediction.verdict == "fits":
            listed = ranked or one.setting.kind == ALONE
            found.fitting += [fitting] if listed else []
            found.cheapest.setdefault(one.setting.kind, fitting)
            continue
        one.at += fitting is not None
        if one.at < len(one.candidates):
            heapq.heappush(waiting, (one.key, number, one))
        else:
            found.failed.append(one.setting)
    return found


def predicted(one: Queue, memory: Memory, *, minimum_capacity: bool = False) -> Configuration:
    """The best shape that is left of a setting, through the whole simulation, accumulation and all."""
    chosen = one.candidates[one.at]
    job = memory.job(one.setting, _point(chosen), chosen.accumulation)
    prediction = answer(job, job.judge(), with_timeline=False, with_history=False,
                        minimum_capacity_bytes=job.minimum_capacity() if minimum_capacity else None)
    memory.counts.simulated += 1
    cost = one.estimated(chosen.batch, chosen.accumulation, chosen.sequence or 0)
    return Configuration(one.setting, chosen, cost, prediction)


def _may_fit(one: Queue, memory: Memory) -> bool:
    """Whether its best shape fits; if not, it goes on to the next one that may."""
    chosen = one.candidates[one.at]
    alike = min(chosen.accumulation, MICRO_STEPS)  # further micro batches allocate alike
    points = sorted({_point(c) for c in one.candidates if min(c.accumulation, MICRO_STEPS) == alike})
    if alike not in one.decided:
        one.decided.add(alike)
        memory.counts.decided += len(points)
    last = memory.largest(one.setting, alike, points)
    if last >= 0 and _point(chosen) <= points[last]:
        return True
    least = points[last] if last >= 0 else None
    while one.at < len(one.candidates):
        other = one.candidates[one.at]
        if min(other.accumulation, MICRO_STEPS) != alike or (least is not None and _point(other) <= least):
            break
        one.at += 1
    return False


def _point(candidate: Candidate) -> Point:
    return Point(candidate.batch, candidate.sequence)
