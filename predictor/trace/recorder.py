"""A dispatch mode that records every storage that a program allocates and frees, in order.

It works on meta tensors (the trace) and on CPU tensors (the tests). It keeps no reference to a tensor or
storage, only finalizers: autograd decides by use counts whether it reuses a gradient or adds in place, so a
reference would change what is being recorded.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from predictor.events.events import Moment
from predictor.events.micro_step import Mark


@dataclass(slots=True)
class RecordedBuffer:
    """One storage.

    Attributes:
        size: bytes, or the name and dimensions of a workspace function (:mod:`predictor.events.workspaces`).
        recomputed: whether it was allocated while an activation checkpoint was recomputed.
        role: ``input``, ``gradient``, ``workspace``, ``cache`` or empty.
    """

    size: int | tuple[str, tuple[int, ...]]
    module: str
    operator: str
    moment: Moment
    recomputed: bool = False
    role: str = ""


class Completed(NamedTuple):
    """A completed gradient: position in :attr:`Recording.events`, name of the parameter, row of the gradient."""

    position: int
    parameter: str
    row: int


class Point(NamedTuple):
    """A point at which hooks of a sharded model act: position in :attr:`Recording.events`, :class:`Mark`, its index."""

    position: int
    mark: int
    number: int


@dataclass
class Recording:
    """All recorded allocations and frees, in order.

    Attributes:
        buffers: one for each allocation.
        events: ``row + 1`` for an allocation, ``-(row + 1)`` for a free, where ``row`` is an index into ``buffers``.
        moments: the moment of each event.
        gradients: the completed gradients.
        marks: points at which hooks of a sharded model act.
        owners: pairs of a module's number and the index of a parameter that it gathers.
        cuts: positions in ``events`` at which the second and later forwards of a call of ``generate`` begin.
        cache: pairs of rows of keys and values, before (-1: none) and after a call of ``generate``.
        outputs: rows that the model's output keeps alive, in the order in which they die with it; None without a loss.
    """

    buffers: list[RecordedBuffer] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    gradients: list[Completed] = field(default_factory=list)
    marks: list[Point] = field(default_factory=list)
    owners: list[tuple[int, int]] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    cache: list[tuple[int, int]] = field(default_factory=list)
    outputs: list[int] | None = None


Place = Callable[[], tuple[str, bool]]


class Recorder(TorchDispatchMode):
    """Records into :attr:`recording` the storages that are allocated while it is active.

    Args:
        place: returns the current module path, and whether an activation checkpoint is being recomputed.
        device: type of the device whose storages are recorded.
    """

    def __init__(self, place: Place = lambda: ("", False), device: str = "meta") -> None:
        super().__init__()
        self.recording = Recording()
        self.moment = Moment.INIT
        self._place = place
        self._device = device
        self._rows: dict[int, int] = {}
        self._deaths: dict[int, weakref.ref] = {}
        self._unshared = _unshared()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, so each call of an operator is spared Dynamo's wrappers."""
        return False

    def ignore(self, tensors) -> None:
        """Leaves out tensors that exist already: neither their allocation nor their free is recorded."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._rows[id(storage)] = -1
            self._at_death(storage, lambda: None)

    def _at_death(self, storage: torch.UntypedStorage, died: Callable[[], None]) -> None:
        """Forgets the row of a storage when it dies, and then calls ``died``.

        A plain weak reference takes a fraction of the time of ``weakref.finalize``.
        """
        key = id(storage)

        def forget(_reference) -> None:
            del self._deaths[key]
            self._rows.pop(key, None)
            died()

        self._deaths[key] = weakref.ref(storage, forget)

    def row_of(self, tensor: torch.Tensor) -> int | None:
        """The row of the buffer that holds a tensor; None if it was not recorded."""
        row = self._rows.get(id(tensor.untyped_storage()), -1)
        return None if row < 0 else row

    def allocate(self, size, operator: str, role: str = "") -> int:
        """Records an allocation without a tensor, such as a workspace; returns its row."""
        module, recomputed = self._place()
        recording = self.recording
        recording.buffers.append(RecordedBuffer(size, module, operator, self.moment, recomputed, role))
        row = len(recording.buffers) - 1
        recording.events.append(row + 1)
        recording.moments.append(self.moment)
        return row

    def free(self, row: int) -> None:
        """Records that a buffer is freed."""
        self.recording.events.append(-(row + 1))
        self.recording.moments.append(self.moment)

    def watch(self, tensor: torch.Tensor, operator: str, role: str = "", size=None) -> None:
        """Records a tensor's storage, unless it is recorded already, and its free when it dies.

        ``size`` replaces the storage's bytes.
        """
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._rows or storage.device.type != self._device or has_own_dispatch(type(tensor)):
            return
        row = self._rows[key] = self.allocate(size or storage.nbytes(), operator, role)
        recording = self.recording

        def died() -> None:
            if recording is self.recording:
                self.free(row)

        self._at_death(storage, died)

    def watch_inputs(self, batch: dict[str, Any]) -> None:
        """Records the tensors of a batch."""
        for name, value in batch.items():
            if isinstance(value, torch.Tensor):
                self.watch(value, name, role="input")

    def rows_in(self, held: Any) -> list[int]:
        """The rows of the tensors in an object, in their order, without inputs.

        An object's tensors are those in its containers, and in the attributes of what it holds, such as a cache.
        """
        rows = [self.row_of(tensor) for tensor in _tensors_in(held, set())]
        return [row for row in rows if row is not None and self.recording.buffers[row].role != "input"]

    def freed_since(self, begin: int) -> list[int]:
        """The rows freed from event ``begin`` on."""
        return [-event - 1 for event in self.recording.events[begin:] if event < 0]

    def closed(self) -> Recording:
        """Ends and returns the recording; later events go to a new one."""
        recording, self.recording = self.recording, Recording()
        return recording

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Discards the recording of the block, and also later frees of storages that were allocated in it."""
        with self:
            yield
        self.closed()

    def mark(self, mark: int, index: int) -> None:
        """Records a point at which a hook of a sharded model acts (``micro_step.Mark``)."""
        self.recording.marks.append(Point(len(self.recording.events), int(mark), index))

    def gradient_ready(self, name: str, tensor: torch.Tensor) -> None:
        """Records that a parameter's gradient is complete; an engine's hooks run at this point."""
        row = self.row_of(tensor)
        if row is not None:
            self.recording.buffers[row].role = "gradient"
            self.mark(Mark.READY, len(self.recording.gradients))
            self.recording.gradients.append(Completed(len(self.recording.events), name, row))

    def as_without_mode(self, func, args):
        """The operator and arguments that PyTorch would have called without a dispatch mode."""
        if self.moment is not Moment.BACKWARD or func not in DIFFERENT:
            return func, args
        if func is ADD:
            return accumulated(func, args, self._unshared)
        if func is INDEX_PUT:  # FunctionsManual.cpp, index_backward
            return (torch.ops.aten._index_put_impl_.default, (*args, True)) if args[3:] == (True,) else (func, args)
        return (IN_PLACE[func], args) if _by_engine() else (func, args)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(map(has_own_dispatch, types)):
            return NotImplemented
        func, args = self.as_without_mode(func, args)
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.watch(leaf, func._schema.name)
        return out


