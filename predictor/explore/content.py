"""The content of a page: settings, composed runs, and all other data of a prediction, as JSON and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from predictor.allocator.settings import with_expandable_segments
from predictor.answer.answer import LOOP, not_modelled
from predictor.answer.decisive_defaults import assumed_gpus
from predictor.common.errors import InputError
from predictor.events.composed_run import LARGEST_BUFFER_BYTES
from predictor.events.events import FACTORS, MOMENTS
from predictor.explore import packing
from predictor.explore.candidates import candidates, start_up
from predictor.explore.packing import PackedRun, Tables
from predictor.explore.remedies import accumulating, constants, expandable, of_choices, proposed_engines
from predictor.explore.settings import (
    MOST_IMAGES,
    Controls,
    EngineChoice,
    Settings,
    engine_of,
    profile_of,
    reasons,
    several_images,
    traced_names,
)
from predictor.jobs import training_job
from predictor.jobs.training_job import Job
from predictor.model.request import Request
from predictor.profile import corrections, outside_pytorch
from predictor.profile.corrections import Margin
from predictor.profile.job_traits import COUNTERS, traits_of
from predictor.profile.profile import EXTRAPOLATION, EXTRAPOLATION_FACTOR, Choice, choose
from predictor.profile.reach import OTHER_VERSION, reaches, versions_of
from predictor.report.svg import COLOURS
from predictor.report.timeline_columns import STACK
from predictor.report.verdict import ASSUMED, how_known
from predictor.version import VERSION
from predictor.workload.workload import Workload

Progress = Callable[[Sequence], Iterable]
EXTRAPOLATED = "…"
"""Placeholder for the list of what the profile does not cover, which depends on the shape."""


@dataclass(frozen=True)
class Content:
    """JSON data, and the encoded columns that it refers to by number."""

    document: Mapping[str, Any]
    columns: bytes


def content(settings: Settings, command: Sequence[str], progress: Progress = lambda rows: rows,
            training: Sequence[str] = ()) -> Content:
    """Composes all runs of a page and packs them.

    Args:
        command: words of the ``peakcast predict`` command line that the page's controls do not set.
        progress: wraps the list of runs to compose.
        training: words that follow those of the controls (``--`` and a training command).
    """
    tables = Tables()
    traced = traced_names(settings)
    groups = _groups(settings, traced)
    formulas = [{"key": key, "traced": packing.pack_traced(micro, tables), "sizes": packing.sizes(micro), "runs": {}}
                for key, jobs in groups.items() for micro in [next(iter(jobs.values())).micro]]
    limits = _page_limits(settings)
    starts: dict[str, list[Sequence[StartUp]]] = {}
    engines = proposed_engines(settings)
    rows = [(number, _run_name(setting), steps, job) for number, jobs in enumerate(groups.values())
            for setting, own in jobs.items() for steps, job in {0: own, **accumulating(settings, own, engines)}.items()]
    for number, name, steps, job in progress(rows):
        formulas[number]["runs"][f"{name} x{steps}" if steps else name] = _runs(
            job, limits, tables, starts.setdefault(name, []))
    base = settings.base
    document = {
        "version": VERSION, "model": base.model, "command": list(command), "training": list(training),
        "moments": [m.value for m in MOMENTS],
        "factors": [{"name": factor.value, "colour": COLOURS[factor]} for factor in FACTORS],
        "stack": [FACTORS.index(factor) for factor in STACK],
        "first": {"batch": base.per_device_train_batch_size, "sequence": base.sequence_length or 0,
                  "images": base.images_per_sample or 0, "checkpointing": base.gradient_checkpointing,
                  "engine": engine_of(base).name, "degree": base.data_parallel_size,
                  "gpu": base.gpu},
        "limits": _limits(settings), "engines": _engines(settings, traced), "gpus": _gpus(settings),
        "rows": settings.rows,
        "left_out": reasons(settings.left_out), "assumed": _assumed(settings.base), "far": EXTRAPOLATION_FACTOR,
        "extrapolation": EXTRAPOLATION, "largest_buffer_bytes": LARGEST_BUFFER_BYTES,
        "accumulation": base.gradient_accumulation_steps,
        "expandable": next(iter(settings.jobs.values())).setup.allocator.expandable_segments,
        "changes": {"of": of_choices(settings), "constants": constants()}, "provenance": _provenance(settings),
        "workload": {name: value for name, value in base.resolved().items() if value not in (None, [], {})},
        "formulas": formulas, "made": [tables.store.add(column) for column in packing.attributes(tables)],
        "names": list(tables.names), "ends": tables.store.ends}
    return Content(document, tables.store.stream)


def _assumed(base: Workload) -> str:
    """Says that the page starts with one GPU because nothing gives their number; else empty."""
    return assumed_gpus(base.source, base.filled_in, base.engine, base.zero_stage)


def _groups(settings: Settings, traced: Mapping[EngineChoice, str]) -> dict[str, dict[Controls, Job]]:
    """The jobs by formula, which is named by checkpointing, what else the trace depends on, and regime.

    Args:
        traced: :func:`~predictor.explore.settings.traced_names` of the settings.

    Raises:
        InputError: the jobs of one name have different formulas, of which the page would have only one.
    """
    groups: dict[str, dict[Controls, Job]] = {}
    for setting, job in settings.jobs.items():
        key = "on" if setting.checkpointing else "off", traced[setting.engine], setting.backend, *setting.regime.names()
        jobs = groups.setdefault(" ".join(key), {setting: job})
        if job.formula.provenance["key"] != next(iter(jobs.values())).formula.provenance["key"]:
            raise InputError(f"explore: {setting.engine.label} has another formula on {setting.degree} GPUs, which a "
                             "page does not have: use peakcast predict")
        jobs[setting] = job
    return groups


def _run_name(setting: Controls) -> str:
    return f"{setting.engine.name} {setting.degree}"


def _runs(job: Job, limits: Sequence[int], tables: Tables, starts: list[Sequence[StartUp]]) -> dict[str, Any]:
    """The packed runs of an engine at one degree, for the ranks that matter.

    These are the ranks that every prediction simulates, and those that can request the most at some shape.

    Args:
        limits: bytes that PyTorch may reserve, for all GPUs of the page.
        starts: start-ups of this engine at this degree, which formulas share: those of the workload's allocator
            settings, and those with expandable segments. They are added if they are missing.
    """
    setup = replace(job.setup, capacity_bytes=None)
    runs = {rank: training_job.compose(job.formula, setup, rank) for rank in job.different_ranks()}
    highest = candidates(runs, job.lowest())
    packed: dict[int, PackedRun] = {}
    for rank in sorted({*job.judged_ranks(), *highest.rank.tolist()}):
        same = next((other for other in packed if runs[other] is runs[rank]), None)
        packed[rank] = packing.pack_run(runs[rank], job.micro, tables) if same is None else packed[same]
    if not starts:
        starts += [_starts(job, limits, tables), _starts(expandable(job), limits, tables)]
    return {"judged": job.judged_ranks(), "ranks": {rank: run.steps for rank, run in packed.items()},
            "starts": starts, "instances": packed[0].instances,
            "candidates": {"rank": tables.store.add(highest.rank),
                           "sums": tables.store.add(highest.coefficients.ravel())}}


class StartUp(NamedTuple):
    """A start-up as the page has it.

    Attributes:
        limit: bytes that PyTorch may reserve, from which on this start-up applies; None without a limit.
        start: numbers of its columns.
        highest: its requested peak in bytes.
    """

    limit: int | None
    start: tuple[int, ...]
    highest: int


def _starts(job: Job, limits: Sequence[int], tables: Tables) -> list[StartUp]:
    """The different start-ups of an engine, in order of their limits. The last one is without a limit.

    DeepSpeed flattens its parameter groups one after the other, on the GPU if memory suffices. With a higher limit more
    groups are flattened on the GPU. So if start-up is the same at two limits, it is the same between them.

    Raises:
        InputError: the limit also changes the steps.
    """
    known: dict[int | None, tuple[PackedRun, int]] = {}

    def at(limit: int | None) -> tuple[tuple[int, ...], int]:
        if limit not in known:
            run = training_job.compose(job.formula, replace(job.setup, capacity_bytes=limit), 0)
            known[limit] = packing.pack_run(run, job.micro, tables), int(start_up(run).max())
        packed, highest = known[limit]
        if packed.steps != known[None][0].steps:
            raise InputError("explore: with less memory this engine's steps differ too, which the page does not have")
        return packed.start, highest

    without = at(None)

    def between(low: int, high: int) -> list[int]:
        """Indices into ``limits`` from ``low + 1`` to ``high`` at which the start-up changes."""
        if at(limits[low]) == at(limits[high]):
            return []
        if high - low == 1:
            return [high]
        middle = (low + high) // 2
        return between(low, middle) + between(middle, high)

    places = [0, *between(0, len(limits) - 1)] if limits else []
    return [*(StartUp(limits[place], *at(limits[place])) for place in places), StartUp(None, *without)]


def _page_limits(settings: Settings) -> list[int]:
    """All limits, in ascending order, that a prediction in the page can have: bytes that PyTorch may reserve."""
    limits = {limit for gpu, job, times in product(settings.gpus, _runtime_jobs(settings), range(MOST_EXTRAPOLATED))
              for limit in _margin(settings, gpu, job, times).limits(_capacity(settings, gpu))}
    return sorted(limit for limit in limits if limit is not None)


MOST_EXTRAPOLATED = 24
"""Upper bound on the number of job traits, versions and quantities that a profile does not cover."""


def _capacity(settings: Settings, gpu: str) -> int:
    return settings.base.capacity_bytes or settings.gpus[gpu].capacity_bytes


def _profile(settings: Settings, gpu: str) -> Choice | None:
    return choose(profile_of(settings.base, gpu), gpu, settings.base.versions, {})


def _margin(settings: Settings, gpu: str, job: Job, times: int = 0) -> Margin:
    """The margin of a job on a GPU, with a number of ways in which it is outside of the profile."""
    chosen = _profile(settings, gpu)
    ranks, named = job.setup.world_size, settings.base.gpu or settings.base.capacity_bytes is None
    outside = outside_pytorch.assumed(settings.gpus[gpu] if named else None, ranks, job.communicators)
    return corrections.margin(chosen and replace(chosen, outside=dict.fromkeys(map(str, range(times)), OTHER_VERSION)),
                              ranks, outside, job.workload.zero_stage)


def _runtime_jobs(settings: Settings) -> list[Job]:
    """One job of each memory outside PyTorch's allocator."""
    return list({(job.setup.world_size, job.communicators, job.workload.zero_stage): job
                 for job in settings.jobs.values()}.values())


