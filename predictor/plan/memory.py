"""The largest shape that fits: the closed form of one rank first, then the allocator's simulation of all that matter.

The closed form is of requested bytes, of which the allocator never needs less: what it rules out cannot fit. Memory
grows with the shape, so among those that are left the largest that survives is found by halving.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from predictor.common.errors import InputError
from predictor.common.progress import Progress
from predictor.events import timeline
from predictor.events.regimes import Regime
from predictor.events.sizes import Shape
from predictor.formula import learned
from predictor.formula.formula_key import regimes_at
from predictor.jobs import dispatch, survival, training_job
from predictor.jobs.training_job import Job
from predictor.model import models
from predictor.model.model_config import Kind
from predictor.model.request import Request
from predictor.plan.space import BATCH, LENGTH, Setting
from predictor.profile import corrections
from predictor.workload.workload import Workload

SOME = 8_192
"""Tokens of an example."""


class Point(NamedTuple):
    """Samples of a micro batch, and tokens of each."""

    batch: int
    sequence: int | None


class NotTraced(InputError):
    """A formula that nobody has, where none is to be traced."""


@dataclass
class Counts:
    """What was done.

    Attributes:
        ruled_out: configurations that cannot fit whatever the batch is.
        decided: configurations that closed forms told apart; ``composed``: how many of these there were.
        simulated: runs through the allocator's simulation.
        traced: formulas that nobody had.
    """

    ruled_out: int = 0
    decided: int = 0
    composed: int = 0
    simulated: int = 0
    traced: int = 0


@dataclass
class Memory:
    """Answers what fits, and remembers it.

    Attributes:
        trace: whether what has no formula may be traced.
        least: bytes that the smallest shape of a setting surely needs, where that was asked.
    """

    progress: Progress | None = None
    trace: bool = True
    counts: Counts = field(default_factory=Counts)
    least: dict[Setting, float] = field(default_factory=dict)
    _largest: dict = field(default_factory=dict)

    def job(self, setting: Setting, point: Point, accumulation: int) -> Job:
        """Raises:
            InputError: it cannot be predicted; :class:`NotTraced` where only a trace is missing.
        """
        return self._prepared(setting.workload(point.batch, accumulation, point.sequence), dispatch.prepare, self.trace)

    def example(self, setting: Setting, *, trace: bool) -> Job:
        """A job of the setting, of any shape."""
        if learned.is_named(setting.keys["model"]):
            base = learned.load(setting.keys["model"]).base
            return dispatch.prepare(setting.workload(base.batch, 1, base.sequence or None))
        length = setting.keys.get(LENGTH) or (None if models.find(setting.keys["model"]).kind is Kind.IMAGE else SOME)
        workload = dispatch.resolve(setting.workload(setting.keys.get(BATCH) or 2, 1, length)).workload
        return self._prepared(workload, _unchecked, trace and self.trace)

    def _prepared(self, workload: Workload, prepare: Callable[[Workload, Progress | None], Job], trace: bool) -> Job:
        traces = not learned.is_named(workload.model) and training_job.needs_trace(dispatch.resolve(workload))
        if traces and not trace:
            raise NotTraced("there is no formula yet, and tracing was switched off")
        job = prepare(workload, self.progress)
        self.counts.traced += traces
        return job

    def largest(self, setting: Setting, accumulation: int, points: Sequence[Point]) -> int:
        """Index of the last of ascending points whose worst rank survives; -1 if none does.

        Raises:
            InputError: as :meth:`job`.
        """
        key = setting, accumulation, points[0], points[-1], len(points)
        if key not in self._largest:
            self._largest[key] = self._search(setting, accumulation, points)
        return self._largest[key]

    def _search(self, setting: Setting, accumulation: int, points: Sequence[Point]) -> int:
        beyond = self._beyond(setting, accumulation, points)
        count = len(points) if beyond is None else int(np.searchsorted(beyond, 0, side="right"))

        def tried(index: int) -> int | None:
            """The index if its worst rank survives; else the last one that may, if that can be told."""
            job = self.job(setting, points[index], accumulation)
            limit, _ = job.margin.limits(job.workload.capacity)
            error = survival.play(job.run(limit), job.setup.allocator, limit_bytes=limit,
                                  total_bytes=job.workload.capacity).out_of_memory
            self.counts.simulated += 1
            if error is None:
                return index
            idle = max(0, limit - error.allocated_bytes - error.requested_bytes)  # what blocks leave unused
            return None if beyond is None else min(index, int(np.searchsorted(beyond, -idle, side="right"))) - 1

        return last(tried, count, near_the_end=beyond is not None)

    def _beyond(self, setting: Setting, accumulation: int, points: Sequence[Point]) -> np.ndarray | None:
        """Bytes that each point surely needs beyond what there is, not above 0 where it may fit; None where shapes
        have formulas of their own."""
        if learned.is_named(setting.keys["model"]):
            return None
        request = dispatch.resolve(setting.workload(points[0].batch, accumulation, points[0].sequence))
        shapes = [Shape(batch, sequence or 0, batch * request.workload.images_per_sample) for batch, sequence in points]
        groups: dict[Regime, list[Shape]] = {}
        for shape, regime in zip(shapes, regimes_at(request, shapes)):
            groups.setdefault(regime, []).append(shape)
        beyond: list[np.ndarray] = []
        for shapes in groups.values():
            if beyond and beyond[-1][-1] > 0:  # what is larger does not fit either
                beyond.append(np.full(len(shapes), np.inf))
                continue
            job = self.job(setting, Point(shapes[0].batch, shapes[0].sequence or None), accumulation)
            if len(shapes) > 1 and not job.formula.regime.is_wide:
                return None
            limit, _ = job.margin.limits(job.workload.capacity)
            beyond.append(self._closed_form(job, shapes, limit) - limit)
            self.least[setting] = min(self.least.get(setting, math.inf), beyond[0][0] + limit)
        return np.maximum.accumulate(np.concatenate(beyond))

    def _closed_form(self, job: Job, shapes: Sequence[Shape], limit: int) -> np.ndarray:
        """Requested bytes of the rank that is worst at the first shape, where PyTorch can have so many."""
        self.counts.composed += 1
        events = job.composed(limit, job.ranks(limit)[0])
        columns = np.array([tuple(shape) for shape in shapes]).T
        peaks = timeline.closed_form(events, at_least=job.lowest()).peaks(*columns, job.gpu)
        return peaks * min(1.0, *(corrections.coefficients(job.profile) or (1.0,)))


def _unchecked(workload: Workload, progress: Progress | None) -> Job:
    return training_job.at(Request.of(workload), progress)


def last(tried: Callable[[int], int | None], count: int, *, near_the_end: bool) -> int:
    """The last of ``count`` indices that holds, -1 if none: all before one that holds do.

    Args:
        tried: its argument if that holds; else the last index that may hold, or None: halfway is tried then.
        near_the_end: where to begin.
    """
    good, bad, step = -1, count, 1
    at = count - 1 if near_the_end else 0
    while bad - good > 1:
        to = tried(at)
        if to == at:
            good, at, step = at, min(at + step, bad - 1), 2 * step
        else:
            bad, step = at, 1
            at = (good + bad) // 2 if to is None else min(to, bad - 1)
        at = max(at, good + 1)
    return good
