"""``plan()``: searches all sensible configurations and returns the proposed one with its ranking and assumptions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

from predictor.answer.cautions import cautions, of_framework
from predictor.answer.prediction import Remedy
from predictor.answer.remedies import remedies
from predictor.common.errors import InputError
from predictor.common.progress import Progress
from predictor.formula import learned
from predictor.jobs import dispatch, training_job
from predictor.jobs.training_job import Job
from predictor.plan import cost, knobs
from predictor.plan.background import Background
from predictor.plan.examples import Examples, nothing
from predictor.plan.maxima import Maximum, maximum, with_expandable
from predictor.plan.memory import Counts, Memory, Point, smallest
from predictor.plan.methods import Method, methods
from predictor.plan.own_files import OwnFiles, own_files
from predictor.plan.search import (
    QUIET,
    Candidate,
    Configuration,
    Found,
    Queue,
    Telling,
    Wanted,
    any_shape,
    differing,
    keeps_formulas,
    predicted,
    queue,
    walk,
)
from predictor.plan.setting import BATCH, LENGTH, STEPS, Setting
from predictor.plan.shapes import candidates, splits
from predictor.plan.space import DATA, Space, space
from predictor.workload.value_sources import Source
from predictor.workload.workload import Workload

COST = Wanted()
"""Default of a search: the lowest cost per sample, on as many GPUs as the keys say."""


@dataclass(frozen=True)
class Plan:
    """The result of a search.

    Attributes:
        goal: one of :data:`predictor.plan.search.GOALS`.
        gpus: number of all GPUs.
        settings, configurations: number of settings, and of settings with their shapes. ``counts`` has what the search
            did with them.
        closest: if nothing fits, the smallest shape of the setting that needs the least, with the least GPU memory that
            it needs.
        found: configurations that fit, the proposed one first, and the other settings by result.
        methods: the cheapest configuration of each way to share the work, or why none fits; empty for one GPU.
        kept: keys that the user fixed and that would vary otherwise.
        largest: the largest micro batches that fit in the proposed setting; None if nothing fits.
        largest_expandable: the same with expandable segments; None if nothing fits, or if the setting has them.
        remedies: if nothing fits, changes of the configuration that ``standing`` names, each judged.
        knobs: savings of single changes to the configuration that ``standing`` names; ``before`` has its peaks.
        source: the files that the values came from, if a framework's configuration was read.
        own: these files, changed to the proposed configuration, or the reason why there are none; None if nothing was
            read, or if nothing fits.
        seconds: duration of the search.
        assumed: a sentence about the number of GPUs, if a launcher decides it and nobody gave it.
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
    largest: Maximum | None
    largest_expandable: Maximum | None
    remedies: tuple[Remedy, ...]
    closest: Configuration | None
    kept: tuple[str, ...]
    standing: str
    before: knobs.Peaks
    knobs: tuple[knobs.Knob, ...]
    assumptions: tuple[str, ...]
    not_modelled: tuple[str, ...]
    source: Source | None
    own: OwnFiles | str | None
    seconds: float
    assumed: str = ""

    @property
    def proposed(self) -> Configuration | None:
        """The best configuration that fits; None if nothing fits."""
        return self.found.fitting[0] if self.found.fitting else None


@dataclass(frozen=True)
class Waiting:
    """The settings of a space with their shapes.

    Attributes:
        shapes: each setting that has shapes.
        left_out: the other settings, each with the reason.
    """

    shapes: tuple[tuple[Setting, Sequence[Candidate]], ...]
    left_out: tuple[tuple[Setting, str], ...]

    @classmethod
    def of(cls, around: Space, job: Job, wanted: Wanted, label: Callable[[str], str]) -> Waiting:
        """Every setting with its shapes."""
        shapes_of = lru_cache(partial(candidates, around.fixed, job, wanted, label))
        shapes, left_out = [], []
        for setting in around.settings:
            try:
                shapes.append((setting, shapes_of(setting.keys.get(DATA) or job.workload.data_parallel_size,
                                                   setting.keys.get(LENGTH))))
            except InputError as error:
                left_out.append((setting, str(error)))
        return cls(tuple(shapes), tuple(left_out))

    @property
    def ranks(self) -> Iterator[list[tuple[Setting, Sequence[Candidate]]]]:
        """The settings in groups, of which each ranks after the one before, whatever it costs."""
        ordered = sorted(self.shapes, key=lambda row: differing(row[0]))
        return (list(rows) for _, rows in groupby(ordered, key=lambda row: differing(row[0])))


