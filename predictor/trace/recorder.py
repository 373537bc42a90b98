"""Sees every storage that a program allocates, and its death, in order.

A dispatch mode that works on meta tensors (the trace) and on CPU tensors (the tests). It keeps no
tensor and no storage, only finalizers: autograd steals or adds in place by use count, so holding a
reference would change what is being recorded.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from predictor.events.events import Moment
from predictor.events.micro_step import Mark


@dataclass
class RecordedBuffer:
    """One storage: ``size`` is its bytes, or the name and dimensions of a workspace."""

    size: int | tuple[str, tuple[int, ...]]
    module: str
    operator: str
    moment: Moment
    recomputed: bool = False
    role: str = ""


@dataclass
class Recording:
    """What happened, in order. ``events`` holds +row + 1 for an allocation, -(row + 1) for a free."""

    buffers: list[RecordedBuffer] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    gradients: list[tuple[int, str, int]] = field(default_factory=list)
    marks: list[tuple[int, int, int]] = field(default_factory=list)
    owners: list[tuple[int, int]] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    cache: list[tuple[int, int]] = field(default_factory=list)


Place = Callable[[], tuple[str, bool]]


class Recorder(TorchDispatchMode):
    """Records into :attr:`recording` what is allocated while it is active.

    Args:
        place: says the current module path and whether a checkpoint is being recomputed.
        device: type of the device whose memory counts.
    """

    def __init__(self, place: Place = lambda: ("", False), device: str = "meta") -> None:
        super().__init__()
        self.recording = Recording()
        self.moment = Moment.INIT
        self._place = place
        self._device = device
        self._rows: dict[int, int] = {}

    def ignore(self, tensors) -> None:
        """These tensors were there before: neither their storages nor their deaths are events."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._rows[id(storage)] = -1
            weakref.finalize(storage, self._rows.pop, id(storage), None).atexit = False

    def row_of(self, tensor: torch.Tensor) -> int | None:
        """The recorded buffer that holds a tensor."""
        row = self._rows.get(id(tensor.untyped_storage()), -1)
        return None if row < 0 else row

    def allocate(self, size, operator: str, role: str = "") -> int:
        """Append an allocation that no tensor stands for (a workspace); returns its row."""
        module, recomputed = self._place()
        recording = self.recording
        recording.buffers.append(RecordedBuffer(size, module, operator, self.moment, recomputed, role))
        row = len(recording.buffers) - 1
        recording.events.append(row + 1)
        recording.moments.append(self.moment)
        return row

    def free(self, row: int) -> None:
        """Append the death of a buffer."""
        self.recording.events.append(-(row + 1))
        self.recording.moments.append(self.moment)

    def watch(self, tensor: torch.Tensor, operator: str, role: str = "", size=None) -> None:
        """Record a tensor's storage, once, and its death when it comes; ``size`` in place of its bytes."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._rows or storage.device.type != self._device or unpacks_itself(type(tensor)):
            return
        row = self._rows[key] = self.allocate(size or storage.nbytes(), operator, role)
        recording = self.recording

        def died() -> None:
            self._rows.pop(key, None)
            if recording is self.recording:
                self.free(row)

        weakref.finalize(storage, died).atexit = False

    def watch_inputs(self, batch: dict[str, Any]) -> None:
        """Record what the model is fed."""
        for name, value in batch.items():
            if isinstance(value, torch.Tensor):
                self.watch(value, name, role="input")

    def closed(self) -> Recording:
        """The recording as it stands; what happens from now on is not in it."""
        recording, self.recording = self.recording, Recording()
        return recording

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """What happens inside is not recorded, nor later that it ends."""
        with self:
            yield
        self.closed()

    def mark(self, kind: int, index: int) -> None:
        """Note something of a sharded model that happens here (``micro_step.Mark``)."""
        self.recording.marks.append((len(self.recording.events), int(kind), index))

    def gradient_ready(self, name: str, tensor: torch.Tensor) -> None:
        """Note that a parameter's gradient is complete; hooks of an engine run here."""
        row = self.row_of(tensor)
        if row is not None:
            self.recording.buffers[row].role = "gradient"
            self.mark(Mark.READY, len(self.recording.gradients))
            self.recording.gradients.append((len(self.recording.events), name, row))

    def as_without_mode(self, func, args):
        """The operator that would have been called, had no dispatch mode been on."""
        if func is torch.ops.aten.add.Tensor and self.moment is Moment.BACKWARD:
            return accumulated(func, args)
        if func is torch.ops.aten.index_put.default and self.moment is Moment.BACKWARD and args[3:] == (True,):
            return torch.ops.aten._index_put_impl_.default, (*args, True)  # FunctionsManual.cpp, index_backward
        if func in IN_PLACE and self.moment is Moment.BACKWARD and _by_engine():
            return IN_PLACE[func], args
        return func, args

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(map(unpacks_itself, types)):
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
"""What the engine calls under a dispatch mode -> what it calls without (FunctionsManual.cpp,
value_selecting_reduction_backward_symint; ATen/native/TensorAdvancedIndexing.cpp, gather_backward,
index_select_backward_symint)."""


def unpacks_itself(kind: type) -> bool:
    """Whether tensors of a type (DTensor) take an operator apart, and come back with plain ones."""
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


UNSHARED = (4, 2)
"""Use counts, of tensor and storage, that a dispatch mode sees of an operand nobody else holds."""


PASSED_THROUGH = ("inner", "_fn", "__torch_dispatch__", "as_without_mode", "accumulated")
"""Functions between the engine and the question whether it calls."""


def accumulated(func, args):
    """Autograd's sum of two gradients, in place where it would be without a dispatch mode.

    torch/csrc/autograd/input_buffer.cpp (``accumulate``) adds into the gradient that came first, if only the
    engine holds it, but never while a dispatch mode is on. The engine calls with no Python frame between.
    """
    if not _by_engine():
        return func, args
    first, second = args[:2]
    if (first._use_count(), torch._C._storage_Use_Count(first.untyped_storage()._cdata)) == UNSHARED:
        return torch.ops.aten.add_.Tensor, (first, second)
    return func, args


def _by_engine() -> bool:
    """Whether the engine itself calls the operator, with no Python frame between."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name in PASSED_THROUGH:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"
