"""Finds the formula that answers for a shape, and traces one where nobody has it."""

from __future__ import annotations

from dataclasses import replace

from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.progress import Progress
from predictor.events import regimes
from predictor.events.composed_run import sizes_at
from predictor.events.events import FACTORS, Factor
from predictor.events.sizes import Shape
from predictor.formula import store, tracing
from predictor.formula.formula import Formula
from predictor.model import code_models
from predictor.model.code_models import CodeModel
from predictor.model.model_config import ModelConfig


def formula_of(config: ModelConfig, key: store.Key, shape: Shape, dtype: str, progress: Progress | None = None,
               *, alone: bool = False, one_length: bool = False) -> Formula:
    """The formula of a key at a shape, whose regime narrows if need be: first to samples and images, unless there is
    but ``one_length``, then to the shape; ``alone``: to the shape at once, or to its sequence where it is of a later
    turn of a conversation, which are alike at all batches."""
    def trace(key: store.Key) -> Formula:
        return tracing.trace_formula(config, key, progress=progress)

    keys = [replace(key, regime=regime) for regime in regimes.narrowing(key.regime, shape)]
    keys = keys[1:] if len(key.image_sizes) > 1 else keys  # which image has which size depends on their number
    keys = keys[-1:] if alone else [keys[0], keys[-1]] if one_length else keys
    if alone and key.generation and key.generation.brings and len(key.image_sizes) < 2:
        keys = [replace(key, regime=regime) for regime in regimes.of_batches(shape)] + keys
    found = store.get(keys, trace)
    if isinstance(config, code_models.CodeModel):
        agrees = _agrees(config, found, shape, dtype)
        return found if agrees else store.get(keys[-1:], trace)
    images = -(-shape.images // shape.batch)
    tokens = found.facts.room(images)
    if not found.facts.image_tokens or not tokens < key.new(shape).sequence <= tokens + images:
        return found
    try:  # images side by side: a model that goes over them may see fewer pieces, or none that it knows
        return store.get(keys[-1:], trace)
    except InputError as error:
        raise InputError(f"sequence_length {shape.sequence}: no text comes between images, which {config.name} may "
                         f"need: give at least {tokens + images + 1} ({error})") from None


def _agrees(config: CodeModel, formula: Formula, shape: Shape, dtype: str) -> bool:
    """Whether the function's model and batch at a shape are those of a formula that was traced at other shapes."""

    model, batch = code_models.called(replace(config, shape=shape), dtype)
    known = {tensor.name: (tensor.shape, tensor.itemsize) for tensor in formula.facts.parameters}
    if {name: sizes for name, *sizes in map(list, code_models.layout(model))} != {n: list(s) for n, s in known.items()}:
        return False
    events = formula.micro.events
    of_inputs = events.buffers.factor == FACTORS.index(Factor.INPUTS)
    sizes = sizes_at(events, shape, gpus.find(gpus.DEFAULT))[events.buffers.size[of_inputs]]
    return sorted(map(int, sizes)) == sorted(tensor.numel() * tensor.element_size() for tensor in batch.values())
