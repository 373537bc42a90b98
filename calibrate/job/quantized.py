"""Layers of 4 or 8 bits in a measured job: transformers loads the model, as from a checkpoint of which nothing is
stored."""

from __future__ import annotations

from dataclasses import replace

import torch

from predictor.common.dtypes import TORCH_NAMES
from predictor.model import lora, models, parser, quantization
from predictor.workload.workload import Workload

WEIGHT = 0.02
"""Of every tensor: any finite values do, as only sizes are measured."""


class _Stored:
    """A tensor of the checkpoint, made when it is read, as a slice of a safetensors file is."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._shape, self._dtype = tensor.shape, tensor.dtype

    def __getitem__(self, _index) -> torch.Tensor:
        return torch.full(self._shape, WEIGHT, dtype=self._dtype, device="cpu")


def load(workload: Workload):
    """The workload's model on the device, quantised tensor by tensor on the way."""
    from transformers import BitsAndBytesConfig

    bare = parser.bare(models.find(workload.model), workload.attn_implementation, workload.dtype)
    settings = {name: value for name, value in workload.quantization.items() if name != "prepare"}
    if "load_in_4bit" in settings:
        settings["bnb_4bit_compute_dtype"] = TORCH_NAMES[settings["bnb_4bit_compute_dtype"]]
    if settings["llm_int8_skip_modules"] is not None:
        settings["llm_int8_skip_modules"] = list(settings["llm_int8_skip_modules"])
    return type(bare).from_pretrained(
        None, config=bare.config, state_dict={name: _Stored(tensor) for name, tensor in bare.named_parameters()},
        dtype=bare.dtype, attn_implementation=workload.attn_implementation,
        quantization_config=BitsAndBytesConfig(**settings))


def load_to_train(workload: Workload):
    """The same with its adapters."""
    dtype = "fp32" if workload.lora["autocast_adapter_dtype"] else "bf16"  # until an engine has its own way
    return parser.ready(load(workload), workload.recipe, parser.Patterns(workload.trainable, workload.frozen),
                        lora=replace(lora.adapters(workload), dtype=dtype),
                        quantization=quantization.quantized(workload), device="cpu")