def _limits(settings: Settings) -> dict[str, Any]:
    """Limits of the shape: the tokens that images take, and the model's positions."""
    each = [job.formula.facts for job in settings.jobs.values()]
    facts = next((facts for facts in each if facts.image_tokens), each[0])
    room = [facts.room(images) for images in range(max(MOST_IMAGES, settings.base.images_per_sample or 0) + 1)]
    return {"room": room, "apart": bool(facts.image_tokens), "positions": facts.positions,
            "images": several_images(settings), "tokens": bool(settings.base.sequence_length),
            "batches": list(settings.batches)}


def _engines(settings: Settings, traced: Mapping[EngineChoice, str]) -> list[Mapping[str, Any]]:
    source = settings.base.source
    engines: list[Mapping[str, Any]] = []
    for choice in dict.fromkeys(setting.engine for setting in settings.jobs):
        jobs = {setting.degree: job for setting, job in settings.jobs.items() if setting.engine == choice}
        if jobs:
            engines.append({"name": choice.name, "label": choice.label, "degrees": sorted(jobs),
                            "tensor": choice.tensor, "traced": traced[choice], "option": choice.option,
                            "notes": {degree: job.notes() + (source.left_out(job.workload) if source else ())
                                      for degree, job in jobs.items()}})
    return engines


