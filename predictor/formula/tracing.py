"""Traces formulas: builds the model on the meta device, records a few shapes of a regime, and fits the sizes."""

from __future__ import annotations

import sys
import warnings
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from predictor.common.errors import InputError, NotPredicted, OtherReleases
from predictor.common.installing import pip_install
from predictor.events import regimes
from predictor.formula import store
from predictor.formula.formula import Formula
from predictor.formula.store import Key
from predictor.model import code_models
from predictor.model.model_config import ModelConfig
from predictor.trace.garbage_collection import existing_objects_skipped
from predictor.workload.modes import advice_for

if TYPE_CHECKING:
    from predictor.events.micro_step import MicroStep
    from predictor.events.model_facts import ModelFacts
    from predictor.events.sizes import Shape
    from predictor.formula.repeats import Repeats
    from predictor.trace.recorder import Recording


def load() -> None:
    """Imports what every trace needs, which takes seconds."""
    from predictor.formula import fit, recordings  # noqa: F401
    from predictor.model import parser  # noqa: F401
    from predictor.trace import inputs, trace  # noqa: F401


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
    require(config, key)
    packaged = key.attn_implementation == "flash_attention_2"
    try:
        import transformers

        from predictor.trace import flash_attention

        transformers.logging.set_verbosity_error()
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
    from predictor.model import tensor_parallel

    by_plan = key.tensor_parallel > 1 and not key.autotp
    traced = _Traced.of(config, key)
    try:
        with tensor_parallel.on_meta(traced.model, key.tensor_parallel) if by_plan else nullcontext():
            formula = _traced(traced, key, progress)
    except regimes.NotOneRegime:
        if not by_plan:
            traced.keep()
        raise
    if not by_plan:
        replace(traced, recordings={}).keep()
    return formula


@dataclass(frozen=True, eq=False)
class _Traced:
    """A prepared model, with the recordings of all of its layers so far.

    The last one is kept, because another regime of the same model, or another kernel of attention, is often next. Its
    recordings are kept if its shapes were no regime, for a narrower one.

    Attributes:
        key: the key of the formula; its regime and kernel do not matter to the model.
    """

    config: ModelConfig
    key: Key
    model: Any
    inputs: Any
    recordings: dict[Shape, Recording] = field(default_factory=dict)

    _kept: ClassVar[list[_Traced]] = []

    @classmethod
    def of(cls, config: ModelConfig, key: Key) -> _Traced:
        """The model of a key: the one that is kept, or else a new one."""
        kept = cls._kept.pop() if cls._kept else None
        own = isinstance(config, code_models.CodeModel)  # a function of the user builds another model for other shapes
        if not kept or own or kept.config != config:
            return _prepared(config, key)
        if replace(kept.key, regime=key.regime) == key:
            return kept
        same_model = replace(kept.key, regime=key.regime, sdpa_backend=key.sdpa_backend) == key
        return replace(kept, key=key, recordings={}) if same_model else _prepared(config, key)

    def keep(self) -> None:
        """Keeps it for the next formula."""
        self._kept[:] = [self]

    def record(self, shape: Shape) -> Recording:
        """Records a step of the model as it is now."""
        return _recorded(self.key, self.model, self.inputs, shape)


def _prepared(config: ModelConfig, key: Key) -> _Traced:
    """Builds a model and prepares it for traces."""
    from predictor.model import autotp, lora, parser, transformers_releases
    from predictor.trace import autocast, noisy_embeddings, smoothed_loss, trl_loss
    from predictor.trace.inputs import inputs_of

    transformers_releases.import_for_forward()
    if key.lora or key.quantization:
        lora.import_for_meta()
    own = isinstance(config, code_models.CodeModel)
    at_shape = code_models.at_shape(config, regimes.traced_shapes(key.regime)[0])
    model = parser.build(at_shape, attn_implementation=key.attn_implementation, recipe=key.recipe,
                         patterns=parser.Patterns(key.trainable, key.frozen), lora=key.lora, dtype=key.dtype,
                         quantization=key.quantization)
    _refuse_recurrent(config, model, "inference" if key.generation else "training")
    if key.loss == trl_loss.TRL_SFT:
        trl_loss.add_head(model)
    if key.mixed_precision != "none":
        autocast.prepare(model, key.mixed_precision)
    if key.loss == trl_loss.TRL_SFT:
        trl_loss.add_trainer(model)
    elif key.loss == smoothed_loss.LABEL_SMOOTHING:
        smoothed_loss.apply(model)
    if key.checkpointing != "off":
        parser.checkpoint(model, use_reentrant=key.checkpointing == "reentrant", **dict(key.checkpointing_kwargs))
    parser.without_grad(model, key.no_grad)
    if key.noise:
        noisy_embeddings.apply(model)
    inputs = inputs_of(at_shape, model, key.image_sizes, key.video_frames, key.dtype)
    if own:
        code_models.on_meta(model)
    if key.autotp:
        autotp.shard(model, key.tensor_parallel)
    return _Traced(config, key, model, inputs)


