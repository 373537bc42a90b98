"""The one event type: every trace, engine output and recorded history is a sequence of it.

Sequences are stored as columns (:class:`EventList`), because a step of LLaVA-1.5-7B has some
ten thousand events and a prediction walks over all of them in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cached_property

import numpy as np

from predictor.events.sizes import SizeTable


class Kind(IntEnum):
    """What happens. Only the first two change the running sum of live bytes; the others matter to the allocator.

    ``RECORD_STREAM`` plus the number of a stream: that stream uses the buffer too.
    """

    FREE = -1
    ALLOCATE = 1
    EMPTY_CACHE = 2
    SYNCHRONIZE = 3
    RECORD_STREAM = 16


def sign(kind: np.ndarray) -> np.ndarray:
    """+1 where an event allocates, -1 where it frees, else 0."""
    return np.where(np.abs(kind) == 1, kind, 0)


class Factor(str, Enum):
    """What a buffer is for. The factors at the peak add up to the peak."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATES = "optimizer_states"
    ACTIVATIONS = "activations"
    TEMPORARIES = "temporaries"
    COMMUNICATION = "communication"
    INPUTS = "inputs"
    ALLOCATOR = "allocator"
    KV_CACHE = "kv_cache"


class Moment(str, Enum):
    """The outermost call that an event happens in."""

    INIT = "init"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer_step"
    EVALUATION = "evaluation"
    PREFILL = "prefill"
    DECODE = "decode"


FACTORS = tuple(Factor)
MOMENTS = tuple(Moment)
Rows = tuple[np.ndarray, int]
"""Rows of a table by index, and how many the table has."""


@dataclass(frozen=True, slots=True)
class Tag:
    """Where an event comes from. ``module`` is a dotted path, ``operator`` an aten or engine name."""

    factor: Factor
    module: str
    operator: str
    moment: Moment
    step: int


@dataclass(frozen=True, slots=True)
class Event:
    """One allocation or free of ``size`` bytes; ``size`` is a row of the list's size table.

    ``stream`` is the buffer's own, or the other one that uses it.
    """

    kind: Kind
    buffer: int
    size: int
    stream: int
    tag: Tag


@dataclass(frozen=True, eq=False)
class Buffers:
    """One row a buffer: its size (row of a :class:`SizeTable`), stream, factor, module, operator."""

    size: np.ndarray
    stream: np.ndarray
    factor: np.ndarray
    module: np.ndarray
    operator: np.ndarray

    def __len__(self) -> int:
        return len(self.size)

    @staticmethod
    def concatenate(parts: Sequence[Buffers]) -> Buffers:
        """All rows of all parts, in order."""
        return Buffers(*(np.concatenate([getattr(part, name) for part in parts])
                         for name in Buffers.__dataclass_fields__))

    def by_name(self) -> dict[str, np.ndarray]:
        """The columns as files name them."""
        return {f"buffer_{name}": getattr(self, name) for name in self.__dataclass_fields__}

    @staticmethod
    def from_names(arrays: Mapping[str, np.ndarray]) -> Buffers:
        """The opposite of :meth:`by_name`.

        Raises:
            KeyError: a column that is missing.
        """
        return Buffers(*(arrays[f"buffer_{name}"] for name in Buffers.__dataclass_fields__))


@dataclass(frozen=True, eq=False)
class EventList(Sequence):
    """An ordered list of events as columns.

    Attributes:
        kind: ``int8[m]``, as :class:`Kind` says.
        buffer: ``int32[m]``, row of ``buffers``.
        moment: ``int8[m]``, index into :data:`MOMENTS`.
        step: ``int8[m]``, 0 for start-up, then 1, 2, 3.
        buffers: the buffers that the events name.
        sizes: what each size row is in bytes, as a function of the shape.
        names: module paths and operator names that ``buffers`` index into.
    """

    kind: np.ndarray
    buffer: np.ndarray
    moment: np.ndarray
    step: np.ndarray
    buffers: Buffers
    sizes: SizeTable
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def sign(self) -> np.ndarray:
        """``int8[m]``: +1 allocate, -1 free, else 0."""
        return sign(self.kind)

    def is_consistent(self, *more: Rows) -> bool:
        """Whether columns are of one length, and every row that they and ``more`` name exists: files may be damaged."""
        buffers, names, sizes = self.buffers, len(self.names), self.sizes
        limits = [(self.buffer, len(buffers)), (buffers.size, len(sizes)), (buffers.module, names),
                  (buffers.operator, names), (buffers.factor, len(FACTORS)), (self.moment, len(MOMENTS)), *more]
        return (len({len(column) for column in (self.kind, self.buffer, self.moment, self.step)}) == 1
                and len({len(column) for column in buffers.by_name().values()}) == 1
                and sizes.coefficients.shape[1:] == (len(sizes.terms),)
                and all(len(rows) == 0 or 0 <= rows.min() <= rows.max() < limit for rows, limit in limits))

    def __getitem__(self, index: int) -> Event:
        buffer = int(self.buffer[index])
        tag = Tag(
            FACTORS[self.buffers.factor[buffer]],
            self.names[self.buffers.module[buffer]],
            self.names[self.buffers.operator[buffer]],
            MOMENTS[self.moment[index]],
            int(self.step[index]),
        )
        kind = int(self.kind[index])
        other = kind - Kind.RECORD_STREAM
        return Event(Kind(min(kind, Kind.RECORD_STREAM)), buffer, int(self.buffers.size[buffer]),
                     other if other >= 0 else int(self.buffers.stream[buffer]), tag)
