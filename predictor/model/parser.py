"""Builds the user's model on the meta device, and selects the parameters that train."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import NamedTuple

from predictor.common.dtypes import TORCH_NAMES
from predictor.common.errors import InputError
from predictor.events.model_facts import TOWERS, ModelFacts, Parameter, modality
from predictor.model import code_models, transformers_releases
from predictor.model import lora as adapters
from predictor.model import quantization as few_bits
from predictor.model.code_models import CodeModel
from predictor.model.model_config import Modality, ModelConfig

RECIPES: dict[str, Callable[[str], bool]] = {
    "pretrain": lambda module: module == "projector",
    "finetune": lambda module: module not in TOWERS,
    "lora": lambda module: module == "projector",
    "full": lambda module: True,
}
"""Recipe -> whether a part of the model (``model_facts.modality``) trains: LLaVA's own stages, or everything. With
``lora``, the parameters that peft trains are added."""
CLASSES = {
    Modality.IMAGE_TEXT: ("AutoModelForImageTextToText",),
    Modality.TEXT: ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM"),
    Modality.IMAGE: ("AutoModelForImageClassification",),
    Modality.AUDIO_TEXT: ("AutoModelForMultimodalLM",),
    Modality.SPEECH: ("AutoModelForSpeechSeq2Seq",),
}
"""Modality of samples -> transformers' auto classes of models that compute a loss for it."""


class Patterns(NamedTuple):
    """The user's patterns for which parameters train and which are frozen. They override the recipe.

    A pattern matches the path of a parameter, or the path of a module that contains it.
    """

    trainable: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()


NO_PATTERNS = Patterns()


def build(config: ModelConfig, *, attn_implementation: str, recipe: str, patterns: Patterns = NO_PATTERNS,
          lora: adapters.Adapters | None = None, dtype: str = "bf16", quantization: few_bits.Quantized | None = None):
    """The model on the meta device, in training mode, with ``requires_grad`` set.

    Raises:
        InputError: transformers cannot build the model, a pattern matches nothing, or no parameter is left to train.
    """
    if isinstance(config, CodeModel):
        model = code_models.build(config, dtype)
        model.train()
        trainable = {name for name, parameter in model.named_parameters()
                     if parameter.requires_grad or recipe == "full"}
        select_trainable(model, recipe, patterns, chosen=trainable)
        return model
    model = build_plain(config, attn_implementation, dtype)
    if quantization is not None:
        few_bits.replace(model, quantization)
        if quantization.prepare is None:  # inference
            few_bits.cast_to_final_dtypes(model, quantization)
            return model
    model = prepare_for_training(model, recipe, patterns, lora=lora, quantization=quantization)
    if quantization is not None:
        few_bits.cast_to_final_dtypes(model, quantization)
    return model


def build_plain(config: ModelConfig, attn_implementation: str, dtype: str = "bf16"):
    """The model on meta as transformers builds it, before adapters, quantization and ``requires_grad``.

    Raises:
        InputError: transformers cannot build it.
    """
    import torch
    from transformers import AutoConfig

    try:
        hf_config = AutoConfig.for_model(**transformers_releases.configuration(config.document))
        library = class_of(config, hf_config)
        if attn_implementation == "sdpa" and not library._supports_sdpa:
            attn_implementation = "eager"  # transformers' own fallback
        with torch.device("meta"), transformers_releases.built_on_meta():
            model = library._from_config(hf_config, attn_implementation=attn_implementation,
                                         **transformers_releases.dtype_option(getattr(torch, TORCH_NAMES[dtype])))
    except InputError:
        raise
    except Exception as error:  # a wrong field of the configuration can raise any exception in transformers
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"model {config.name}: transformers cannot build it: "
                         f"{type(error).__name__}: {reason}") from None
    return model


def class_of(config: ModelConfig, hf_config):
    """The class that builds the model: the class that its configuration names, or else the first that computes a loss.

    Raises:
        InputError: transformers has no such class.
    """
    import transformers

    names = map(transformers_releases.auto_class, CLASSES[config.kind])
    autos = [getattr(transformers, name) for name in names if hasattr(transformers, name)]
    mapped = [auto._model_mapping.get(type(hf_config), None) for auto in autos]
    classes = [library[0] if isinstance(library, tuple) else library for library in mapped if library is not None]
    architectures = config.document.get("architectures") or ()
    if architectures and not any(hasattr(transformers, name) for name in architectures):
        raise InputError(f"model {config.name}: transformers {transformers.__version__} has no class "
                         f"{', '.join(architectures)}: name a function that builds the model, FILE.py:FUNCTION")
    fitting = [library for library in classes if not architectures or library.__name__ in architectures]
    if not fitting:
        predicted = ", ".join(dict.fromkeys(library.__name__ for library in classes)) or "none"
        raise InputError(f"model {config.name}: {' and '.join(architectures) or config.document['model_type']} is not "
                         f"a class that is predicted (of this model_type: {predicted}): name a function that builds "
                         "the model, FILE.py:FUNCTION")
    return fitting[0]


def prepare_for_training(model, recipe: str, patterns: Patterns, *, lora: adapters.Adapters | None,
                         quantization: few_bits.Quantized | None, device: str = "meta"):
    """Prepares a built model for training: adds adapters, sets training mode and ``requires_grad``.

    ``device`` is the device on which adapters are made.
    """
    if quantization is not None:
        few_bits.prepare(model, quantization)
    if lora is not None:
        adapters.inject(model, lora, device)
    if quantization is not None:
        few_bits.narrow(model, quantization)
    model.train()
    select_trainable(model, recipe, patterns)
    return model


