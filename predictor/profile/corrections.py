"""Applies a profile to a prediction: workspaces in the traced step, coefficients, rounding, runtime, intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from predictor.allocator import AllocatorSettings
from predictor.common.gpus import Gpu
from predictor.events.calls import OperatorCall, calls
from predictor.events.events import FACTORS, Buffers, Factor
from predictor.events.micro_step import MicroStep
from predictor.events.sizes import Shape
from predictor.profile.calibration import AllocatorFit, OperatorWorkspace, Runtime
from predictor.profile.outside_pytorch import NOTHING, UNKNOWN_CONTEXT, Outside, Range
from predictor.profile.profile import Choice

ASSUMED_RUNTIME_BYTES = UNKNOWN_CONTEXT[1]
"""Assumed memory of the CUDA context, NCCL and libraries where neither the GPU nor the engine is known."""
SURE = 2.0
"""Half-width of the interval around a measured runtime, in standard errors."""


@dataclass(frozen=True)
class Margin:
    """How far off a prediction may be.

    Attributes:
        runtime_low, runtime_high: bounds of the device memory outside PyTorch's allocator, in bytes. The verdict is
            uncertain where it depends on how much of it, between these, it is.
        relative: counter -> lower and upper bound of (measured - predicted) / predicted. Counters whose interval is
            not known are missing.
    """

    runtime_low: int = 0
    runtime_high: int = ASSUMED_RUNTIME_BYTES
    relative: tuple[tuple[str, tuple[float, float]], ...] = ()

    @property
    def runtime_expected(self) -> int:
        """The middle of the bounds of the device memory outside PyTorch's allocator, in bytes."""
        return (self.runtime_low + self.runtime_high) // 2

    def of(self, counter: str) -> tuple[float, float] | None:
        """Relative bounds of a counter, or None if they are not known."""
        return dict(self.relative).get(counter)

    @property
    def _reserved(self) -> tuple[float, float]:
        """How far the reserved bytes may be below and above the prediction, relative to it; (0, 0) if not known."""
        low, high = self.of("reserved") or (0.0, 0.0)
        return min(low, 0.0), max(high, 0.0)

    def limits(self, capacity_bytes: int) -> tuple[int, int | None]:
        """The most bytes that a run may be predicted to reserve on a GPU of this capacity.

        Returns the limit below which it surely fits, and the limit below which it may fit. The second is None, for no
        limit, where the lower bound of the interval is 0 bytes: then any prediction may fit.
        """
        low, high = self._reserved
        surely = max(0, capacity_bytes - self.runtime_high) / (1 + high)
        room = max(0, capacity_bytes - self.runtime_low)
        at_best = math.floor(room / (1 + low)) if low > -1 else None if room else 0
        return math.floor(surely), at_best

    def predicted(self, most_bytes: int) -> int:
        """The reserved bytes of a prediction whose interval ends at ``most_bytes``."""
        return math.floor(most_bytes / (1 + self._reserved[1]))

    def capacity(self, limit_bytes: int) -> int:
        """The smallest GPU memory, in bytes, in which PyTorch's allocator can surely reserve ``limit_bytes``."""
        return math.ceil(limit_bytes * (1 + self._reserved[1])) + self.runtime_high


def margin(choice: Choice | None, ranks: int, outside: Outside, zero_stage: int | None = None) -> Margin:
    """The margin of a prediction for a number of ranks.

    Args:
        outside: the memory outside PyTorch's allocator that is assumed of what the profile did not measure.
    """
    if choice is None:
        return Margin(outside.all.low_bytes, outside.all.high_bytes)
    runtime, intervals = choice.profile.runtime, [(c, choice.interval(c)) for c in choice.profile.residuals]
    relative = tuple((counter, interval) for counter, interval in intervals if interval is not None)
    bounds = outside.all if runtime.standard_error is None else \
        _measured(runtime, runtime.bytes(ranks, zero_stage), outside)
    return Margin(bounds.low_bytes, bounds.high_bytes, relative)


def _measured(runtime: Runtime, expected: int, outside: Outside) -> Range:
    """Bounds of the memory outside PyTorch's allocator: measured, with what is assumed of the rest."""
    assert runtime.standard_error is not None
    spread = math.ceil(SURE * runtime.standard_error)
    measured = Range(max(0, expected - spread), expected + spread)
    return measured + (NOTHING if runtime.has_communicators else outside.communicators)


