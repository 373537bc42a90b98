"""Savings of single changes ("knobs") to one configuration: the predicted peak without a change minus that with it.

:mod:`predictor.answer.changes` lists the changes. Only changes that have a formula are predicted; nothing is traced for
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from predictor.answer import changes
from predictor.answer.changes import Change
from predictor.common.errors import InputError
from predictor.formula import learned, store
from predictor.jobs import dispatch, survival
from predictor.jobs.training_job import Job
from predictor.workload.workload import Workload


@dataclass(frozen=True)
class Knob:
    """A change of one configuration.

    Attributes:
        change: the change in words.
        keys: the workload's changed keys, with those that a framework decides by them.
        costs: its price in words.
        gives_allocated_bytes, gives_reserved_bytes: bytes by which the peaks fall; None if unknown.
        why_not: the reason why they are unknown; empty otherwise.
        own_words: the change as the user would type it into ``where``, a file or the command that was read; both are
            empty without one, or if the framework cannot say the change.
    """

    change: str
    keys: Mapping[str, Any]
    costs: str
    gives_allocated_bytes: int | None = None
    gives_reserved_bytes: int | None = None
    why_not: str = ""
    own_words: str = ""
    where: str = ""


@dataclass(frozen=True)
class Peaks:
    """Peaks of the worst rank without a memory limit, in bytes."""

    allocated_bytes: int
    reserved_bytes: int


def turned(workload: Workload) -> tuple[Peaks, tuple[Knob, ...]]:
    """The peaks of a workload, and the knobs that it has: largest savings first, unknown savings last.

    Of a family of changes the first is a knob.

    Raises:
        InputError: the workload itself cannot be predicted.
    """
    before = _peaks(dispatch.prepare(workload))
    if learned.is_learned_file(workload.model):
        return before, ()
    knobs = [_turned(workload, before, first) for first, *_ in changes.of(workload)]
    return before, tuple(sorted(knobs, key=lambda knob: (bool(knob.why_not), -(knob.gives_allocated_bytes or 0))))


def _turned(workload: Workload, before: Peaks, change: Change) -> Knob:
    keys, own = changes.said(workload, change.keys)
    change = change if own else changes.named(workload, change)
    knob = Knob(change.text, keys, _price(change),
                own_words=own.text if own else "", where=own.where if own else "")
    try:
        with store.existing_only():
            after = _peaks(dispatch.prepare(workload.replace(**keys)))
    except store.NotTraced:
        return replace(knob, why_not="no formula yet: peakcast predict with it traces one")
    except InputError as error:
        return replace(knob, why_not=str(error))
    return replace(knob, gives_allocated_bytes=before.allocated_bytes - after.allocated_bytes,
                   gives_reserved_bytes=before.reserved_bytes - after.reserved_bytes)


def _peaks(job: Job) -> Peaks:
    simulation = survival.simulate_run(job.run(None), job.setup.allocator)
    return Peaks(simulation.peak_allocated_bytes, simulation.peak_reserved_bytes)


def _price(change: Change) -> str:
    if not change.differs:
        return change.costs
    differs = f"changes training: {change.differs}"
    return differs if change.costs == "nothing" else f"{change.costs}; {differs}"
