"""The changes of a page: those of :mod:`predictor.answer.changes`, in its order, for each choice of the controls.

The page judges what its formulas can evaluate. Of the other changes it has the words, so that it can name them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from predictor.allocator.settings import AllocatorSettings, with_expandable_segments
from predictor.answer import changes
from predictor.answer.changes import BATCH, FURTHER, LENGTH, LENGTH_STEP, SHORTEST, STEPS, Change
from predictor.answer.remedies import ENOUGH, MOST_BASES, MOST_TOGETHER
from predictor.common.errors import InputError
from predictor.engine.setup import MICRO_STEPS
from predictor.explore.settings import PAGES_OWN, Controls, Settings, engine_of
from predictor.jobs.training_job import Job
from predictor.report.remedies import LONG, own_text
from predictor.workload.workload import Workload

NUMBERS = {BATCH: "batch", STEPS: "accumulation", LENGTH: "sequence"}
"""Keys whose new number depends on where the page's controls are -> the part of the page's setting."""
PROBES = 83, 61
"""Numbers that show where a number stands in a user's own words."""
OWN_RULES = {BATCH: "batch", LENGTH: "sequence", "gpu": "gpu"}
"""Keys whose changes depend on where the page's controls are -> the rule of ``remedies.js`` that proposes them."""
LARGE_BATCH, LONG_SEQUENCE = 97, 4096
"""A batch and a sequence length from which the table proposes smaller ones of each kind."""


def constants() -> Mapping[str, int]:
    """The numbers of the table's rules, which the page repeats."""
    return {"length_step": LENGTH_STEP, "further": FURTHER, "shortest": SHORTEST, "enough": ENOUGH,
            "most_together": MOST_TOGETHER, "most_bases": MOST_BASES}


def of_choices(settings: Settings) -> dict[str, list[Mapping[str, Any]]]:
    """The families of changes of each engine, degree and checkpointing, by :func:`name_of`."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for controls, job in settings.jobs.items():
        if name_of(controls) not in found:
            large = _large(settings, controls, job)
            found[name_of(controls)] = [_family(settings, large, family) for family in changes.of(large)]
    return found


def name_of(controls: Controls) -> str:
    """The name by which the page looks up the changes of a choice."""
    return f"{controls.engine.name} {controls.degree} {'on' if controls.checkpointing else 'off'}"


def accumulating(settings: Settings, job: Job, engines: Set[str]) -> dict[int, Job]:
    """The job with more micro-steps than the workload has, by how many are composed: for smaller micro batches.

    Only the workload's own degree has them, and of the engines those of :func:`proposed_engines`, as each costs as much
    as the choice itself.
    """
    workload = job.workload
    if workload.data_parallel_size != settings.base.data_parallel_size or engine_of(workload).name not in engines:
        return {}
    return {steps: replace(job, setup=replace(job.setup, gradient_accumulation_steps=steps))
            for steps in range(job.setup.micro_steps + 1, MICRO_STEPS + 1)}


def proposed_engines(settings: Settings) -> set[str]:
    """The workload's own engine, and those that changes of the workload propose."""
    own = engine_of(settings.base).name
    controls, job = next(row for row in settings.jobs.items() if row[0].engine.name == own)
    changed = (_controls(settings, job.workload, change)
               for family in changes.of(_large(settings, controls, job)) for change in family)
    return {own, *(found["engine"] for found in changed if found and "engine" in found)}


def expandable(job: Job) -> Job:
    """The job with expandable segments."""
    conf = with_expandable_segments(job.workload.allocator_conf)
    if conf is None:
        return job
    return replace(job, setup=replace(job.setup, allocator=AllocatorSettings.parse(conf)))


def _large(settings: Settings, controls: Controls, job: Job) -> Workload:
    """A workload of a choice to which the table has all its kinds of changes: with large samples, on a small GPU."""
    base, positions = settings.base, job.formula.facts.positions
    smallest = min((gpu for name, gpu in settings.gpus.items() if settings.backends[name] == controls.backend),
                   key=lambda gpu: gpu.capacity_bytes)
    length = base.sequence_length and max(base.sequence_length, min(LONG_SEQUENCE, positions or LONG_SEQUENCE))
    return job.workload.replace(
        per_device_train_batch_size=settings.batches[-1] if settings.batches else LARGE_BATCH, gpu=smallest.name,
        sequence_length=length, images_per_sample=base.images_per_sample)


def _family(settings: Settings, workload: Workload, family: Sequence[Change]) -> Mapping[str, Any]:
    """A family as the page has it: by a rule of its own, as settings, or in words."""
    first = family[0]
    known = {"costs": first.costs, "differs": first.differs, "hardware": first.is_hardware}
    rule = next((rule for key, rule in OWN_RULES.items() if key in first.keys), None)
    if rule:
        return known | {"rule": rule, "own": _template(workload, first)}
    steps = [(change, _controls(settings, workload, change)) for change in family]
    judged = [{"words": change.text, "own": _own_words(workload, change.keys), "costs": change.costs,
               "differs": change.differs, "set": controls} for change, controls in steps if controls]
    return known | ({"steps": judged} if judged else {"words": first.text})


def _own_words(workload: Workload, keys: Mapping[str, Any]) -> str:
    """A change in the words of the user's own file, or as options; empty if there are none, or they are long."""
    _, own = changes.said(workload, keys)
    return own_text(own.text, own.where) if own and len(own.text) <= LONG else ""


def _template(workload: Workload, change: Change) -> str:
    """The own words for a change to numbers that depend on the page's controls, with ``{batch}`` in place of one.

    Empty if there are none, or if the words for different numbers differ in more than the numbers.
    """
    keys = {key: value for key, value in change.keys.items() if value != getattr(workload, key)}
    if not keys.keys() <= NUMBERS.keys():
        return ""
    templates = set()
    for probe in PROBES:
        numbers = {key: probe + place for place, key in enumerate(keys)}
        words = _own_words(workload, {**change.keys, **numbers})
        for key, number in numbers.items():
            words = words.replace(str(number), f"{{{NUMBERS[key]}}}")
        templates.add(words)
    return templates.pop() if len(templates) == 1 else ""


def _controls(settings: Settings, workload: Workload, change: Change) -> Mapping[str, Any] | None:
    """The controls that make a change; None if the page cannot evaluate it."""
    if change.keys.keys() == {"allocator_conf"}:
        return {"expandable": True}
    try:
        changed = workload.replace(**change.keys)
    except InputError:
        return None
    before, after = settings.base.resolved(), changed.resolved()
    if any(before[name] != after[name] for name in before if name not in PAGES_OWN):
        return None
    engine, degree, checkpointing = engine_of(changed), changed.data_parallel_size, changed.gradient_checkpointing
    if not any(key[:3] == (engine, degree, checkpointing) for key in settings.jobs):
        return None
    return {"engine": engine.name, "degree": degree, "checkpointing": checkpointing}
