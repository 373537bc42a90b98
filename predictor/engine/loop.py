"""When a training loop of the user's own frees the model's output and the gradients.

Engines compose the reference loop, whose gradients become None right after the optimizer step. This module moves these
frees in a composed run, and adds those of the output, which the micro-step of a loop that keeps it does not free
(:meth:`predictor.events.micro_step.MicroStep.keeping_outputs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from predictor.engine.setup import Setup
from predictor.events.events import FACTORS, MOMENTS, EventList, EventType, Factor, Moment
from predictor.events.instances import instances
from predictor.events.micro_step import MicroStep

_FORWARD, _BACKWARD, _OPTIMIZER_STEP = map(MOMENTS.index, (Moment.FORWARD, Moment.BACKWARD, Moment.OPTIMIZER_STEP))


class _Frees(NamedTuple):
    """Buffers that are freed before the event at ``place``."""

    place: int
    buffers: np.ndarray
    moment: int
    step: int


def with_frees(events: EventList, micro: MicroStep, setup: Setup) -> EventList:
    """The run with the frees that ``keep_outputs`` and ``zero_grad`` say.

    What the last step leaves is not freed: it lives through an evaluation, too.

    Args:
        events: the run of the reference loop, in which nothing frees ``micro.outputs`` if the loop keeps them.
        micro: the traced micro-step that the run repeats.
    """
    frees: list[_Frees] = []
    stay = np.ones(len(events), dtype=bool)
    if setup.keep_outputs != "none":
        frees += _of_outputs(events, micro, late=setup.keep_outputs == "next_forward")
    if setup.zero_grad != "after_step":
        moved = _gradients(events)
        stay[moved] = False
        frees += _of_gradients(events, micro, moved, late=setup.zero_grad == "before_backward")
    return _with(events, stay, frees) if frees else events


def _of_outputs(events: EventList, micro: MicroStep, *, late: bool) -> list[_Frees]:
    """The frees of each micro-step's output: after its backward, or late, after the next micro-step's forward."""
    assert micro.outputs is not None  # of a training step
    instance, _ = instances(events, micro)
    _, first = np.unique(instance, return_index=True)
    starts = first[1:] if instance.min() < 0 else first
    if late:
        ends = _forward_ends(events, instance)[1:]
        return [_Frees(end, start + micro.outputs, _FORWARD, int(events.step[end - 1]))
                for start, end in zip(starts.tolist(), ends)]
    return [_Frees(end, start + micro.outputs, _BACKWARD, int(events.step[end - 1]))
            for start, end in zip(starts.tolist(), _backward_ends(events, instance))]


def _forward_ends(events: EventList, instance: np.ndarray) -> list[int]:
    """The position of each micro-step's first traced event of backward."""
    of = instance[events.buffer]
    backward = np.flatnonzero((of >= 0) & (events.moment == _BACKWARD))
    return backward[np.unique(of[backward], return_index=True)[1]].tolist()


def _backward_ends(events: EventList, instance: np.ndarray) -> list[int]:
    """The position after each micro-step's last event of backward, an engine's events included."""
    of = instance[events.buffer][::-1]
    traced = np.flatnonzero((of >= 0) & (events.kind[::-1] == EventType.ALLOCATE))
    last = len(events) - 1 - traced[np.unique(of[traced], return_index=True)[1]]
    others = np.append(np.flatnonzero(events.moment != _BACKWARD), len(events))
    return others[np.searchsorted(others, last)].tolist()


def _gradients(events: EventList) -> np.ndarray:
    """The positions at which the reference loop frees gradients: in the optimizer step, which did not make them."""
    born = np.zeros(len(events.buffers), dtype=np.int8)
    made = events.kind == EventType.ALLOCATE
    born[events.buffer[made]] = events.moment[made]
    freed = (events.kind == EventType.FREE) & (events.moment == _OPTIMIZER_STEP)
    gradient = events.buffers.factor[events.buffer] == FACTORS.index(Factor.GRADIENTS)
    return np.flatnonzero(freed & gradient & (born[events.buffer] == _BACKWARD))


def _of_gradients(events: EventList, micro: MicroStep, moved: np.ndarray, *, late: bool) -> list[_Frees]:
    """The same frees in the next step: before its first forward, or late, before its first backward."""
    ends = np.array(_forward_ends(events, instances(events, micro)[0]))
    frees = []
    for step in range(2, int(events.step.max()) + 1):
        begin = int(np.searchsorted(events.step, step))
        place = int(ends[np.searchsorted(ends, begin)]) if late else begin
        frees.append(_Frees(place, events.buffer[moved[events.step[moved] == step - 1]], _FORWARD, step))
    return frees


def _with(events: EventList, stay: np.ndarray, frees: Sequence[_Frees]) -> EventList:
    """The events that stay, with these frees inserted, in their order, before the events at their places."""
    counts = [len(one.buffers) for one in frees]
    place, moment, step = (np.repeat([getattr(one, name) for one in frees], counts)
                           for name in ("place", "moment", "step"))
    order = np.argsort(np.concatenate([2 * np.flatnonzero(stay) + 1, 2 * place]), kind="stable")

    def column(before: np.ndarray, added: np.ndarray) -> np.ndarray:
        return np.concatenate([before[stay], added.astype(before.dtype)])[order]

    return EventList(
        column(events.kind, np.full(len(place), EventType.FREE)),
        column(events.buffer, np.concatenate([one.buffers for one in frees])), column(events.moment, moment),
        column(events.step, step), events.buffers, events.sizes, events.names)
