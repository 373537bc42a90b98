"""The changes of a page: those of :mod:`predictor.answer.changes`, in its order, for each choice of the controls.

The page judges what its formulas can evaluate. Of the other changes it has the words, so that it can name them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from predictor.allocator.settings import AllocatorSettings, with_expandable_segments
from predictor.answer import changes
from predictor.answer.changes import BATCH, FURTHER, LENGTH, LENGTH_STEP, SHORTEST, Change
from predictor.answer.remedies import ENOUGH
from predictor.common.errors import InputError
from predictor.engine.setup import MICRO_STEPS
from predictor.explore.settings import PAGES_OWN, Controls, Settings, engine_of
from predictor.jobs.training_job import Job
from predictor.workload.workload import Workload

OWN_RULES = {BATCH: "batch", LENGTH: "sequence", "gpu": "gpu"}
"""Keys whose changes depend on where the page's controls are -> the rule of ``remedies.js`` that proposes them."""
LARGE_BATCH, LONG = 97, 4096
"""A batch and a sequence length from which the table proposes smaller ones of each kind."""


def constants() -> Mapping[str, int]:
    """The numbers of the table's rules, which the page repeats."""
    return {"length_step": LENGTH_STEP, "further": FURTHER, "shortest": SHORTEST, "enough": ENOUGH}


def of_choices(settings: Settings) -> dict[str, list[Mapping[str, Any]]]:
    """The families of changes of each engine, degree and checkpointing, by :func:`name_of`."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for controls, job in settings.jobs.items():
        if name_of(controls) not in found:
            families = changes.of(_template(settings, controls, job))
            found[name_of(controls)] = [_family(settings, job.workload, family) for family in families]
    return found


def name_of(controls: Controls) -> str:
    """The name by which the page looks up the changes of a choice."""
    return f"{controls.engine.name} {controls.degree} {'on' if controls.checkpointing else 'off'}"


def accumulating(settings: Settings, job: Job) -> dict[int, Job]:
    """The job with more micro-steps than the workload has, by how many are composed: for smaller micro batches.

    Only the workload's own engine and degree have them, as each costs as much as the choice itself.
    """
    base = settings.base
    if engine_of(job.workload) != engine_of(base) or job.workload.data_parallel_size != base.data_parallel_size:
        return {}
    return {steps: replace(job, setup=replace(job.setup, gradient_accumulation_steps=steps))
            for steps in range(job.setup.micro_steps + 1, MICRO_STEPS + 1)}


def expandable(job: Job) -> Job:
    """The job with expandable segments."""
    conf = with_expandable_segments(job.workload.allocator_conf)
    if conf is None:
        return job
    return replace(job, setup=replace(job.setup, allocator=AllocatorSettings.parse(conf)))


def _template(settings: Settings, controls: Controls, job: Job) -> Workload:
    """A workload of a choice to which the table has all its kinds of changes: with large samples, on a small GPU."""
    base, positions = settings.base, job.formula.facts.positions
    smallest = min((gpu for name, gpu in settings.gpus.items() if settings.backends[name] == controls.backend),
                   key=lambda gpu: gpu.capacity_bytes)
    length = base.sequence_length and max(base.sequence_length, min(LONG, positions or LONG))
    return job.workload.replace(
        per_device_train_batch_size=settings.batches[-1] if settings.batches else LARGE_BATCH, gpu=smallest.name,
        sequence_length=length, images_per_sample=base.images_per_sample)


def _family(settings: Settings, workload: Workload, family: Sequence[Change]) -> Mapping[str, Any]:
    """A family as the page has it: by a rule of its own, as settings, or in words."""
    first = family[0]
    known = {"costs": first.costs, "differs": first.differs, "hardware": first.is_hardware}
    rule = next((rule for key, rule in OWN_RULES.items() if key in first.keys), None)
    if rule:
        return known | {"rule": rule}
    steps = [(change, _controls(settings, workload, change)) for change in family]
    judged = [{"words": change.text, "costs": change.costs, "differs": change.differs, "set": controls}
              for change, controls in steps if controls]
    return known | ({"steps": judged} if judged else {"words": first.text})


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