IN_PLACE = {
    torch.ops.aten.scatter.src: torch.ops.aten.scatter_.src,
    torch.ops.aten.scatter_add.default: torch.ops.aten.scatter_add_.default,
    torch.ops.aten.index_add.default: torch.ops.aten.index_add_.default,
}
"""Operator that autograd calls under a dispatch mode -> the one that it calls without (FunctionsManual.cpp,
value_selecting_reduction_backward_symint; ATen/native/TensorAdvancedIndexing.cpp, gather_backward,
index_select_backward_symint)."""
ADD, INDEX_PUT = torch.ops.aten.add.Tensor, torch.ops.aten.index_put.default
DIFFERENT = {ADD, INDEX_PUT, *IN_PLACE}
"""Operators that autograd may call instead of others under a dispatch mode."""


def _tensors_in(held: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """The tensors in an object. ``seen`` holds the objects that were entered, by ``id``."""
    if isinstance(held, torch.Tensor):
        yield held
    elif id(held) not in seen and not isinstance(held, (type, torch.nn.Module)):
        seen.add(id(held))
        parts = list(held.values()) if isinstance(held, dict) else held if isinstance(held, (list, tuple)) else []
        for part in (*parts, *getattr(held, "__dict__", {}).values()):
            yield from _tensors_in(part, seen)


def has_own_dispatch(tensor_type: type[torch.Tensor]) -> bool:
    """Whether a tensor type, such as DTensor, handles operators itself, by calling others on plain tensors."""
    return tensor_type.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


class _UseCounts(TorchDispatchMode):
    """Keeps the use counts of the first operand of each sum."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.add.Tensor:
            self.seen.append(_use_counts(args[0]))
        return func(*args, **(kwargs or {}))


def _use_counts(tensor: torch.Tensor) -> tuple[int, int]:
    """Number of references to a tensor and to its storage."""
    own = tensor._use_count()  # type: ignore[attr-defined]  # torch's stub lacks it
    return own, torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


@cache
def _unshared() -> tuple[int, int]:
    """The use counts that a dispatch mode sees for a gradient without other references.

    Releases of PyTorch differ, so they are read from the sum of two gradients that only the engine knows.
    """
    source = torch.empty(1, device="meta", requires_grad=True)
    counts = _UseCounts()
    with torch.enable_grad(), counts:
        torch.autograd.backward([source * 2, source * 3], [torch.empty(1, device="meta") for _ in range(2)])
    return counts.seen[-1]


PASSED_THROUGH = ("inner", "_fn", "__torch_dispatch__", "as_without_mode", "accumulated")
"""Names of the functions that are on the stack between autograd's engine and :func:`_by_engine`."""


def accumulated(func, args, unshared: tuple[int, int]):
    """Autograd's sum of two gradients, in place if it would be in place without a dispatch mode.

    torch/csrc/autograd/input_buffer.cpp (``accumulate``) adds into the gradient that came first if only the
    engine has a reference to it, but never under a dispatch mode.

    Args:
        unshared: the use counts of a gradient that only the engine has (:func:`_unshared`).
    """
    if not _by_engine():
        return func, args
    first, second = args[:2]
    if _use_counts(first) == unshared:
        return torch.ops.aten.add_.Tensor, (first, second)
    return func, args


def _by_engine() -> bool:
    """Whether autograd's engine calls the operator itself, without Python code in between."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name in PASSED_THROUGH:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"