def checkpoint(model, *, use_reentrant: bool, every_n_layers: int = 1, offload: bool = False,
               modules: tuple[str, ...] = ()) -> None:
    """Switches activation checkpointing on, as Hugging Face's Trainer does.

    Args:
        use_reentrant: as in the Trainer's ``gradient_checkpointing_kwargs``.
        every_n_layers: only every n-th layer is checkpointed.
        offload: whether saved activations go to host memory.
        modules: patterns of paths; only matching layers are checkpointed. Empty: all layers.

    Raises:
        InputError: the model does not support checkpointing, or a pattern matches no layer.
    """
    if not model.supports_gradient_checkpointing:
        raise InputError(f"gradient_checkpointing: {type(model).__name__} does not support it: switch it off "
                         "(--no-gradient-checkpointing)")
    options = transformers_releases.checkpointing_options({"every_n_layers": every_n_layers, "offload": offload})
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant}, **options)
    if not modules:
        return
    kind = transformers_releases.checkpointed_layer()
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, kind)}
    if not layers:
        raise InputError("gradient_checkpointing_modules: the layers of this release of transformers do not decide "
                         "themselves whether they are checkpointed: leave it out, or use transformers 4.52 or later")
    for pattern in modules:
        if not any(_matches(name, pattern) for name in layers):
            raise InputError(f"gradient_checkpointing_modules: pattern {pattern!r} matches no layer (for example "
                             f"{next(iter(layers))!r})")
    for name, layer in layers.items():
        layer.gradient_checkpointing &= any(_matches(name, pattern) for pattern in modules)


def without_grad(model, patterns: tuple[str, ...]) -> None:
    """Makes modules run under ``torch.no_grad``, as the ``forward`` of LLaVA's own vision tower does.

    Raises:
        InputError: a pattern matches no module, or a matching module has parameters that train.
    """
    import torch

    for pattern in patterns:
        matches = {name: module for name, module in model.named_modules() if name and _matches(name, pattern)}
        if not matches:
            raise InputError(f"no_grad: pattern {pattern!r} matches no module")
        for name, module in matches.items():
            if any(parameter.requires_grad for parameter in module.parameters()):
                raise InputError(f"no_grad: {name} has parameters that train: freeze them, or leave it out")
            if not isinstance(module, torch.nn.ModuleList):
                module.forward = torch.no_grad()(module.forward)
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = False  # without gradients, nothing is recomputed


def _matches(path: str, pattern: str) -> bool:
    """Whether a pattern matches a path, or the path of a module that contains it."""
    return fnmatch.fnmatch(path, pattern) or fnmatch.fnmatch(path, pattern + ".*")


def select_trainable(model, recipe: str, patterns: Patterns = NO_PATTERNS, *, chosen: set[str] | None = None) -> None:
    """Sets ``requires_grad`` by the recipe, then by ``trainable`` patterns, then by ``frozen`` patterns.

    A pattern matches a parameter's whole path, or the path of a module that contains it.

    Args:
        chosen: names of the parameters that train, in place of the recipe's choice.

    Raises:
        InputError: a pattern matches no parameter, no parameter is left to train, or a quantized one would train.
    """
    names = [name for name, _ in model.named_parameters()]
    if chosen is None:
        chosen = {name for name in names if RECIPES[recipe](modality(name))}
        if recipe != "lora":  # some models have parameters that never train, such as sinusoidal positions
            chosen -= {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    if recipe == "lora":
        chosen = {name for name in chosen if not any(part in name for part in adapters.UNTRAINED)}
        chosen |= {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    for key, of_key, apply in (("trainable", patterns.trainable, chosen.update),
                               ("frozen", patterns.frozen, chosen.difference_update)):
        for pattern in of_key:
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
    """Facts of a built model.

    Args:
        tokens_per_image: placeholder tokens of an image.
        image_tokens: tokens that the images of each sample fill, for a formula of one number of samples and images.
    """
    import torch

    from predictor.model.tensor_parallel import is_sharded, local_part

    decay = transformers_releases.decayed(model)
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    tensors = [Parameter(name, tuple(local_part(p).shape), p.element_size(), p.requires_grad, name in decay,
                         embedding=id(p) in embeddings, sharded=is_sharded(p))
               for name, p in model.named_parameters()]
    tensors += [Parameter(name, tuple(b.shape), b.element_size(), False, buffer=True)
                for name, b in model.named_buffers()]
    config = getattr(model, "config", None)  # a model outside transformers need not have one
    return ModelFacts(str(getattr(config, "model_type", code_models.MODEL_TYPE)), _hidden_size(config),
                      tokens_per_image, tuple(tensors), image_tokens)


def _hidden_size(config) -> int:
    """The hidden size by which Hugging Face replaces ``auto`` bucket sizes of DeepSpeed (transformers 5.17,
    integrations/deepspeed.py, trainer_config_finalize); 0 if the configuration has none."""
    for part in (config, getattr(config, "text_config", None)):
        for name, choose in (("hidden_size", int), ("hidden_sizes", max)):
            if getattr(part, name, None) is not None:
                return choose(getattr(part, name))
    return 0