def _gpus(settings: Settings) -> list[Mapping[str, Any]]:
    gpus: list[Mapping[str, Any]] = []
    for name, gpu in settings.gpus.items():
        major, minor = gpu.compute_capability
        chosen = _profile(settings, name)
        loop = LOOP.format("evaluation")
        gpus.append({
            "name": name, "capacity_bytes": _capacity(settings, name), "label": gpu.memory_label, "major": major,
            "minor": minor, "multiprocessors": gpu.multiprocessors,
            "threads_per_multiprocessor": gpu.threads_per_multiprocessor, "measured": gpu.measured,
            "given": settings.base.capacity_bytes is not None,
            "shared_memory_block_bytes": gpu.shared_memory_block_bytes, "backend": settings.backends[name],
            "not_modelled": not_modelled(chosen and replace(chosen, outside={}), loop),
            "runtime": _runtime(settings, name),
            "outside_pytorch": _outside_pytorch(chosen),
            "profile_left_out": profile_of(settings.base, name) != settings.base.profile,
            "profile": chosen and _calibration(settings, name, chosen, loop)})
    return gpus


def _outside_pytorch(chosen: Choice | None) -> str:
    """How the memory outside PyTorch's allocator is known."""
    if chosen is None:
        return how_known(ASSUMED, ASSUMED)
    runtime = chosen.profile.runtime
    return how_known(runtime.measured_on, runtime.communicators_measured_on)