def _traced(traced: _Traced, key: Key, progress) -> Formula:
    """Records a prepared model at the shapes of the regime, and fits the formula."""
    from predictor.model import parser
    from predictor.trace import liger

    model, inputs, first = traced.model, traced.inputs, regimes.traced_shapes(key.regime)[0]
    facts = parser.describe(model, inputs.tokens_among(-(-first.images // first.batch)),
                            () if key.regime.is_wide else inputs.image_tokens(key.forward_shape(first)))
    with existing_objects_skipped(), liger.on_meta(model) if key.liger else nullcontext():
        micro, repeats = _fitted(traced, key, facts, progress)
    return Formula(micro, facts, {"source": "meta trace", "model": Path(traced.config.name).name,
                                  "key": key.document()}, repeats)


def _fitted(traced: _Traced, key: Key, facts: ModelFacts, progress) -> tuple[MicroStep, Repeats | None]:
    """The micro-step of a regime, and the loops of a family."""
    from predictor.formula import fit
    from predictor.formula.recordings import OfRegime

    brings = key.generation.brings if key.generation else 0
    shapes, with_squares = (regimes.traced_shapes(key.regime, lambda images: max(facts.room(images), brings),
                                                  squares=squares) for squares in (False, True))
    recorder = OfRegime(key.regime, traced.model, traced.record, traced.recordings)
    recordings = [recorder.at(shape) for shape in (progress(shapes) if progress else shapes)]
    parameters, packed = [parameter.name for parameter in facts.parameters], key.padding == "packed"
    try:
        return fit.fit(recordings, shapes, parameters, packed=packed), recorder.repeats
    except regimes.NotOneRegime:
        if packed or with_squares == shapes:
            raise
    recordings += map(recorder.at, with_squares[len(shapes):])
    return fit.fit(recordings, with_squares, parameters, squares=True), recorder.repeats


def _recorded(key: Key, model, inputs, shape: Shape) -> Recording:
    """Records a training step, an evaluation or a call of ``generate``, as the key says, at one shape."""
    from predictor.trace.trace import Loop, trace, trace_evaluation, trace_generation

    new = key.forward_shape(shape)
    batch = inputs.batch(new, key.padding, key.loss)
    style = {"sdpa_backend": key.sdpa_backend, "mixed_precision": key.mixed_precision}
    if key.generation:
        return trace_generation(model, batch, key.generation, shape.sequence - new.sequence, **style)
    if key.evaluation:
        return trace_evaluation(model, batch, **style)
    return trace(model, batch, inputs.options, loop=Loop(key.sharded, key.wrapped, key.flat),
                 **style)


def _refuse_recurrent(config: ModelConfig, model, mode: str) -> None:
    """Rejects recurrent layers, which GPUs run in cuDNN, or their cells in kernels of their own (ATen/native/RNN.cpp).

    Raises:
        InputError: there is such a layer. The emulated GPU has no cuDNN for it.
        NotPredicted: there is such a cell.
    """
    from torch.nn import RNNBase, RNNCellBase

    for name, module in model.named_modules():
        said = f"model {config.name}: {name or 'it'} is a recurrent layer ({type(module).__name__}), which "
        if isinstance(module, RNNBase):
            raise InputError(f"{said}takes as much memory as cuDNN decides, and the emulated GPU does not have it: "
                             "measure it on a real GPU with peakcast learn --device cuda … -o FILE.npz")
        if isinstance(module, RNNCellBase):
            raise NotPredicted(f"{said}is not predicted yet: {advice_for(mode)}")


def require(config: ModelConfig, key: Key) -> None:
    """Checks that the packages which a trace needs are installed in their releases.

    Raises:
        InputError: one is missing.
        OtherReleases: one has another version.
    """
    packages = {"torch": key.torch, "transformers": key.transformers}
    packages |= {"peft": key.lora.peft} if key.lora else {}
    packages |= {"bitsandbytes": key.quantization.bitsandbytes} if key.quantization else {}
    sizes = ", ".join(f"{height}x{width}" for height, width in store.shipped_sizes(key))
    missing = f"no shipped formula for {config.name} with these settings" + (
        f" and pictures of this size (shipped: {sizes}, as the model's processor resizes them)" if sizes else "")
    _installed(missing, packages, "peakcast[trace]", "give {}")
    if key.liger:
        _installed(missing, {"liger-kernel": key.liger}, "liger-kernel", "use peakcast learn")


def _installed(missing: str, packages: dict[str, str], source: str, otherwise: str) -> None:
    """Checks that packages are installed in these versions.

    Args:
        missing: why something must be traced, for the message.
        source: what pip installs to have them, for the message.
        otherwise: the alternative to installing the version, for the message.

    Raises:
        InputError: one is missing.
        OtherReleases: one has another version.
    """
    from importlib import metadata  # here, because a shipped formula needs no packages

    others = {}
    for package, version in packages.items():
        try:
            installed = metadata.version(package)
        except metadata.PackageNotFoundError:
            raise InputError(f"{missing}, and tracing it needs {package}: {pip_install(source)}") from None
        if installed.split("+")[0] != version:
            others[package] = installed
    if others:
        needed, here = (" and ".join(f"{package} {which[package]}" for package in others)
                        for which in (packages, others))
        found = " ".join(f"--versions {package}={installed}" for package, installed in others.items())
        raise OtherReleases(f"versions: tracing for {needed} needs these releases, and here is {here}: install them, "
                            f"name a Python that has them (--python), or {otherwise.format(found)}")
