"""LoRA: peft's adapters in a model."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from predictor.common.errors import InputError
from predictor.events.model_facts import modality

if TYPE_CHECKING:
    from predictor.workload.workload import Workload

PINNED_PEFT = "0.21.2"
ADAPTERS, COPIED = ".lora_", ".modules_to_save."
"""Parts of the names of what peft adds: adapters, and trained copies of modules."""
UNTRAINED = (".base_layer.", ".original_module.")
"""What peft keeps frozen of a layer that it wraps: the layer under adapters, the original of a trained copy."""


@dataclass(frozen=True)
class Adapters:
    """What of the ``lora`` key decides which memory is allocated: its scalings (``lora_alpha``, rsLoRA) do not.

    Attributes:
        dropout: whether there is any.
        dtype: of the adapters when they run: ``fp32``, or ``bf16`` as the weights (of 4 bits: as their compute dtype).
        peft: release of peft.
    """

    r: int
    target_modules: tuple[str, ...] | str | None
    dropout: bool
    modules_to_save: tuple[str, ...] | None
    use_dora: bool
    bias: str
    dtype: str
    peft: str


def adapters(workload: Workload) -> Adapters | None:
    """The adapters of a workload; None for another recipe.

    peft makes them fp32 over narrower ones (``get_peft_model``, ``autocast_adapter_dtype``). DeepSpeed then casts every
    parameter to one dtype before it moves the model to the GPU (0.19.8, runtime/engine.py,
    ``_configure_distributed_model``); Hugging Face's Trainer leaves the model on the CPU until then. FSDP2
    computes in ``param_dtype``, whatever it keeps.
    """
    lora = workload.lora
    if lora is None:
        return None
    cast = workload.engine == "deepspeed" or (workload.fsdp and workload.fsdp["param_dtype"])
    wide = lora["autocast_adapter_dtype"] and not cast
    return Adapters(
        r=lora["r"], target_modules=lora["target_modules"], dropout=lora["lora_dropout"] > 0,
        modules_to_save=lora["modules_to_save"], use_dora=lora["use_dora"], bias=lora["bias"],
        dtype="fp32" if wide else workload.dtype, peft=workload.versions.get("peft", PINNED_PEFT))


def inject(model, wanted: Adapters, device: str = "meta"):
    """Put peft's adapters into a model on meta, in place; ``requires_grad`` is as peft leaves it.

    ``device``: where they are made; peft then moves them to the layers', unless that is meta.

    The model that ``get_peft_model`` wraps is what it calls and what holds the adapters, so paths stay the model's own.

    Raises:
        InputError: a layer that peft does not find or cannot adapt, or an adapter on other than a linear layer or an
            embedding.
    """
    import torch

    quiet()
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora import LoraLayer
    from transformers.pytorch_utils import Conv1D

    targets = wanted.target_modules or _of_language_model(model)
    config = LoraConfig(
        task_type="CAUSAL_LM" if hasattr(model, "prepare_inputs_for_generation") else None,
        r=wanted.r, target_modules=targets if isinstance(targets, str) else list(targets),
        lora_dropout=0.1 if wanted.dropout else 0.0, bias=wanted.bias, use_dora=wanted.use_dora,
        modules_to_save=list(wanted.modules_to_save) if wanted.modules_to_save else None)
    try:
        with torch.device(device):
            get_peft_model(model, config, autocast_adapter_dtype=wanted.dtype == "fp32")
    except (ValueError, TypeError, NotImplementedError) as error:
        raise InputError(f"lora: peft cannot adapt the model: {' '.join(str(error).split())[:300]}") from None
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer)]
    for name, layer in layers:
        base = layer.get_base_layer()
        if not isinstance(base, torch.nn.Linear | Conv1D | torch.nn.Embedding):
            raise InputError(f"lora: target_modules names {name}, a {type(base).__name__}: "
                             "only adapters of linear layers and embeddings are supported yet")
        dtype = getattr(base, "compute_dtype", base.weight.dtype)
        if wanted.dtype != "fp32" and dtype.is_floating_point:  # on meta peft leaves them in fp32 either way
            for part in (layer.lora_A, layer.lora_B, layer.lora_magnitude_vector,
                         layer.lora_embedding_A, layer.lora_embedding_B):
                part.to(dtype)
    for name in wanted.modules_to_save or ():
        if not any(path.endswith(f"{name}.original_module") for path, _ in model.named_modules()):
            raise InputError(f"lora: modules_to_save names {name!r}, which no module of the model is called")
    return model


def _of_language_model(model) -> list[str]:
    """Paths of its linear layers, without the head; GPT-2 calls them Conv1D.

    Raises:
        InputError: it has none.
    """
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    found = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear | Conv1D)
             and layer is not head and modality(name) in ("language_model", "model")]
    if not found:
        raise InputError("lora: the language model has no linear layers, and adapters of no others are supported yet")
    return found


def quiet() -> None:
    """bitsandbytes, which peft imports too, misses kernels for CPUs aloud."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
