"""The traced forward and backward of one micro-batch: its events, and the points at which an engine's hooks run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from predictor.events.events import MOMENTS, EventList, EventType, Moment


class Mark(IntEnum):
    """A point of a micro-step at which a hook of ZeRO-3 or FSDP2 acts. Each mark has an index.

    The index of the first five marks is the number of a module.

    ``EXPECT``: a module's output has a gradient, so its backward may follow (FSDP1). The index is that module.
    ``SHARE``, ``AWAY``: FSDP1's stream of gathers reads a gradient, or allocates a buffer. The index is the buffer.
    ``RECOMPUTE``: a module's forward begins, as for ``ENTER``, but in the recomputation of an activation checkpoint.
    ``EXTERNAL``: a module reads a parameter of another module, and gathers it too from now on. The index is a row of
    :attr:`MicroStep.owners`.
    ``READY``: a gradient is complete. The index is a row of :attr:`MicroStep.ready`; the mark puts gradients and hooks
    in one order.
    ``HOLD``: a parameter is released, but a saved tensor keeps its gathered storage alive. The index is the parameter.
    ``LET_GO``: a storage that was held is freed; if a parameter has several, the oldest. The index is the parameter.
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
    EXPECT = 9
    SHARE = 10
    AWAY = 11


@dataclass(frozen=True, eq=False)
class MicroStep:
    """Forward and backward of one micro-batch, without the allocations of an engine.

    Attributes:
        events: allocations and frees; gradients and persistent buffers are not freed in it.
        ready: ``int32[k, 3]``, completed gradients: position in ``events`` (hooks run before that event), index of the
            parameter, buffer of the gradient.
        persistent: ``int32[p]``, buffers that are allocated once, in the first micro-step of a run.
        marks: ``int32[m, 3]``, if the step was traced for ZeRO-3 or FSDP2: position in ``events``, :class:`Mark`,
            index.
        owners: ``int32[o, 2]``, with ``marks``: number of a module, index of a parameter that it gathers. Rows of
            ``EXTERNAL`` marks come last.
        cuts: ``int32[f]``, for a call of ``generate``: positions at which its second and later forwards begin.
        cache: ``int32[c, 2]``, for a call of ``generate``: buffers of keys and values before the call (-1: none) and
            after its last forward.
        outputs: ``int32[b]``, in a training step, buffers that the model's output keeps alive, in the order in which
            they die with it. ``events`` frees them where a loop does that keeps only the loss.
    """

    events: EventList
    ready: np.ndarray
    persistent: np.ndarray
    marks: np.ndarray | None = None
    owners: np.ndarray | None = None
    cuts: np.ndarray | None = None
    cache: np.ndarray | None = None
    outputs: np.ndarray | None = None

    @property
    def backward_begin(self) -> int:
        """The position of the first event of backward, which allocates the gradient of the loss."""
        return int(np.argmax(self.events.moment == MOMENTS.index(Moment.BACKWARD)))

    def keeping_outputs(self) -> MicroStep:
        """The step of a loop that keeps the model's output through backward: it does not free ``outputs``."""
        events = self.events
        assert self.outputs is not None  # of a training step
        stay = ~((events.kind == EventType.FREE) & np.isin(events.buffer, self.outputs))
        columns = {name: getattr(events, name)[stay] for name in ("kind", "buffer", "moment", "step")}
        place = np.append(0, np.cumsum(stay, dtype=np.int32))

        def moved(rows: np.ndarray) -> np.ndarray:
            return np.column_stack([place[rows[:, 0]], rows[:, 1:]])

        return replace(self, events=replace(events, **columns), ready=moved(self.ready),
                       marks=None if self.marks is None else moved(self.marks))

    @property
    def loss_bytes(self) -> int:
        """Bytes of the loss, a scalar."""
        size = self.events.buffers.size[self.events.buffer[self.backward_begin]]
        return int(self.events.sizes.coefficients[size, 0])
