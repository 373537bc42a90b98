"""One traced micro-batch: its events, and the points at which an engine's hooks run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from predictor.events.events import EventList


class Mark(IntEnum):
    """What the hooks of ZeRO-3 or FSDP2 do at a point of a micro-step; the first five concern a module, by its number.

    ``RECOMPUTE`` is ``ENTER`` while a checkpoint recomputes. ``EXTERNAL``: a row of :attr:`MicroStep.owners`; from
    now on the module gathers that parameter too, which it reads though another has it. ``READY``: a row of
    :attr:`MicroStep.ready`, so that marks have one order. ``HOLD``: a parameter's storage will outlive its release,
    because a saved tensor shares it; ``LET_GO``: now it would die (of one parameter's, the oldest first).
    """

    ENTER = 0
    LEAVE = 1
    BEFORE_BACKWARD = 2
    AFTER_BACKWARD = 3
    RECOMPUTE = 4
    EXTERNAL = 5
    READY = 6
    HOLD = 7
    LET_GO = 8


@dataclass(frozen=True, eq=False)
class MicroStep:
    """Forward and backward of one micro-batch, before any engine.

    Attributes:
        events: what is allocated and freed; gradients and persistent buffers are never freed in it.
        ready: ``int32[k, 3]``, the moment each gradient is complete: position in ``events`` (hooks
            run before that event), index of the parameter, buffer of the gradient.
        persistent: ``int32[p]``, buffers allocated once, in the first micro-step of a run.
        marks: ``int32[m, 3]`` of a step traced for ZeRO-3: position in ``events``, :class:`Mark`, index.
        owners: ``int32[o, 2]``, of the same: number of a module, index of a parameter that it gathers; those that
            ``EXTERNAL`` marks name come last.
        cuts: ``int32[f]`` of a call of ``generate``: the events before which its second and later forwards begin.
        cache: ``int32[c, 2]`` of the same: buffers of keys and values, before (-1: none) and after the last forward.
    """

    events: EventList
    ready: np.ndarray
    persistent: np.ndarray
    marks: np.ndarray | None = None
    owners: np.ndarray | None = None
    cuts: np.ndarray | None = None
    cache: np.ndarray | None = None
