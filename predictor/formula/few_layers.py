"""Traces a model with most of its layers skipped, and infers from that what the whole model allocates.

Many layers allocate buffers of the same sizes in the same order: they are of one class. A trace in which one layer of
each class runs gives the sizes of all of them, in a small part of the time. Which layers are alike is read from a trace
of the whole model, and further whole traces must have the sizes that the few layers give.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeGuard

import torch

from predictor.events.regimes import NotOneRegime
from predictor.events.sizes import Shape
from predictor.formula.fit import same_list
from predictor.model import transformers_releases
from predictor.trace.recorder import RecordedBuffer, Recording

FEWEST_LAYERS = 4
"""Shorter lists of layers run as they are."""

NEEDS_SKIPPED = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of Python and PyTorch where code uses what a skipped layer computes, or what its output has besides hidden
states: keys of an earlier layer, elements of a tuple."""

OUTSIDE = ""
"""Stands for the path of a layer, for buffers that belong to none."""


class _PassThrough(torch.nn.Module):
    """Takes the place of a skipped layer: returns its first argument, and has the layer's other attributes."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.__dict__["_layer"] = layer  # nn.Module would register it, with its parameters

    def forward(self, *args, **kwargs):
        """Returns the hidden states."""
        return args[0] if args else kwargs["hidden_states"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_layer"], name)


def _is_list_of_layers(module: torch.nn.Module) -> TypeGuard[torch.nn.ModuleList]:
    """Whether a module is a list of what transformers calls layers, which take and return hidden states."""
    return (isinstance(module, torch.nn.ModuleList) and len(module) >= FEWEST_LAYERS
            and all(isinstance(layer, transformers_releases.checkpointed_layer()) for layer in module))


class Layers:
    """The layers of a model: the elements of its outermost lists of layers."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._lists: dict[str, torch.nn.ModuleList] = {}
        for path, module in model.named_modules():
            if _is_list_of_layers(module) and not any(path.startswith(f"{outer}.") for outer in self._lists):
                self._lists[path] = module
        self._place_of: dict[str, tuple[str, str]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lists.values()))

    def place(self, module: str) -> tuple[str, str]:
        """The layer that a module belongs to, and the module's path in it."""
        if module not in self._place_of:
            self._place_of[module] = self._find_place(module)
        return self._place_of[module]

    def _find_place(self, module: str) -> tuple[str, str]:
        for path in self._lists:
            if module.startswith(f"{path}."):
                number, _, rest = module[len(path) + 1 :].partition(".")
                return f"{path}.{number}", rest
        return OUTSIDE, module

    def rows_of(self, recording: Recording) -> dict[str, list[int]]:
        """Rows of the buffers that each layer allocates, in order; all others under :data:`OUTSIDE`."""
        rows: dict[str, list[int]] = {}
        for row, buffer in enumerate(recording.buffers):
            rows.setdefault(self.place(buffer.module)[0], []).append(row)
        return rows

    def described(self, buffer: RecordedBuffer) -> tuple:
        """Everything about a buffer but the number of its layer."""
        return (self.place(buffer.module)[1], buffer.operator, buffer.role, buffer.moment, buffer.recomputed,
                buffer.size)

    def representatives(self, whole: Recording) -> dict[str, str]:
        """For each layer, the first layer of its list that has equal buffers; :data:`OUTSIDE` stands for itself."""
        first: dict[tuple, str] = {}
        return {layer: first.setdefault((layer.rpartition(".")[0] if layer else OUTSIDE,
                                         *(self.described(whole.buffers[row]) for row in rows)), layer)
                for layer, rows in self.rows_of(whole).items()}

    @contextmanager
    def skipped_except(self, kept: Container[str]) -> Iterator[None]:
        """While the block runs, all layers but the kept ones return their input."""
        changed = [(container, name, layer) for path, container in self._lists.items()
                   for name, layer in container.named_children() if f"{path}.{name}" not in kept]
        for container, name, layer in changed:
            container._modules[name] = _PassThrough(layer)
        try:
            yield
        finally:
            for container, name, layer in changed:
                container._modules[name] = layer


class FewLayers:
    """Infers recordings of a whole model from traces of one layer of each class.

    Args:
        record: traces the model at a shape.
        whole: traces of the whole model, of one regime. The classes of layers are found in the first.

    Raises:
        NotOneRegime: skipping layers saves too little, or the inferred recordings differ from ``whole``.
    """

    def __init__(self, model: torch.nn.Module, record: Callable[[Shape], Recording],
                 whole: Mapping[Shape, Recording]) -> None:
        self._layers, self._record = Layers(model), record
        (shape, self._first), *others = whole.items()
        representative_of = self._layers.representatives(self._first)
        self._kept = frozenset(representative_of.values())
        if 2 * len(self._kept) > len(self._layers):
            raise NotOneRegime("most layers are different")
        self._few = self._traced(shape)
        self._origin = self._origins(representative_of)
        for shape, recording in others:
            if self._sizes_at(shape) != [buffer.size for buffer in recording.buffers]:
                raise NotOneRegime(f"layers allocate differently at {shape} if others are skipped")

    def at(self, shape: Shape) -> Recording:
        """The recording of the whole model at a shape of the regime.

        Raises:
            NotOneRegime: the layers that run have other events than at the first shape.
        """
        sizes = self._sizes_at(shape)
        return replace(self._first, buffers=[
            RecordedBuffer(size, buffer.module, buffer.operator, buffer.moment, buffer.recomputed, buffer.role)
            for buffer, size in zip(self._first.buffers, sizes)])

    def _traced(self, shape: Shape) -> Recording:
        try:
            with self._layers.skipped_except(self._kept):
                return self._record(shape)
        except NEEDS_SKIPPED as error:
            raise NotOneRegime(f"the model needs what skipped layers compute: {error}") from error

    def _origins(self, representative_of: Mapping[str, str]) -> list[int]:
        """For each buffer of the whole model, the row of its representative among the buffers of the few layers."""
        rows, of_few = self._layers.rows_of(self._first), self._layers.rows_of(self._few)
        origin = [0] * len(self._first.buffers)
        for layer, own in rows.items():
            source = of_few.get(representative_of[layer], [])
            if self._described(self._first, own) != self._described(self._few, source):
                raise NotOneRegime(f"{layer or 'the model'} has other buffers if layers are skipped")
            for row, other in zip(own, source):
                origin[row] = other
        return origin

    def _described(self, recording: Recording, rows: Sequence[int]) -> list[tuple]:
        return [self._layers.described(recording.buffers[row]) for row in rows]

    def _sizes_at(self, shape: Shape) -> list[Any]:
        """Sizes of the whole model's buffers."""
        few = self._traced(shape)
        same_list(self._few, few, shape)
        return [few.buffers[row].size for row in self._origin]
