"""Makes a learned formula from a source of records: records, aligns, fits and checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np

from calibrate.learn import sizes
from calibrate.learn.align import Group, groups
from calibrate.learn.jobs import RecordCache, Source, versions
from calibrate.learn.recorded_job import RecordedJob
from calibrate.learn.shapes import Plan
from predictor.allocator import AllocatorSettings
from predictor.common import gpus
from predictor.common.gpus import DEFAULT as DEFAULT_GPU
from predictor.events.composed_run import evaluate
from predictor.events.events import Buffers, EventList
from predictor.events.model_facts import ModelFacts, Parameter
from predictor.events.sizes import Shape
from predictor.formula.learned import MODEL_TYPE, Learned, LearnedList
from predictor.jobs import survival
from predictor.version import VERSION

Progress = Callable[[Sequence[Shape]], Iterable[Shape]]


@dataclass(frozen=True)
class Check:
    """A recorded job and the formula's prediction of it; bytes."""

    shape: Shape
    measured: dict[str, int]
    predicted: dict[str, int]

    @property
    def error_bytes(self) -> dict[str, int]:
        """Predicted minus measured bytes."""
        return {name: self.predicted[name] - size for name, size in self.measured.items()}


def learn(source: Source, plan: Plan, progress: Progress = lambda shapes: shapes) -> tuple[Learned, list[Check]]:
    """Record a job at the plan's shapes, and fit and check its formula.

    Raises:
        InputError: a job cannot be recorded.
    """
    cache = RecordCache(source)
    jobs = [cache.get(shape) for shape in progress(plan.shapes)]
    grouped, differences = groups(jobs)
    more = [*plan.single_sample] if any(shape.batch == 1 for group in grouped[1:] for shape in _shapes(group)) else []
    more += larger_shapes(grouped, plan.longest)
    if more:
        jobs += [cache.get(shape) for shape in progress(more)]
        grouped, differences = groups(jobs)
    learned = assemble(source, grouped, differences, jobs)
    checks = check(learned, jobs)
    learned.provenance["checked"] = [
        {"shape": list(row.shape), "measured": row.measured, "predicted": row.predicted} for row in checks]
    return learned, checks


def larger_shapes(grouped: Sequence[Group], longest: int | None = None) -> list[Shape]:
    """Larger shapes to record if only the largest ones have another list of events, because a kernel changes with the
    size."""
    if len(grouped) < 2:
        return []
    most = max(map(_extent, _shapes(grouped[0])))
    more: dict[Shape, None] = {}
    for group in grouped[1:]:
        shapes = _shapes(group)
        if len(shapes) < ENOUGH_SHAPES and all(shape.batch > 1 and _extent(shape) > most for shape in shapes):
            batch, sequence, images = max(shapes, key=_extent)
            for samples, tokens in LARGER_BY:
                several = batch + samples
                length = -(-sequence * tokens // 32) * 8
                length = min(length, longest) if longest else length
                more[Shape(several, length, images * several // batch)] = None
    return [shape for shape in more if shape not in {known for group in grouped for known in _shapes(group)}]


def _extent(shape: Shape) -> int:
    """Tokens in a batch; samples if they have no tokens."""
    return shape.batch * max(shape.sequence, 1)


ENOUGH_SHAPES = 5
"""Number of shapes that a list of events with several samples is fitted to."""
LARGER_BY = ((0, 5), (1, 4), (1, 6), (2, 5), (2, 7), (3, 4))
"""Additional samples, and quarters of the sequence, of each larger shape."""


def _shapes(group: Group) -> list[Shape]:
    return [job.shape for job in group.jobs]


def assemble(source: Source, grouped: Sequence[Group], differences: Sequence[str],
             jobs: Sequence[RecordedJob]) -> Learned:
    """The formula of groups of jobs."""
    about = jobs[0].about
    parameters = max((job.parameters for job in jobs), key=len)
    facts = ModelFacts(MODEL_TYPE, 0, 0, tuple(
        Parameter(p["name"], tuple(p["shape"]), p["itemsize"], p["trainable"], True, p["buffer"]) for p in parameters))
    provenance: dict[str, Any] = {
        "measured_on": about["measured_on"], "gpu": about["gpu"], "capacity_bytes": about["capacity_bytes"],
        "allocator_conf": about["allocator_conf"], "rank": about.get("rank", source.rank),
        "world_size": about.get("world_size", source.world_size),
        "versions": versions(about), "software": about["software"], "peakcast_version": VERSION,
        "learned_at": datetime.now(timezone.utc).isoformat(timespec="seconds"), "differences": list(differences)}
    workload = source.workload.resolved() if source.workload is not None else None
    return Learned(tuple(map(fit, grouped)), workload, source.command, facts, provenance)


def fit(group: Group) -> LearnedList:
    """One list of events, with its sizes as functions of the shape."""
    first, shapes = group.jobs[0], _shapes(group)
    versions_of = list(zip(*(job.size.tolist() for job in group.jobs)))
    row_of, table, guesses = sizes.fit(versions_of, shapes)
    names: dict[str, int] = {"": 0}

    def rows(texts: Sequence[str]) -> np.ndarray:
        return np.array([names.setdefault(text, len(names)) for text in texts], dtype=np.int32)

    buffers = Buffers(size=row_of, stream=first.stream.astype(np.int8), factor=first.factor.astype(np.int8),
                      module=rows(first.module), operator=rows(first.operator))
    events = EventList(kind=first.kind, buffer=first.buffer, moment=first.moment, step=first.step, buffers=buffers,
                       sizes=table, names=tuple(names))
    return LearnedList(events, tuple(shapes), _interpolated(first, row_of, guesses), group.moved_frees)


def _interpolated(job: RecordedJob, row_of: np.ndarray, guesses: dict[int, sizes.Guess]) -> tuple[dict[str, Any], ...]:
    """One row per operator and module with interpolated sizes, the least certain first."""
    counts: Counter = Counter()
    errors: dict[tuple[str, str], int] = {}
    for buffer, row in enumerate(row_of.tolist()):
        if row in guesses:
            key = job.operator[buffer], job.module[buffer]
            counts[key] += 1
            errors[key] = max(errors.get(key, 0), guesses[row].error_bytes or 0)
    return tuple({"operator": operator, "module": module, "buffers": count, "error_bytes": errors[operator, module]}
                 for (operator, module), count in sorted(counts.items(), key=lambda item: -errors[item[0]]))


def check(learned: Learned, jobs: Sequence[RecordedJob]) -> list[Check]:
    """All recorded jobs, each with the formula's prediction."""
    gpu = gpus.find(learned.provenance["gpu"] or DEFAULT_GPU)
    settings = AllocatorSettings.parse(learned.provenance["allocator_conf"] or "")
    rows = []
    for job in jobs:
        learned_list = next(item for item in learned.lists if job.shape in item.shapes)
        run = evaluate(learned_list.events, learned.provenance["rank"], job.shape, gpu)
        end = survival.simulate_run(run, settings, total_bytes=learned.provenance["capacity_bytes"])
        rows.append(Check(job.shape, dict(job.peaks), {
            "requested_bytes": run.peak, "allocated_bytes": end.peak_allocated_bytes,
            "reserved_bytes": end.peak_reserved_bytes}))
    return rows


def clear(source: Source) -> None:
    """Deletes the cached records; call it once the formula is written."""
    RecordCache(source).clear()
