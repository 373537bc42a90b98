"""Makes a formula: builds the model on meta, traces a few shapes of a regime, fits the sizes."""

from __future__ import annotations

import importlib.metadata
import warnings

from predictor import regimes
from predictor.errors import InputError
from predictor.formula import Formula
from predictor.models import ModelConfig
from predictor.store import Key


def trace_formula(config: ModelConfig, key: Key, *, progress=None) -> Formula:
    """Trace and fit one regime.

    Args:
        config: the model's configuration.
        key: what to trace; its versions must be the installed ones.
        progress: wraps the list of shapes, for example with a progress bar.

    Raises:
        InputError: torch or transformers is missing or of another version, or the model cannot be
            built, traced, or written as one regime.
    """
    _require(config, key)
    import transformers

    transformers.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _trace(config, key, progress)
    except InputError:
        raise
    except Exception as error:  # a configuration can lead torch and transformers anywhere
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"model {config.name}: cannot be traced: {type(error).__name__}: {reason}") from error


def _trace(config: ModelConfig, key: Key, progress) -> Formula:
    from predictor import fit, parser
    from predictor.trace import trace

    model = parser.build(config, attn_implementation=key.attn_implementation, recipe=key.recipe,
                         trainable=key.trainable, frozen=key.frozen, lora=key.lora, quantization=key.quantization)
    if key.checkpointing != "off":
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": key.checkpointing == "reentrant"})
    facts = parser.describe(model)
    shapes = regimes.traced_shapes(key.regime, facts.tokens_per_image)
    recordings = [trace(model, facts, shape, padding=key.padding, sdpa_backend=key.sdpa_backend,
                        sharded=key.sharded)
                  for shape in (progress(shapes) if progress else shapes)]
    micro = fit.fit(recordings, shapes, [p.name for p in facts.parameters])
    return Formula(micro, facts, {"source": "meta trace", "model": config.name, "key": key.document()})


def _require(config: ModelConfig, key: Key) -> None:
    packages = {"torch": key.torch, "transformers": key.transformers}
    packages |= {"peft": key.lora.peft} if key.lora else {}
    packages |= {"bitsandbytes": key.quantization.bitsandbytes} if key.quantization else {}
    for package, wanted in packages.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise InputError(f"no shipped formula for {config.name} with these settings, and tracing it needs "
                             f"{package}: pip install 'peakcast[trace]'") from None
        if found.split("+")[0] != wanted:
            raise InputError(f"versions: {package} {found} is installed, tracing for {wanted} needs that one: "
                             f"install it, or give --versions {package}={found}")