@dataclass(frozen=True)
class Standing:
    """The configuration whose knobs are tried: its name in reports, its peaks, and what each knob saves."""

    name: str
    workload: Workload
    before: knobs.Peaks
    knobs: tuple[knobs.Knob, ...]

    @classmethod
    def of(cls, name: str, workload: Workload) -> Standing:
        """Tries every knob of a workload.

        Raises:
            InputError: the workload cannot be predicted.
        """
        return cls(name, workload, *knobs.turned(workload))


def plan(given: Mapping[str, Any], wanted: Wanted = COST, *, trace: bool = True, label: Callable[[str], str] = str,
         telling: Telling = QUIET, whole: Mapping[str, Any] | None = None,
         source: Source | None = None) -> Plan:
    """Search the space around the keys that the user fixed.

    Args:
        given: keys of a workload, with ``gpu`` or ``capacity_bytes``. These keep their values; all others may vary.
        wanted: the goal of the search.
        trace: whether models without a shipped formula may be traced.
        label: the name of a key in messages.
        telling: shows the progress of traces and of the search.
        whole: the user's present configuration, complete. Its knobs are tried, and its global batch size is kept unless
            ``wanted`` sets another. None: ``given`` takes its place, if that is complete.
        source: the files that the values came from, if a framework's configuration was read.

    Raises:
        InputError: a workload may not have these keys, or they leave nothing to plan.
    """
    started = time.perf_counter()
    _check(given, label)
    wanted = _with_batch_of(whole, wanted, label)
    around = space(given, wanted.vary, wanted.keep, label, wanted.gpus, _present(whole, source), wanted.firm)
    versions = _releases(around.settings[0])
    if versions:
        given, whole = {**given, "versions": versions}, whole and {**whole, "versions": versions}
        around = space(given, wanted.vary, wanted.keep, label, wanted.gpus, _present(whole, source), wanted.firm)
    _check_length(around.settings[0], wanted)
    memory = Memory(telling.tracing, trace)
    with Background(memory) as background:
        examples = Examples(around, memory, background)
        waiting = Waiting.of(around, examples.job, wanted, label)
        found, queues = _searched(waiting, examples, wanted, telling, background)
    if not found.fitting and not found.failed:
        raise nothing(found.left_out)
    best = _with_cautions(found.fitting[0], source, memory) if found.fitting else None
    found.fitting[:1] = [best] if best else []
    chosen = best or _closest(queues, found, memory)
    try:
        standing = Standing.of(*_standing(whole, around, chosen, source))
    except InputError as error:  # the user's present configuration cannot be predicted
        found.left_out.append((Setting("what was given, as it is", (), (), whole or given), str(error)))
        standing = Standing.of(*_named(chosen))
    workload = standing.workload
    largest, largest_expandable = _maxima(best, queues, wanted, memory) if best else (None, None)
    return Plan(
        goal=wanted.maximize, gpu=workload.gpu or "the given capacity", gpus=workload.world_size,
        global_batch_size=wanted.global_batch_size, capacity_bytes=_capacity(workload), found=found,
        methods=methods(found, queues, memory) if workload.world_size > 1 else (),
        settings=len(around.settings), counts=memory.counts,
        configurations=sum(len(shapes) for _, shapes in waiting.shapes),
        largest=largest, largest_expandable=largest_expandable,
        remedies=() if best else remedies(workload, trace=trace, progress=telling.tracing),
        closest=None if best else chosen,
        kept=tuple(key for key in around.kept if key not in (BATCH, STEPS) or not splits(around.fixed, wanted)),
        standing=standing.name, before=standing.before, knobs=standing.knobs,
        assumptions=cost.assumptions(examples.job.gpu, workload.world_size, examples.tensor_parallel),
        not_modelled=chosen.prediction.not_modelled + (source.left_out(workload_of(chosen)) if source else ()),
        source=source, own=_own_files(whole, source, best, trace=trace, progress=telling.tracing),
        seconds=time.perf_counter() - started)


