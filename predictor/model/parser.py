"""The user's model on the meta device: its modality modules and which parameters train."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

from predictor.common.dtypes import TORCH_NAMES
from predictor.common.errors import InputError
from predictor.events.model_facts import TOWERS, ModelFacts, Parameter, modality
from predictor.model import code_models
from predictor.model import lora as adapters
from predictor.model import quantization as few_bits
from predictor.model.code_models import CodeModel
from predictor.model.model_config import Kind, ModelConfig

RECIPES: dict[str, Callable[[str], bool]] = {
    "pretrain": lambda module: module == "projector",
    "finetune": lambda module: module not in TOWERS,
    "lora": lambda module: module == "projector",
    "full": lambda module: True,
}
"""Recipe name -> whether a modality module trains (LLaVA's own stages, and everything); with ``lora``, what peft
trains does too."""
CLASSES = {
    Kind.IMAGE_TEXT: ("AutoModelForImageTextToText",),
    Kind.TEXT: ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM"),
    Kind.IMAGE: ("AutoModelForImageClassification",),
    Kind.AUDIO_TEXT: ("AutoModelForMultimodalLM",),
    Kind.SPEECH: ("AutoModelForSpeechSeq2Seq",),
}
"""What a sample has -> transformers' classes of models that give a loss for it."""


class Patterns(NamedTuple):
    """Paths of parameters, or of modules above them, of which a recipe does not decide alone."""

    trainable: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()


NO_PATTERNS = Patterns()


def build(config: ModelConfig, *, attn_implementation: str, recipe: str, patterns: Patterns = NO_PATTERNS,
          lora: adapters.Adapters | None = None, dtype: str = "bf16", quantization: few_bits.Quantized | None = None):
    """The model in training mode on the meta device, of that dtype, with ``requires_grad`` set.

    Raises:
        InputError: a configuration that transformers refuses, a pattern that matches nothing, or nothing left to
            train.
    """
    if isinstance(config, CodeModel):
        model = code_models.build(config, dtype)
        model.train()
        left = {name for name, parameter in model.named_parameters() if parameter.requires_grad or recipe == "full"}
        select(model, recipe, patterns, chosen=left)
        return model
    model = bare(config, attn_implementation, dtype)
    if quantization is not None:
        few_bits.replace(model, quantization)
        if quantization.prepare is None:  # nothing will train
            few_bits.settle(model, quantization)
            return model
    model = ready(model, recipe, patterns, lora=lora, quantization=quantization)
    if quantization is not None:
        few_bits.settle(model, quantization)
    return model


def bare(config: ModelConfig, attn_implementation: str, dtype: str = "bf16"):
    """The model on meta, as transformers builds it."""
    import torch
    from transformers import AutoConfig

    try:
        hf_config = AutoConfig.for_model(**deepcopy(config.document))
        library = class_of(config, hf_config)
        if attn_implementation == "sdpa" and not library._supports_sdpa:
            attn_implementation = "eager"  # what transformers takes by itself
        with torch.device("meta"):
            model = library._from_config(hf_config, dtype=getattr(torch, TORCH_NAMES[dtype]),
                                         attn_implementation=attn_implementation)
    except InputError:
        raise
    except Exception as error:  # transformers raises whatever the field leads to
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"model {config.name}: transformers cannot build it: "
                         f"{type(error).__name__}: {reason}") from None
    return model


def class_of(config: ModelConfig, hf_config):
    """The class that builds the model: the one its configuration names, or else the first that gives a loss.

    Raises:
        InputError: transformers has none.
    """
    import transformers

    found = [getattr(transformers, auto)._model_mapping.get(type(hf_config), None) for auto in CLASSES[config.kind]]
    found = [library[0] if isinstance(library, tuple) else library for library in found if library is not None]
    named = config.document.get("architectures") or ()
    if named and not any(hasattr(transformers, name) for name in named):
        raise InputError(f"model {config.name}: transformers {transformers.__version__} has no class "
                         f"{', '.join(named)}: name a function that builds the model, FILE.py:FUNCTION")
    fitting = [library for library in found if not named or library.__name__ in named]
    if not fitting:
        known = ", ".join(dict.fromkeys(library.__name__ for library in found)) or "none"
        raise InputError(f"model {config.name}: {' and '.join(named) or config.document['model_type']} is not "
                         f"predicted by its name (of this model_type: {known}): name a function, FILE.py:FUNCTION")
    return fitting[0]


def ready(model, recipe: str, patterns: Patterns, *, lora: adapters.Adapters | None,
          quantization: few_bits.Quantized | None, device: str = "meta"):
    """The same model with adapters, in training mode; ``device`` is where adapters are made."""
    if quantization is not None:
        few_bits.prepare(model, quantization)
    if lora is not None:
        adapters.inject(model, lora, device)
    if quantization is not None:
        few_bits.narrow(model, quantization)
    model.train()
    select(model, recipe, patterns)
    return model


