"""Memory events: every trace, engine output and recorded history is a list of them.

Lists are stored as columns (:class:`EventList`), because a step of LLaVA-1.5-7B has some
ten thousand events and a prediction walks over all of them in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cached_property
from hashlib import blake2b
from typing import overload

import numpy as np

from predictor.events.sizes import SizeTable


class EventType(IntEnum):
    """The type of an event. Only ``FREE`` and ``ALLOCATE`` change the live bytes; the caching allocator needs the rest.

    ``RECORD_STREAM + n`` means that stream ``n`` uses the buffer too (``Tensor.record_stream``).
    """

    FREE = -1
    ALLOCATE = 1
    EMPTY_CACHE = 2
    SYNCHRONIZE = 3
    RECORD_STREAM = 16


def sign(kind: np.ndarray) -> np.ndarray:
    """+1 where an event allocates, -1 where it frees, 0 elsewhere."""
    return np.where(np.abs(kind) == 1, kind, 0)


PART = 1 << 16
"""Rows of a long column that are looked up at a time."""


def rows_at(table: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """``table[rows]``, a part at a time, because numpy makes 8 bytes of each index."""
    result = np.empty(len(rows), table.dtype)
    for start in range(0, len(rows), PART):
        part = slice(start, start + PART)
        result[part] = table[rows[part]]
    return result


class Factor(str, Enum):
    """The purpose of a buffer. The bytes of all factors at the peak add up to the peak."""

    __hash__ = str.__hash__  # Enum's own is written in Python, and tables are looked up for each event
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
    """The phase of a run in which an event happens."""

    __hash__ = str.__hash__  # Enum's own is written in Python, and tables are looked up for each event
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
"""Row indices into a table, and the number of rows of that table."""


@dataclass(frozen=True, slots=True)
class Tag:
    """The origin of an event. ``module`` is a dotted path, ``operator`` the name of an ATen operator or engine call."""

    factor: Factor
    module: str
    operator: str
    moment: Moment
    step: int


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a list.

    Attributes:
        buffer: row of the list's ``buffers``.
        size: row of the list's size table, not bytes.
        stream: the stream that the buffer was allocated on; for ``RECORD_STREAM``, the other stream that uses it.
    """

    kind: EventType
    buffer: int
    size: int
    stream: int
    tag: Tag


@dataclass(frozen=True, eq=False)
class Buffers:
    """One row per buffer: its size (row of a :class:`SizeTable`), stream, factor, module and operator."""

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
        """The columns by their names in files."""
        return {f"buffer_{name}": getattr(self, name) for name in self.__dataclass_fields__}

    @staticmethod
    def from_names(arrays: Mapping[str, np.ndarray]) -> Buffers:
        """Inverse of :meth:`by_name`.

        Raises:
            KeyError: a column is missing.
        """
        return Buffers(*(arrays[f"buffer_{name}"] for name in Buffers.__dataclass_fields__))


@dataclass(frozen=True, eq=False)
class EventList(Sequence[Event]):
    """An ordered list of ``m`` events, stored as columns.

    Attributes:
        kind: ``int8[m]``, event types (:class:`EventType`).
        buffer: ``int32[m]``, rows of ``buffers``.
        moment: ``int8[m]``, indices into :data:`MOMENTS`.
        step: ``int8[m]``, 0 for start-up, then 1, 2, 3.
        buffers: the buffers that the events allocate and free.
        sizes: bytes of each size row, as a function of the shape.
        names: module paths and operator names; columns of ``buffers`` are indices into it.
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
        """``int8[m]``: +1 where an event allocates, -1 where it frees, 0 elsewhere."""
        return sign(self.kind)

    @cached_property
    def size_row(self) -> np.ndarray:
        """``int32[m]``: the size row of each event's buffer."""
        return rows_at(self.buffers.size, self.buffer)

    @cached_property
    def digest(self) -> bytes:
        """A digest of all that an allocator sees of the list beside the bytes of its size rows."""
        digest = blake2b(digest_size=16)
        for column in (self.kind, self.buffer, self.buffers.size, self.buffers.stream):
            digest.update(np.ascontiguousarray(column).data)
        return digest.digest()

    def is_consistent(self, *more: Rows) -> bool:
        """Whether all columns have one length and whole numbers, and all row indices, also those of ``more``, are in
        range.

        Lists that come from files are checked with it, because a file may be damaged.
        """
        buffers, names, sizes = self.buffers, len(self.names), self.sizes
        limits = [(self.buffer, len(buffers)), (buffers.size, len(sizes)), (buffers.module, names),
                  (buffers.operator, names), (buffers.factor, len(FACTORS)), (self.moment, len(MOMENTS)), *more]
        events, columns = (self.kind, self.buffer, self.moment, self.step), tuple(buffers.by_name().values())
        return (len({len(column) for column in events}) == 1 and len({len(column) for column in columns}) == 1
                and all(np.issubdtype(column.dtype, np.integer)
                        for column in (*events, *columns, sizes.coefficients, *(rows for rows, _ in limits)))
                and sizes.coefficients.shape[1:] == (len(sizes.terms),)
                and all(len(rows) == 0 or 0 <= rows.min() <= rows.max() < limit for rows, limit in limits))

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...

    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        buffer = int(self.buffer[index])
        tag = Tag(
            FACTORS[self.buffers.factor[buffer]],
            self.names[self.buffers.module[buffer]],
            self.names[self.buffers.operator[buffer]],
            MOMENTS[self.moment[index]],
            int(self.step[index]),
        )
        kind = int(self.kind[index])
        other_stream = kind - EventType.RECORD_STREAM
        return Event(EventType(min(kind, EventType.RECORD_STREAM)), buffer, int(self.buffers.size[buffer]),
                     other_stream if other_stream >= 0 else int(self.buffers.stream[buffer]), tag)