def coefficients(choice: Choice | None) -> tuple[float, ...] | None:
    """The multiplier of each of :data:`FACTORS`, in that order; None where all are 1."""
    if choice is None:
        return None
    known = choice.profile.coefficients
    values = tuple(known[f.value].value if f.value in known and known[f.value].applied else 1.0 for f in FACTORS)
    return None if set(values) == {1.0} else values


def allocator_settings(allocator_conf: str | None, choice: Choice | None) -> AllocatorSettings:
    """The workload's allocator settings; without any, the rounding that the profile measured. The order of the driver's
    addresses is the profile's."""
    fitted = choice.profile.allocator if choice else AllocatorFit(0, 0)
    text = allocator_conf or ""
    if allocator_conf is None and fitted.roundup_power2_divisions:
        text = f"roundup_power2_divisions:{fitted.roundup_power2_divisions}"
    return replace(AllocatorSettings.parse(text), address_step_bytes=fitted.address_step_bytes)


def with_workspaces(micro: MicroStep, workspaces: Sequence[OperatorWorkspace], shape: Shape, gpu: Gpu) -> MicroStep:
    """The micro-step with a profile's workspaces added to the calls of their operators.

    The sizes in the result are right at this shape only. A workspace that ``grows`` enlarges the call's temporary.
    Any other workspace becomes a buffer of its own.
    """
    by_operator = {(workspace.operator, workspace.grows): workspace for workspace in workspaces}
    events = micro.events
    row_bytes = events.sizes.at(shape, gpu)
    resized: dict[int, int] = {}
    own: list[tuple[OperatorCall, int]] = []
    for call in calls(events, row_bytes):
        for grows in (True, False):
            workspace = by_operator.get((events.names[call.operator], grows))
            if workspace is None:
                continue
            size, buffer = workspace.bytes(call.result_bytes), call.temporary if grows else None
            if buffer is not None:
                resized[buffer] = max(0, int(row_bytes[events.buffers.size[buffer]]) + size)
            elif size > 0:
                own.append((call, size))
    return _with_buffers(_with_sizes(micro, resized), own)


def _with_sizes(micro: MicroStep, resized: Mapping[int, int]) -> MicroStep:
    """The micro-step with new byte counts for some buffers, at one shape. Each gets a size row of its own."""
    if not resized:
        return micro
    events = micro.events
    size = events.buffers.size.copy()
    size[list(resized)] = len(events.sizes) + np.arange(len(resized))
    return replace(micro, events=replace(events, buffers=replace(events.buffers, size=size),
                                         sizes=events.sizes.with_constants(list(resized.values()))))


def _with_buffers(micro: MicroStep, own: Sequence[tuple[OperatorCall, int]]) -> MicroStep:
    """The micro-step with a temporary for each of these calls, allocated after the call's last allocation.

    Args:
        own: each call, with the bytes of its temporary at one shape.
    """
    if not own:
        return micro
    events = micro.events
    buffers = events.buffers
    rows: dict[int, int] = {}  # bytes -> row of the size table
    temporaries = [(len(events.sizes) + rows.setdefault(size, len(rows)), 0, FACTORS.index(Factor.TEMPORARIES),
                    call.module, call.operator) for call, size in own]
    columns = [np.concatenate([getattr(buffers, name), column.astype(getattr(buffers, name).dtype)])
               for name, column in zip(Buffers.__dataclass_fields__, np.array(temporaries, dtype=np.int32).T)]
    added = len(buffers) + np.arange(len(temporaries), dtype=np.int32)
    last = np.array([call.made[-1] for call, _ in own])
    places, signs = np.repeat(last + 1, 2), np.tile([1, -1], len(temporaries))
    order = np.lexsort((-signs, places))  # two temporaries of one call are held at the same time

    def moved(rows: np.ndarray) -> np.ndarray:
        later = rows.copy()
        later[:, 0] += np.searchsorted(places, rows[:, 0], side="right").astype(rows.dtype)
        return later

    return replace(
        micro, ready=moved(micro.ready), marks=None if micro.marks is None else moved(micro.marks),
        events=replace(
            events, kind=np.insert(events.kind, places, signs[order]),
            buffer=np.insert(events.buffer, places, np.repeat(added, 2)[order]),
            moment=np.insert(events.moment, places, np.repeat(events.moment[last], 2)),
            step=np.insert(events.step, places, np.repeat(events.step[last], 2)), buffers=Buffers(*columns),
            sizes=events.sizes.with_constants(list(rows))))
