"""Finds the largest shape that fits: first by the closed form of one rank, then by simulating the allocator.

The closed form gives requested bytes. The allocator never needs less, so shapes that exceed the capacity by it cannot
fit. Memory grows with the shape, so halving finds the largest of the remaining shapes that survives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from predictor.common.errors import InputError, OtherReleases
from predictor.common.progress import Progress
from predictor.events import timeline
from predictor.events.composed_run import sizes_at
from predictor.events.regimes import Regime, regime_of
from predictor.events.sizes import Shape
from predictor.formula import interpreter, learned, store, tracing
from predictor.formula.formula_key import formula_key, regimes_at
from predictor.jobs import dispatch, training_job
from predictor.jobs.survival import Peaks
from predictor.jobs.training_job import Job
from predictor.model import models
from predictor.model.code_models import CodeModel
from predictor.model.model_config import Modality, ModelConfig
from predictor.model.request import Request
from predictor.plan.setting import BATCH, LENGTH, STEPS, Setting
from predictor.profile import corrections
from predictor.workload.workload import Workload

SOME = 8_192
"""Tokens; the sequence length of an example job, if the user gives none."""
NEAR = 4
"""Tries in a row that follow their hints alone. Each further one goes back twice as far as the one before."""

ANY = regime_of(Shape(0, 0, 0))
"""Takes the place of the regime where it does not matter."""


class Point(NamedTuple):
    """A shape: samples of a micro batch, and tokens of each sample."""

    batch: int
    sequence: int | None


class Question(NamedTuple):
    """Which shapes of a setting fit.

    Attributes:
        micro_steps: number of accumulated micro-batches.
        points: the shapes, in ascending order.
        smaller: smaller shapes of the setting, in ascending order.
    """

    setting: Setting
    micro_steps: int
    points: Sequence[Point]
    smaller: Sequence[Point]


@dataclass
class Counts:
    """Counts of the work that a search did.

    Attributes:
        ruled_out: configurations that cannot fit at any batch size.
        decided: configurations that closed forms compared with the capacity.
        composed: closed forms that were computed.
        simulated: runs through the allocator's simulation.
        traced: formulas that had to be traced.
        no_formula: configurations left out because their shape has no formula; others of the setting have one.
    """

    ruled_out: int = 0
    decided: int = 0
    composed: int = 0
    simulated: int = 0
    traced: int = 0
    no_formula: int = 0


@dataclass
class Memory:
    """Decides which shapes of a setting fit, and caches the results.

    Attributes:
        trace: whether jobs without a formula may be traced.
        least: bytes that the smallest shape of a setting needs at least, for the settings examined so far.
        short: other choices (:attr:`Setting.rest`) of settings whose first shapes did not fit.
    """

    progress: Progress | None = None
    trace: bool = True
    counts: Counts = field(default_factory=Counts)
    least: dict[Setting, float] = field(default_factory=dict)
    short: set[tuple[str, ...]] = field(default_factory=set)
    _largest: dict[tuple[Setting, int, Point, Point, int], int] = field(default_factory=dict)

    def job(self, setting: Setting, point: Point, accumulation: int) -> Job:
        """The training job that a setting describes, at one micro-batch shape and number of accumulated micro-batches.

        Raises:
            NotTraced: the job has no formula, and tracing is switched off.
            InputError: the job cannot be predicted for another reason.
        """
        return self._prepared(setting.workload(point.batch, accumulation, point.sequence), dispatch.prepare, self.trace)

    def example(self, setting: Setting, *, trace: bool) -> Job:
        """A job of the setting at some shape: the smallest, whose trace a search needs first, or without a trace also
        one of several samples, if that has a formula."""
        if learned.is_learned_file(setting.keys["model"]):
            base = learned.load(setting.keys["model"]).base
            return dispatch.prepare(setting.workload(base.batch, 1, base.sequence or None))
        trace = trace and self.trace
        try:
            return self._prepared(smallest(setting), _unchecked, trace)
        except store.NotTraced:
            return self._prepared(smallest(setting, batch=2), _unchecked, trace)

    def _prepared(self, workload: Workload, prepare: Callable[[Workload, Progress | None], Job], trace: bool) -> Job:
        traces = not learned.is_learned_file(workload.model) and training_job.needs_trace(dispatch.resolve(workload))
        with store.existing_only(not trace):
            job = prepare(workload, self.progress)
        self.counts.traced += traces
        return job

    def largest(self, setting: Setting, accumulation: int, points: Sequence[Point]) -> int:
        """Index of the last point at which the worst rank survives; -1 if there is none. Points are in ascending order.

        Raises:
            InputError: as :meth:`job`.
        """
        key = setting, accumulation, points[0], points[-1], len(points)
        if key not in self._largest:
            self._largest[key] = self._search(setting, accumulation, points)
        return self._largest[key]

    def answer(self, question: Question) -> int:
        """Index of the last point at which the worst rank survives; -1 if there is none.

        Raises:
            InputError: as :meth:`job`.
        """
        setting, micro_steps, points, smaller = question
        if self.is_ruled_out(setting, micro_steps, points[0], smaller):
            return -1
        return self.largest(setting, micro_steps, points)

    def missing(self, question: Question) -> Hashable:
        """What all formulas have in common that a question needs and that can be traced; None if all exist already.

        Settings that differ in their engines, optimizers or degrees may need the same formulas.
        """
        setting, points = question.setting, [question.points[0], question.points[-1]]
        with suppress(InputError):  # the walk names what cannot be predicted
            if not learned.is_learned_file(setting.keys["model"]) and self.with_formula(setting, points) < {*points}:
                request = dispatch.resolve(setting.workload(points[0].batch, 1, points[0].sequence))
                key = replace(formula_key(request), regime=ANY)
                return key if _can_be_traced(request.config, key) else None
        return None

    def is_ruled_out(self, setting: Setting, accumulation: int, point: Point, smaller: Sequence[Point]) -> bool:
        """Whether a smaller shape exceeds the capacity already, so that this one need not be traced.

        Only looks where memory was short in a similar setting, and only if the shape has no formula yet: the traces of
        smaller shapes are needed then in any case.

        Args:
            smaller: smaller shapes of the setting, in ascending order.
        """
        if setting.rest not in self.short or learned.is_learned_file(setting.keys["model"]):
            return False
        with suppress(InputError):  # the walk names what cannot be predicted
            if not self.with_formula(setting, [point]):
                bounds = (self._beyond(setting, accumulation, [other]) for other in smaller)
                return any(bound is not None and bound[0] > 0 for bound in bounds)
        return False

    def survives(self, setting: Setting, point: Point, accumulation: int, rank: int) -> bool:
        """Whether one rank surely survives at a shape.

        Raises:
            InputError: as :meth:`job`.
        """
        job = self.job(setting, point, accumulation)
        self.counts.simulated += 1
        return isinstance(job.fitting([rank]), Peaks)

    def with_formula(self, setting: Setting, points: Sequence[Point]) -> set[Point]:
        """The points whose regime has a formula already.

        Raises:
            InputError: the setting cannot be predicted.
        """
        first = dispatch.resolve(setting.workload(points[0].batch, 1, points[0].sequence))
        images = first.workload.images_per_sample
        assert images is not None  # a resolved workload has it
        requests = [first.at(Shape(batch, sequence or 0, batch * images)) for batch, sequence in points]
        has: dict[Regime, bool] = {}
        found = set()
        for point, request, regime in zip(points, requests, regimes_at(first, [one.shape for one in requests])):
            if regime not in has:
                has[regime] = not training_job.needs_trace(request)
            if has[regime]:
                found.add(point)
        return found

    def _search(self, setting: Setting, accumulation: int, points: Sequence[Point]) -> int:
        beyond = self._beyond(setting, accumulation, points)
        count = len(points) if beyond is None else int(np.searchsorted(beyond, 0, side="right"))

        def tried(index: int) -> int | None:
            """The index if its worst rank survives; else the last index that may survive, None if that is unknown."""
            job = self.job(setting, points[index], accumulation)
            found = job.fitting(job.ranks(job.sure_bytes)[:1])
            self.counts.simulated += 1
            if isinstance(found, Peaks):
                return index
            return None if beyond is None else \
                min(index, int(np.searchsorted(beyond, -found.idle_bytes, side="right"))) - 1

        return last(tried, count, near_the_end=beyond is not None)

    def _beyond(self, setting: Setting, accumulation: int, points: Sequence[Point]) -> np.ndarray | None:
        """Bytes by which each point exceeds the capacity at least; 0 or less for a point that may fit.

        None if each shape has a formula of its own, so that no closed form covers them.
        """
        if learned.is_learned_file(setting.keys["model"]):
            return None
        request = dispatch.resolve(setting.workload(points[0].batch, accumulation, points[0].sequence))
        images = request.workload.images_per_sample
        assert images is not None  # a resolved workload has it
        shapes = [Shape(batch, sequence or 0, batch * images) for batch, sequence in points]
        groups: dict[Regime, list[Shape]] = {}
        for shape, regime in zip(shapes, regimes_at(request, shapes)):
            groups.setdefault(regime, []).append(shape)
        beyond: list[np.ndarray] = []
        before: Job | None = None
        for shapes in groups.values():
            first = Point(shapes[0].batch, shapes[0].sequence or None)
            several = len(shapes) > 1
            if beyond and (beyond[-1][-1] > 0 or (
                    several and before and training_job.needs_trace(request.at(shapes[-1]))
                    and self._is_doubtful(before, shapes[0])
                    and self._exceeds(setting, first, accumulation))):  # larger shapes do not fit either
                beyond.append(np.full(len(shapes), np.inf))
                continue
            with store.asked(store.Asked.SEVERAL_SHAPES if several else store.Asked.UNKNOWN):
                before = job = self.job(setting, first, accumulation)
            if several and not job.formula.regime.is_wide:
                return None
            self.counts.composed += 1
            beyond.append(self._closed_form(job, shapes))
            self.least[setting] = min(self.least.get(setting, math.inf), beyond[0][0] + job.sure_bytes)
        return np.maximum.accumulate(np.concatenate(beyond))

    def _is_doubtful(self, smaller: Job, shape: Shape) -> bool:
        """Whether a shape of another regime probably exceeds the capacity: whether one sample with as many tokens does.

        Args:
            smaller: the job of a smaller shape.
        """
        batch, sequence, images = smaller.shape
        return self._closed_form(smaller, [Shape(batch, sequence * shape.batch // batch, images)])[0] > 0

    def _exceeds(self, setting: Setting, point: Point, accumulation: int) -> bool:
        """Whether one shape exceeds the capacity. Takes a fraction of the time of the trace of all larger ones."""
        with store.asked(store.Asked.ONE_SHAPE):
            job = self.job(setting, point, accumulation)
        return self._closed_form(job, [job.shape])[0] > 0

    def is_known_to_exceed(self, setting: Setting, point: Point, accumulation: int) -> bool:
        """Whether a shape has a formula, and exceeds the capacity by it."""
        with suppress(InputError), store.existing_only():
            return self._exceeds(setting, point, accumulation)
        return False

    def _closed_form(self, job: Job, shapes: Sequence[Shape]) -> np.ndarray:
        """Bytes by which the requested peak at each shape exceeds what PyTorch certainly gets, of the rank that is
        worst at the first shape."""
        limit = job.sure_bytes
        events = job.composed(limit, job.ranks(limit)[0])
        if len(shapes) == 1:
            peaks = timeline.running_sum(events, sizes_at(events, shapes[0], job.gpu)).max(keepdims=True)
        else:
            batch, sequence, images = np.array([tuple(shape) for shape in shapes]).T
            peaks = timeline.closed_form(events, at_least=job.lowest()).peaks(batch, sequence, images, job.gpu)
        return peaks * min(1.0, *(corrections.coefficients(job.profile) or (1.0,))) - limit


def _can_be_traced(config: ModelConfig | None, key: store.Key) -> bool:
    """Whether its packages are installed, in any releases. A model in the user's own code is not traced unasked."""
    if config is None or isinstance(config, CodeModel):
        return False
    with suppress(OtherReleases):
        if not interpreter.CHOSEN.get():
            tracing.require(config, key)
    return True


