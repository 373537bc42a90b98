"""Traces formulas: builds the model on the meta device, records a few shapes of a regime, and fits the sizes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.common.errors import InputError
from predictor.events import regimes
from predictor.formula.formula import Formula
from predictor.formula.store import Key
from predictor.model import code_models
from predictor.model.model_config import ModelConfig
from predictor.trace.garbage_collection import existing_objects_skipped
from predictor.workload.modes import advice_for

if TYPE_CHECKING:
    from predictor.events.sizes import Shape
    from predictor.formula.few_layers import FewLayers
    from predictor.trace.recorder import Recording


def trace_formula(config: ModelConfig, key: Key, *, progress=None) -> Formula:
    """Traces and fits one regime.

    Args:
        config: the model's configuration.
        key: the key of the formula; its versions must be the installed ones.
        progress: wraps the list of shapes, for example with a progress bar.

    Raises:
        InputError: a needed package is missing or of another version, or the model cannot be built or traced.
        NotOneRegime: shapes of the regime do not share one list of events.
    """
    _require(config, key)
    import transformers

    from predictor.trace import flash_attention

    packaged = key.attn_implementation == "flash_attention_2"
    transformers.logging.set_verbosity_error()
    try:
        with (warnings.catch_warnings(), redirect_stdout(sys.stderr),  # the user's own code may print
              flash_attention.on_meta() if packaged else nullcontext()):
            warnings.simplefilter("ignore")
            return _trace(config, key, progress)
    except regimes.NotOneRegime as error:
        if not key.regime.is_alone:
            raise
        raise InputError(f"model {config.name}: cannot be traced: {error}") from error
    except InputError as error:
        if isinstance(error, code_models.UserCodeError) and not key.regime.is_alone:
            raise regimes.NotOneRegime(str(error)) from error
        raise
    except Exception as error:  # a configuration can lead torch and transformers anywhere
        if not key.regime.is_alone:  # the model may fail at the other traced shapes only
            raise regimes.NotOneRegime(str(error)) from error
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"model {config.name}: cannot be traced: {type(error).__name__}: {reason}") from error


def _trace(config: ModelConfig, key: Key, progress) -> Formula:
    from predictor.model import autotp, parser, tensor_parallel
    from predictor.trace import autocast
    from predictor.trace.inputs import inputs_of

    own = isinstance(config, code_models.CodeModel)
    config = code_models.at_shape(config, (first := regimes.traced_shapes(key.regime)[0]))
    model = parser.build(config, attn_implementation=key.attn_implementation, recipe=key.recipe,
                         patterns=parser.Patterns(key.trainable, key.frozen), lora=key.lora, dtype=key.dtype,
                         quantization=key.quantization)
    _refuse_recurrent(config, model, "inference" if key.generation else "training")
    if key.mixed_precision != "none":
        autocast.prepare(model, key.mixed_precision)
    if key.checkpointing != "off":
        parser.checkpoint(model, use_reentrant=key.checkpointing == "reentrant", **dict(key.checkpointing_kwargs))
    parser.without_grad(model, key.no_grad)
    inputs = inputs_of(config, model, key.image_sizes, key.video_frames, key.dtype)
    if own:
        code_models.on_meta(model)
    if key.autotp:
        autotp.shard(model, key.tensor_parallel)
    by_plan = key.tensor_parallel > 1 and not key.autotp
    with tensor_parallel.on_meta(model, key.tensor_parallel) if by_plan else nullcontext():
        return _traced(config, key, model, inputs, first, progress)


def _traced(config: ModelConfig, key: Key, model, inputs, first: Shape, progress) -> Formula:
    """Records a prepared model at the shapes of the regime, and fits the formula."""
    from predictor.formula import fit
    from predictor.model import parser
    from predictor.trace import liger

    facts = parser.describe(model, inputs.tokens_among(max(1, -(-first.images // first.batch))),
                            () if key.regime.is_wide else inputs.image_tokens(key.forward_shape(first)))
    brings = key.generation.brings if key.generation else 0
    shapes = regimes.traced_shapes(key.regime, lambda images: max(facts.room(images), brings))
    with existing_objects_skipped(), liger.on_meta(model) if key.liger else nullcontext():
        recorder = _RegimeRecorder(model, lambda shape: _recorded(key, model, inputs, shape), len(shapes))
        recordings = [recorder.at(shape) for shape in (progress(shapes) if progress else shapes)]
    micro = fit.fit(recordings, shapes, [p.name for p in facts.parameters], packed=key.padding == "packed")
    return Formula(micro, facts, {"source": "meta trace", "model": Path(config.name).name, "key": key.document()})


WHOLE = 2
"""Shapes of a regime at which the whole model is traced. They must show that few layers suffice at the others."""


class _RegimeRecorder:
    """Records the shapes of a regime: the first with the whole model, the others with few layers if that is possible.

    Args:
        record: traces the model at a shape.
        number: the number of shapes.
    """

    def __init__(self, model, record: Callable[[Shape], Recording], number: int) -> None:
        self._model, self._record, self._number = model, record, number
        self._whole: dict[Shape, Recording] = {}
        self._few: FewLayers | None = None

    def at(self, shape: Shape) -> Recording:
        """The recording of a shape.

        Raises:
            NotOneRegime: its list of events is not that of the first shape.
        """
        from predictor.formula.fit import same_list

        if self._few:
            return self._few.at(shape)
        recording = self._record(shape)
        same_list(next(iter(self._whole.values()), recording), recording, shape)
        self._whole[shape] = recording
        if len(self._whole) == WHOLE and self._number > WHOLE:
            self._few = self._few_layers()
        return recording

    def _few_layers(self) -> FewLayers | None:
        """The recorder of few layers; None if this model does not allow it."""
        from predictor.formula.few_layers import FewLayers

        try:
            return FewLayers(self._model, self._record, self._whole)
        except Exception:  # a model whose layers are skipped can fail anywhere, and then it runs as a whole
            return None


def _recorded(key: Key, model, inputs, shape: Shape) -> Recording:
    """Records a training step, an evaluation or a call of ``generate``, as the key says, at one shape."""
    from predictor.trace.trace import Loop, trace, trace_evaluation, trace_generation

    new = key.forward_shape(shape)
    batch = inputs.batch(new, key.padding)
    style = {"sdpa_backend": key.sdpa_backend, "mixed_precision": key.mixed_precision}
    if key.generation:
        return trace_generation(model, batch, key.generation, shape.sequence - new.sequence, **style)
    if key.evaluation:
        return trace_evaluation(model, batch, **style)
    return trace(model, batch, inputs.options, loop=Loop(key.sharded, key.wrapped, key.keeps_outputs), **style)


def _refuse_recurrent(config: ModelConfig, model, mode: str) -> None:
    """Rejects recurrent layers, which GPUs run in cuDNN or in kernels of their own (ATen/native/RNN.cpp)."""
    from torch.nn import RNNBase, RNNCellBase

    for name, module in model.named_modules():
        if isinstance(module, RNNBase | RNNCellBase):
            raise InputError(f"model {config.name}: {name or 'it'} is a recurrent layer ({type(module).__name__}), "
                             f"which is not predicted yet: {advice_for(mode)}")


def _require(config: ModelConfig, key: Key) -> None:
    packages = {"torch": key.torch, "transformers": key.transformers}
    packages |= {"peft": key.lora.peft} if key.lora else {}
    packages |= {"bitsandbytes": key.quantization.bitsandbytes} if key.quantization else {}
    _installed(config, packages, "'peakcast[trace]'", "give --versions {package}={found}")
    if key.liger:
        _installed(config, {"liger-kernel": key.liger}, "liger-kernel", "use peakcast learn")


def _installed(config: ModelConfig, packages: dict[str, str], source: str, otherwise: str) -> None:
    """Checks that packages are installed in these versions.

    Args:
        source: the argument of ``pip install`` that installs them, for the message.
        otherwise: the alternative to installing the version, for the message.

    Raises:
        InputError: one is missing, or has another version.
    """
    from importlib import metadata  # here, because a shipped formula needs no packages

    for package, version in packages.items():
        try:
            installed = metadata.version(package)
        except metadata.PackageNotFoundError:
            raise InputError(f"no shipped formula for {config.name} with these settings, and tracing it needs "
                             f"{package}: pip install {source}") from None
        if installed.split("+")[0] != version:
            raise InputError(f"versions: {package} {installed} is installed, but tracing for {version} needs that "
                             f"version: install it, or {otherwise.format(package=package, found=installed)}")