def _searched(waiting: Waiting, examples: Examples, wanted: Wanted, telling: Telling,
              background: Background) -> tuple[Found, list[Queue]]:
    """The result of the search, with the settings that it looked at.

    Settings that rank after all that was wanted are not looked at: their facts may need traces.
    """
    found, queues = Found(left_out=list(waiting.left_out)), list[Queue]()
    ranks = list(waiting.ranks)
    for rows, later in zip(ranks, [*ranks[1:], []]):
        if found.is_enough(wanted.top, [setting for setting, _ in rows]):
            found.unseen += [setting for setting, _ in rows]
            continue
        ready = []
        for setting, shapes in rows:
            try:
                ready.append(queue(setting, shapes, wanted.maximize, *examples.known(setting)))
            except InputError as error:
                found.left_out.append((setting, str(error)))
        background.later = [any_shape(setting, shapes) for setting, shapes in later]
        walk(ready, examples.memory, wanted.top, _capacity(examples.job.workload), found, telling, background)
        queues += ready
    found.fitting = [row for _, rows in groupby(found.fitting, key=_worth) for row in sorted(
        rows, key=lambda row: row.prediction.peak_reserved_bytes)]
    return found, queues


def _worth(row: Configuration) -> tuple[object, ...]:
    """What ranks a configuration. Of neighbours that are equal in it, the one that reserves least comes first."""
    shape, engine = row.candidate, row.setting.keys.get("engine")
    return (engine, *differing(row.setting), shape.batch, shape.accumulation, shape.sequence,
            row.estimate.seconds_per_sample)


def _check(given: Mapping[str, Any], label: Callable[[str], str]) -> None:
    """Rejects keys that cannot be planned."""
    if given.get("mode") == "inference":
        raise InputError(f"{label('mode')} is inference, but a plan is for training: leave it out, or use peakcast "
                         "predict")
    if given.get("gpu") is None and given.get("capacity_bytes") is None:
        raise InputError(f"{label('gpu')} is not given: name one, such as h100-80gb, or give {label('capacity_bytes')}")


def _check_length(setting: Setting, wanted: Wanted) -> None:
    """Asks for the tokens of a sample, if nobody gave them and the model takes any, before anything is traced."""
    given = setting.keys.get(LENGTH) or wanted.maximize == "sequence"
    if not given and not learned.is_learned_file(setting.keys["model"]):
        dispatch.resolve(setting.at_any_shape)


def _releases(setting: Setting) -> dict[str, str] | None:
    """The installed releases, if the model must be traced with them and no versions are given; else None."""
    if learned.is_learned_file(setting.keys["model"]):
        return None
    try:
        start = smallest(setting)
        versions = dispatch.for_installed(start, training_job.traceable).versions
    except InputError:  # the search says why it cannot be traced
        return None
    return dict(versions) if versions != start.versions else None


def _present(whole: Mapping[str, Any] | None, source: Source | None) -> Workload | None:
    """The user's present configuration; None if it is unknown or no valid workload."""
    with suppress(InputError):
        return Workload.from_mapping(whole).read_from(source) if whole else None
    return None


