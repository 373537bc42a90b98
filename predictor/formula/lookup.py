"""Finds the formula for a shape, and traces one if it is neither shipped nor cached."""

from __future__ import annotations

from dataclasses import replace

from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.progress import Progress
from predictor.events import regimes
from predictor.events.composed_run import sizes_at
from predictor.events.events import FACTORS, Factor
from predictor.events.sizes import Shape
from predictor.formula import interpreter, store, tracing
from predictor.formula.formula import Formula
from predictor.model import code_models
from predictor.model.code_models import CodeModel
from predictor.model.model_config import ModelConfig


def formula_of(config: ModelConfig, key: store.Key, shape: Shape, dtype: str, progress: Progress | None = None,
               *, exact_shape: bool = False, one_length: bool = False) -> Formula:
    """The formula of a key at a shape. Tries regimes from widest to narrowest.

    Args:
        exact_shape: go straight to the exact shape. Of a later turn of a conversation the regime with the exact
            sequence and any batch is tried first, because such turns are alike at all batches.
        one_length: go from the regimes of several batches straight to the exact shape.

    Raises:
        InputError: the model cannot be traced, or needs text between its images.
    """
    chosen = interpreter.CHOSEN.get()

    def trace(key: store.Key) -> Formula:
        if shape.images and not key.video_frames and not isinstance(config, code_models.CodeModel):
            config.check_image_size(key.image_sizes)  # before torch is imported
        return chosen.trace(config, key) if chosen else tracing.trace_formula(config, key, progress=progress)

    keys = [replace(key, regime=regime) for regime in regimes.regimes_from_widest(key.regime, shape)]
    if len(key.image_sizes) > 1:  # which image has which size depends on their number
        keys = [key for key in keys if not key.regime.is_wide]
    keys = keys[-1:] if exact_shape else [k for k in keys if k.regime.is_wide or k is keys[-1]] if one_length else keys
    if exact_shape and key.generation and key.generation.brings and len(key.image_sizes) < 2:
        keys = [replace(key, regime=regime) for regime in regimes.regime_of_equal_samples(shape)] + keys
    if chosen and isinstance(config, code_models.CodeModel):  # the user's code runs only there
        return store.get(keys[-1:], trace)
    formula = store.get(keys, trace).at(shape)
    if isinstance(config, code_models.CodeModel):
        agrees = _agrees(config, formula, shape, dtype)
        return formula if agrees else store.get(keys[-1:], trace)
    images = -(-shape.images // shape.batch)
    tokens = formula.facts.room(images)
    if not formula.facts.image_tokens or not tokens < key.forward_shape(shape).sequence <= tokens + images:
        return formula
    try:  # without text between images a model that splits at text may see fewer pieces, or fail
        return store.get(keys[-1:], trace)
    except store.NotTraced:
        raise
    except InputError as error:
        raise InputError(f"sequence_length {shape.sequence}: no text comes between images, which {config.name} may "
                         f"need: give at least {tokens + images + 1} ({error})") from None


def _agrees(config: CodeModel, formula: Formula, shape: Shape, dtype: str) -> bool:
    """Whether the user's function returns, at this shape, the model and inputs that the formula has.

    The formula may have been traced at other shapes.
    """
    model, batch = code_models.call_user_function(replace(config, shape=shape), dtype)
    known = {tensor.name: (tensor.shape, tensor.itemsize) for tensor in formula.facts.parameters}
    if {name: sizes for name, *sizes in map(list, code_models.layout(model))} != {n: list(s) for n, s in known.items()}:
        return False
    events = formula.micro.events
    of_inputs = events.buffers.factor == FACTORS.index(Factor.INPUTS)
    sizes = sizes_at(events, shape, gpus.find(gpus.DEFAULT))[events.buffers.size[of_inputs]]
    return sorted(map(int, sizes)) == sorted(tensor.numel() * tensor.element_size() for tensor in batch.values())
