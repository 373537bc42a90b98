"""What a profile changes in a prediction: workspaces in the traced step, coefficients, rounding, runtime, intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from predictor.allocator import AllocatorSettings
from predictor.events import FACTORS, Buffers, EventList, Factor
from predictor.formula import MicroStep
from predictor.gpus import Gpu
from predictor.profile import Choice, OperatorWorkspace
from predictor.sizes import Shape, SizeTable

ASSUMED_RUNTIME_BYTES = 1 << 30
"""CUDA context, NCCL and libraries, where no profile says: between none of it and this the verdict is uncertain."""
SURE = 2.0
"""Standard errors of a measured runtime on either side."""


@dataclass(frozen=True)
class Margin:
    """How far off a prediction may be.

    Attributes:
        runtime_low, runtime_high: device memory that is not PyTorch's allocator's, in bytes.
        relative: counter -> measured less predicted, relative to predicted, from and to.
    """

    runtime_low: int = 0
    runtime_high: int = ASSUMED_RUNTIME_BYTES
    relative: tuple[tuple[str, tuple[float, float]], ...] = ()

    def of(self, counter: str) -> tuple[float, float]:
        """Relative bounds of a counter."""
        return dict(self.relative).get(counter, (0.0, 0.0))

    def limits(self, capacity_bytes: int) -> tuple[int, int]:
        """What PyTorch's allocator can surely have of a GPU, and what it can at best."""
        low, high = self.of("reserved")
        surely = (capacity_bytes - self.runtime_high) / (1 + max(high, 0))
        at_best = (capacity_bytes - self.runtime_low) / (1 + min(low, 0))
        return max(0, math.floor(surely)), max(0, math.floor(at_best))

    def capacity(self, limit_bytes: int) -> int:
        """The smallest GPU memory of which PyTorch's allocator can surely have so much."""
        return math.ceil(limit_bytes * (1 + max(self.of("reserved")[1], 0))) + self.runtime_high


def margin(choice: Choice | None, ranks: int) -> Margin:
    """Of a prediction for so many ranks."""
    if choice is None:
        return Margin()
    runtime, relative = choice.profile.runtime, tuple((c, choice.interval(c)) for c in choice.profile.residuals)
    expected = runtime.bytes(ranks)
    if runtime.standard_error is None:
        return Margin(0, expected, relative)
    spread = math.ceil(SURE * runtime.standard_error)
    return Margin(max(0, expected - spread), expected + spread, relative)


def coefficients(choice: Choice | None) -> tuple[float, ...] | None:
    """What each of :data:`FACTORS` is multiplied by; None where all are 1."""
    if choice is None:
        return None
    known = choice.profile.coefficients
    values = tuple(known[f.value].value if f.value in known and known[f.value].applied else 1.0 for f in FACTORS)
    return None if set(values) == {1.0} else values


def allocator_settings(given: str | None, choice: Choice | None) -> AllocatorSettings:
    """The workload's own, or else what the profile found the device to do."""
    divisions = choice.profile.allocator.roundup_power2_divisions if choice else 0
    if given is None and divisions:
        return AllocatorSettings.parse(f"roundup_power2_divisions:{divisions}")
    return AllocatorSettings.parse(given or "")


def with_workspaces(micro: MicroStep, workspaces: Sequence[OperatorWorkspace], shape: Shape, gpu: Gpu) -> MicroStep:
    """The micro-step with a buffer more in each call of these operators, behind what the call allocates."""
    by_operator = {workspace.operator: workspace for workspace in workspaces}
    events = micro.events
    names, buffers = list(events.names), events.buffers
    row_bytes = events.sizes.at(shape, gpu)
    rows: dict[int, int] = {}  # bytes -> row of the size table
    positions, made = [], []
    for operator, module, last, call_bytes in calls(events, row_bytes):
        workspace = by_operator.get(names[operator])
        size = math.ceil(workspace.fixed_bytes + workspace.bytes_per_call_byte * call_bytes) if workspace else 0
        if size > 0:
            positions.append(last + 1)
            made.append((len(row_bytes) + rows.setdefault(size, len(rows)), 0, FACTORS.index(Factor.TEMPORARIES),
                         module, operator))
    if not made:
        return micro
    places = np.repeat(positions, 2)
    numbers = len(buffers) + np.arange(len(made), dtype=np.int32)
    added = np.array(made, dtype=np.int32).T
    columns = [np.concatenate([getattr(buffers, name), column.astype(getattr(buffers, name).dtype)])
               for name, column in zip(Buffers.__dataclass_fields__, added)]
    constants = np.zeros((len(rows), len(events.sizes.terms)), dtype=np.int64)
    constants[:, 0] = list(rows)
    before = np.searchsorted(positions, micro.ready[:, 0], side="right").astype(np.int32)
    ready = micro.ready.copy()
    ready[:, 0] += 2 * before
    return replace(
        micro, ready=ready,
        events=replace(
            events, kind=np.insert(events.kind, places, np.tile([1, -1], len(made))),
            buffer=np.insert(events.buffer, places, np.repeat(numbers, 2)),
            moment=np.insert(events.moment, places, np.repeat(events.moment[np.array(positions) - 1], 2)),
            step=np.insert(events.step, places, 1), buffers=Buffers(*columns),
            sizes=SizeTable(events.sizes.terms, np.concatenate([events.sizes.coefficients, constants]))))


def calls(events: EventList, row_bytes: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Each stretch of allocations of one operator in one module and moment, nothing else allocated between.

    Returns operator and module (rows of ``events.names``), position of the last allocation, bytes of all.
    """
    buffers, sizes = events.buffers, row_bytes[events.buffers.size[events.buffer]]
    made = np.flatnonzero((events.sign > 0) & (sizes > 0))
    buffer = events.buffer[made]
    rows = zip(*(column.tolist() for column in (
        buffers.operator[buffer], buffers.module[buffer], events.moment[made], events.step[made], made, sizes[made])))
    result = []
    for (operator, module, _, _), stretch in groupby(rows, key=lambda row: row[:4]):
        stretch = list(stretch)
        result.append((operator, module, stretch[-1][4], sum(row[5] for row in stretch)))
    return result
