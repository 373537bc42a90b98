"""LoRA: adds peft's adapters to a model."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from predictor.common.errors import InputError
from predictor.events.model_facts import modality
from predictor.model import pattern_time

if TYPE_CHECKING:
    from predictor.workload.workload import Workload

PINNED_PEFT = "0.21.2"
ADAPTERS, COPIED = ".lora_", ".modules_to_save."
"""Substrings of the names of parameters that peft adds: adapters, and trained copies of modules."""
UNTRAINED = (".base_layer.", ".original_module.")
"""Substrings of the names of parameters that peft freezes: layers under adapters, originals of trained copies."""


@dataclass(frozen=True)
class Adapters:
    """The settings of the ``lora`` key that affect memory; its scalings (``lora_alpha``, rsLoRA) do not.

    Attributes:
        dropout: whether the dropout probability is above 0.
        dtype: dtype of the adapters in a step: ``fp32``, or ``bf16`` as the weights (as the compute dtype of 4-bit
            weights).
        peft: version of peft.
        target_parameters: ends of the paths of parameters that get adapters themselves, such as those of experts.
    """

    r: int
    target_modules: tuple[str, ...] | str | None
    dropout: bool
    modules_to_save: tuple[str, ...] | None
    use_dora: bool
    bias: Literal["none", "all", "lora_only"]
    dtype: str
    peft: str
    target_parameters: tuple[str, ...] = ()


def adapters(workload: Workload) -> Adapters | None:
    """The adapters of a workload; None if its recipe is not LoRA.

    peft makes adapters of bf16 or fp16 layers fp32 (``get_peft_model``, ``autocast_adapter_dtype``). DeepSpeed then
    casts every parameter to one dtype before it moves the model to the GPU (0.19.8, runtime/engine.py,
    ``_configure_distributed_model``); until then Hugging Face's Trainer leaves the model on the CPU. FSDP2 computes in
    ``param_dtype``, whatever dtype it stores.
    """
    lora = workload.lora
    if lora is None:
        return None
    cast = workload.engine == "deepspeed" or (workload.fsdp and workload.fsdp["param_dtype"])
    wide = lora["autocast_adapter_dtype"] and not cast
    return Adapters(
        r=lora["r"], target_modules=lora["target_modules"], dropout=lora["lora_dropout"] > 0,
        modules_to_save=lora["modules_to_save"], use_dora=lora["use_dora"], bias=lora["bias"],
        dtype="fp32" if wide else workload.dtype, peft=workload.versions.get("peft", PINNED_PEFT),
        target_parameters=lora.get("target_parameters") or ())


def inject(model, settings: Adapters, device: str = "meta"):
    """Adds peft's adapters to a model on meta, in place; ``requires_grad`` is as peft leaves it.

    ``get_peft_model`` puts the adapters into the model itself, so the model is returned without peft's wrapper, and
    paths do not change.

    Args:
        settings: settings of the adapters.
        device: device on which the adapters are made; peft then moves them to the device of their layers, unless that
            is meta.

    Raises:
        InputError: peft does not find or cannot adapt a layer, an adapted layer is neither linear nor an embedding, or
            no module has a name of ``modules_to_save``.
    """
    import torch

    quiet()
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora import LoraLayer
    from transformers.pytorch_utils import Conv1D

    targets = settings.target_modules or _of_language_model(model)
    if isinstance(targets, str):
        pattern_time.check("lora target_modules", targets, (name for name, _ in model.named_modules()))
    parameters: dict[str, Any] = {  # peft before 0.17 has no such option
        "target_parameters": list(settings.target_parameters)} if settings.target_parameters else {}
    config = LoraConfig(
        task_type="CAUSAL_LM" if hasattr(model, "prepare_inputs_for_generation") else None,
        r=settings.r, target_modules=targets if isinstance(targets, str) else list(targets),
        lora_dropout=0.1 if settings.dropout else 0.0, bias=settings.bias, use_dora=settings.use_dora,
        modules_to_save=list(settings.modules_to_save) if settings.modules_to_save else None,
        **parameters)
    try:
        with torch.device(device):
            get_peft_model(model, config, autocast_adapter_dtype=settings.dtype == "fp32")
    except (ValueError, TypeError, NotImplementedError) as error:
        raise InputError(f"lora: peft cannot adapt the model: {' '.join(str(error).split())[:300]}") from None
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer)]
    for name, layer in layers:
        base = layer.get_base_layer()
        if not _of_parameter(layer) and not isinstance(base, torch.nn.Linear | Conv1D | torch.nn.Embedding):
            raise InputError(f"lora: target_modules names {name}, a {type(base).__name__}: only adapters of linear "
                             "layers, embeddings and experts are supported yet")
        dtype = _dtype(layer)
        if settings.dtype != "fp32" and dtype.is_floating_point:  # on meta, peft leaves them in fp32
            for part in (layer.lora_A, layer.lora_B, layer.lora_magnitude_vector,
                         layer.lora_embedding_A, layer.lora_embedding_B):
                part.to(dtype)
    for name in settings.modules_to_save or ():
        if not any(path.endswith(f"{name}.original_module") for path, _ in model.named_modules()):
            raise InputError(f"lora: modules_to_save names {name!r}, which no module of the model is called")
    return model


def _of_parameter(layer) -> bool:
    """Whether a layer adapts one parameter of a module, such as that of experts; peft before 0.17 has none."""
    from peft.tuners.lora import layer as layers

    return isinstance(layer, getattr(layers, "ParamWrapper", ()))


def _dtype(layer):
    """The dtype of what a layer adapts: a parameter of experts, or a weight; of quantized weights that of computing."""
    if _of_parameter(layer):
        return layer.get_param().dtype
    base = layer.get_base_layer()
    return getattr(base, "compute_dtype", base.weight.dtype)


def _of_language_model(model) -> list[str]:
    """Paths of the language model's linear layers without the head; in GPT-2 their class is Conv1D.

    Raises:
        InputError: the language model has no linear layers.
    """
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    paths = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear | Conv1D)
             and layer is not head and modality(name) in ("language_model", "model")]
    if not paths:
        raise InputError("lora: the language model has no linear layers, and adapters of no others are supported yet")
    return paths


def quiet() -> None:
    """Silences bitsandbytes' warnings about missing CPU kernels; peft imports it too."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def import_for_meta() -> None:
    """Imports bitsandbytes, which peft does too if it is there, without PyTorch's compiler: that takes a second.

    bitsandbytes compiles its kernels for the CPU, which are never called on meta.
    """
    from unittest.mock import patch  # here, because it takes longer to import than a shipped formula needs

    import torch

    def as_it_is(function=None, **_options):
        return function or as_it_is

    quiet()
    with suppress(ImportError), patch.object(torch, "compile", as_it_is):
        import bitsandbytes  # noqa: F401