def smallest(setting: Setting, batch: int = 1) -> Workload:
    """A workload of the setting with so many samples and a few tokens, unless the setting fixes them.

    Raises:
        InputError: the setting cannot be predicted.
    """
    length = setting.keys.get(LENGTH) or (
        None if models.find(setting.keys["model"]).kind is Modality.IMAGE else SOME)
    return dispatch.resolve(setting.workload(setting.keys.get(BATCH) or batch, setting.keys.get(STEPS) or 1, length)
                            ).workload


def _unchecked(workload: Workload, progress: Progress | None) -> Job:
    """A job at a shape that need not be valid, such as one that exceeds the model's positions."""
    return training_job.job_of_request(Request.of(workload), progress)


def last(tried: Callable[[int], int | None], count: int, *, near_the_end: bool) -> int:
    """The last of ``count`` indices that holds; -1 if none holds. All indices before one that holds also hold.

    Args:
        tried: returns its argument if that index holds; else a hint, the last index that may hold, or None. Without a
            hint the search halves.
        near_the_end: whether to begin at the last index instead of the first.
    """
    good, bad, step, misses = -1, count, 1, 0
    at = count - 1 if near_the_end else 0
    while bad - good > 1:
        hint = tried(at)
        if hint == at:
            good, at, step, misses = at, min(at + step, bad - 1), 2 * step, 0
        else:
            bad, step, misses = at, 1, misses + 1
            back = 2 ** max(0, misses - NEAR)  # hints that lead on by one index at a time are left behind
            at = (good + bad) // 2 if hint is None else min(hint, bad - back)
        at = max(at, good + 1)
    return good