def _with_batch_of(whole: Mapping[str, Any] | None, wanted: Wanted, label: Callable[[str], str]) -> Wanted:
    """The goal of the search with the present configuration's global batch size, if the goal is cost and sets none."""
    if not whole or wanted.global_batch_size is not None or wanted.maximize != "cost":
        return wanted
    now = Workload.from_mapping(whole, label)
    return replace(wanted, global_batch_size=now.per_device_train_batch_size * now.gradient_accumulation_steps *
                   now.data_parallel_size)


def _maxima(best: Configuration, queues: Sequence[Queue], wanted: Wanted, memory: Memory
            ) -> tuple[Maximum, Maximum | None]:
    """The largest micro batches of the proposed setting, as it is and with expandable segments."""
    shapes = None if wanted.global_batch_size is None else next(
        queue.shapes for queue in queues if queue.setting == best.setting)
    expandable = with_expandable(best) if wanted.maximize != "sequence" else None
    return (maximum(best, shapes, wanted.maximize, memory),
            maximum(expandable, shapes, wanted.maximize, memory) if expandable else None)


def _with_cautions(best: Configuration, source: Source | None, memory: Memory) -> Configuration:
    """The configuration with its cautions, also of what the user's framework may take beyond it."""
    shape, prediction = best.candidate, best.prediction
    job = memory.job(best.setting, Point(shape.batch, shape.sequence), shape.accumulation)
    found = cautions(job, prediction.verdict, prediction.reserved)
    more = of_framework(job, source, prediction.reserved)
    return replace(best, prediction=replace(prediction, cautions=(*found, *more)))


def _own_files(whole: Mapping[str, Any] | None, source: Source | None, best: Configuration | None, *, trace: bool,
               progress: Progress | None) -> OwnFiles | str | None:
    if whole is None or source is None or best is None:
        return None
    return own_files(Workload.from_mapping(whole).read_from(source), workload_of(best), trace=trace, progress=progress)


def _closest(queues: Sequence[Queue], found: Found, memory: Memory) -> Configuration:
    """The smallest shape of the setting that needs the least memory, when no setting fits.

    Of settings that were ruled out by what every shape needs, that decides. Settings that cannot be predicted are left
    out.

    Raises:
        InputError: no setting can be predicted.
    """
    for near in sorted(queues, key=lambda queue: memory.least.get(queue.setting, queue.states_bytes)):
        try:
            return _smallest(near, memory)
        except InputError as error:
            if near.setting in found.failed:
                found.failed.remove(near.setting)
                found.left_out.append((near.setting, str(error)))
    raise nothing(found.left_out)


def _smallest(near: Queue, memory: Memory) -> Configuration:
    """The smallest shape of a setting that can be predicted."""
    near.at = 0
    if not memory.trace:
        keeps_formulas(near, memory)
    near.at = min(range(len(near.candidates)), key=lambda at: (near.candidates[at].batch * (
        near.candidates[at].sequence or 1), near.candidates[at].accumulation))
    return predicted(near, memory, minimum_capacity=True)


def _standing(whole: Mapping[str, Any] | None, around: Space, chosen: Configuration,
              source: Source | None) -> tuple[str, Workload]:
    """The configuration whose knobs are tried, with its name: the user's if it is complete, else the chosen one."""
    if whole:
        return "given", Workload.from_mapping(whole).read_from(source)
    engine = {"engine", "zero_stage", "deepspeed"} & around.fixed.keys() or (around.given.get(DATA) or 1) == 1
    if BATCH in around.fixed and engine and (LENGTH in around.fixed or chosen.candidate.sequence is None):
        return "given", Workload.from_mapping(around.given)
    return _named(chosen)


def _named(chosen: Configuration) -> tuple[str, Workload]:
    return "proposed" if chosen.prediction.verdict == "fits" else "closest", workload_of(chosen)


def _capacity(workload: Workload) -> int:
    assert workload.capacity is not None  # _check() asks for a GPU or a capacity
    return workload.capacity


def workload_of(configuration: Configuration) -> Workload:
    """The workload of a configuration: its setting at its shape."""
    shape = configuration.candidate
    return configuration.setting.workload(shape.batch, shape.accumulation, shape.sequence)