def _runtime(settings: Settings, gpu: str) -> Mapping[str, Mapping[int, Sequence[int]]]:
    """Bounds of the memory outside PyTorch, by engine and data-parallel degree."""
    bounds: dict[str, dict[int, Sequence[int]]] = {}
    for setting, job in settings.jobs.items():
        margin = _margin(settings, gpu, job)
        bounds.setdefault(setting.engine.name, {})[setting.degree] = (margin.runtime_low, margin.runtime_high)
    return bounds


def _calibration(settings: Settings, gpu: str, chosen: Choice, loop: str) -> Mapping[str, Any]:
    """The profile of a GPU: its intervals, its runtime, and what it does not cover."""
    profile = chosen.profile
    versions: dict[str, Any] = {}
    other: dict[str, Any] = {}
    limited: dict[str, Any] = {}
    for setting, job in settings.jobs.items():
        if setting.backend != settings.backends[gpu]:
            continue
        checkpointing = "on" if setting.checkpointing else "off"
        for name, workload in _varied(job.workload, f"{setting.engine.name} {checkpointing}"):
            if name in versions:
                continue
            # a replaced workload has lost what the model filled in, such as no images
            workload = workload.replace(**{key: getattr(job.workload, key) for key in SHAPE}, gpu=gpu)
            request = Request.of(workload)
            with_traits = choose(profile_of(settings.base, gpu), gpu, versions_of(workload), {},
                                 traits_of(request, job.formula), reaches(request, job.formula))
            assert with_traits is not None  # the same profile as ``chosen``
            outside = with_traits.outside
            versions[name] = [way for way, reach in outside.items() if reach is OTHER_VERSION]
            other[name] = [way for way in outside if way not in versions[name]]
            limited[name] = {way: reach.counters for way, reach in outside.items() if reach.counters != COUNTERS}
    return {
        "name": chosen.name, "measured_on": profile.measured_on, "versions": versions, "kinds": other,
        "limited": limited, "calibrated": profile.calibrated,
        "residuals": {name: [interval.low, interval.high] for name, interval in profile.residuals.items()},
        "levels": {name: interval.level for name, interval in profile.residuals.items()},
        "not_modelled": not_modelled(replace(chosen, outside={EXTRAPOLATED: OTHER_VERSION}), loop)}


def _varied(workload: Workload, name: str) -> Iterator[tuple[str, Workload]]:
    """The workload and its remedies with other traits, by the name that the page gives them."""
    several = workload.replace(gradient_accumulation_steps=max(2, workload.gradient_accumulation_steps))
    conf = with_expandable_segments(workload.allocator_conf) or workload.allocator_conf
    for label, varied in ((name, workload), (f"{name} several", several)):
        yield label, varied
        yield f"{label} expandable", varied.replace(allocator_conf=conf)


SHAPE = ("per_device_train_batch_size", "sequence_length", "images_per_sample")


def _provenance(settings: Settings) -> Mapping[str, Any]:
    base = settings.base
    return {"versions": dict(base.versions), "recipe": base.recipe,
            "formulas": sorted({f"{job.formula.provenance['source']}, tracer {job.formula.provenance['key']['tracer']}"
                                for job in settings.jobs.values()}),
            "fingerprint": next(iter(settings.jobs.values())).formula.provenance["key"]["fingerprint"]}