def checkpoint(model, *, use_reentrant: bool, every_n_layers: int = 1, offload: bool = False,
               modules: tuple[str, ...] = ()) -> None:
    """Recompute layers in backward, as Hugging Face's Trainer has it with these ``gradient_checkpointing_kwargs``.

    Args:
        modules: patterns of paths: layers elsewhere keep their activations; none: all layers are recomputed.

    Raises:
        InputError: a model that cannot, or a pattern that matches no layer.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    if not model.supports_gradient_checkpointing:
        raise InputError(f"gradient_checkpointing: {type(model).__name__} has none: switch it off "
                         "(--no-gradient-checkpointing)")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant},
                                        every_n_layers=every_n_layers, offload=offload)
    if not modules:
        return
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, GradientCheckpointingLayer)}
    for pattern in modules:
        if not any(_matches(name, pattern) for name in layers):
            raise InputError(f"gradient_checkpointing_modules: pattern {pattern!r} matches no layer (for example "
                             f"{next(iter(layers))!r})")
    for name, layer in layers.items():
        layer.gradient_checkpointing &= any(_matches(name, pattern) for pattern in modules)


def without_grad(model, patterns: tuple[str, ...]) -> None:
    """Let modules run under ``torch.no_grad``, as the ``forward`` of LLaVA's own vision tower does.

    Raises:
        InputError: a pattern that matches no module, or a module with parameters that train.
    """
    import torch

    for pattern in patterns:
        found = {name: module for name, module in model.named_modules() if name and _matches(name, pattern)}
        if not found:
            raise InputError(f"no_grad: pattern {pattern!r} matches no module")
        for name, module in found.items():
            if any(parameter.requires_grad for parameter in module.parameters()):
                raise InputError(f"no_grad: {name} has parameters that train: freeze them, or leave it out")
            if not isinstance(module, torch.nn.ModuleList):
                module.forward = torch.no_grad()(module.forward)
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = False  # there is nothing to compute again


def _matches(path: str, pattern: str) -> bool:
    """Whether a pattern matches a path, or the path of any module above it."""
    return fnmatch.fnmatch(path, pattern) or fnmatch.fnmatch(path, pattern + ".*")


def select(model, recipe: str, patterns: Patterns = NO_PATTERNS, *, chosen: set[str] | None = None) -> None:
    """Set ``requires_grad`` by recipe, or as ``chosen`` says instead, then ``trainable``, then ``frozen`` patterns.

    A pattern matches a parameter's whole path, or the path of any module above it.
    """
    names = [name for name, _ in model.named_parameters()]
    if chosen is None:
        chosen = {name for name in names if RECIPES[recipe](modality(name))}
        if recipe != "lora":  # some models are built with parameters that stay fixed, such as sinusoidal positions
            chosen -= {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    if recipe == "lora":
        chosen = {name for name in chosen if not any(part in name for part in adapters.UNTRAINED)}
        chosen |= {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    for key, given, apply in (("trainable", patterns.trainable, chosen.update),
                              ("frozen", patterns.frozen, chosen.difference_update)):
        for pattern in given:
            hits = [name for name in names if _matches(name, pattern)]
            if not hits:
                raise InputError(f"{key}: pattern {pattern!r} matches no parameter (for example {names[0]!r})")
            apply(hits)
    if not chosen:
        raise InputError("nothing is left to train: recipe, trainable and frozen together freeze every parameter")
    for name, parameter in model.named_parameters():
        if name in chosen and not parameter.is_floating_point():
            raise InputError(f"quantization: {name} has 4 or 8 bits and cannot train: add its module to "
                             "llm_int8_skip_modules, or to frozen")
        parameter.requires_grad_(name in chosen)


def describe(model, tokens_per_image: int, image_tokens: tuple[int, ...] = ()) -> ModelFacts:
    """Facts of a built model."""
    import torch

    from predictor.model.tensor_parallel import is_sharded, local

    decay = decayed(model)
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    tensors = [Parameter(name, tuple(local(p).shape), p.element_size(), p.requires_grad, name in decay,
                         embedding=id(p) in embeddings, sharded=is_sharded(p))
               for name, p in model.named_parameters()]
    tensors += [Parameter(name, tuple(b.shape), b.element_size(), False, buffer=True)
                for name, b in model.named_buffers()]
    config = getattr(model, "config", None)  # a model outside transformers need not have one
    return ModelFacts(str(getattr(config, "model_type", code_models.MODEL_TYPE)), _hidden_size(config),
                      tokens_per_image, tuple(tensors), image_tokens)


def _hidden_size(config) -> int:
    """What Hugging Face fills "auto" buckets by (transformers 5.17, integrations/deepspeed.py,
    trainer_config_finalize); 0 where it finds nothing."""
    for part in (config, getattr(config, "text_config", None)):
        for name, choose in (("hidden_size", int), ("hidden_sizes", max)):
            if getattr(part, name, None) is not None:
                return choose(getattr(part, name))
    return 0


def decayed(model) -> set[str]:
    """Parameters of the weight-decay group (transformers 5.17: Trainer.get_decay_parameter_names)."""
    from torch import nn
    from transformers.trainer_pt_utils import get_parameter_names

    patterns = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
    return set(get_parameter_names(model, [nn.LayerNorm], patterns))
