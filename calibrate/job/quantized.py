"""Loads a model with layers of 4 or 8 bits in a measured job.

transformers loads it as from a checkpoint, but the checkpoint's tensors are made when they are read. Older releases
read them from a file with a hole instead of values.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import transformers

from predictor.common.dtypes import TORCH_NAMES
from predictor.common.releases import release
from predictor.model import lora, models, parser, quantization
from predictor.workload.workload import Workload

SLICES_SINCE = (5, 0, 0)
"""The first transformers that reads the tensors of a given state dict as it reads slices of a file."""
DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
"""dtype -> its name in a safetensors file."""
WEIGHT = 0.02
"""Value of every weight. Any finite value does, because only sizes are measured."""


class _Stored:
    """A tensor of the checkpoint, made when it is read, like a slice of a safetensors file."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._shape, self._dtype = tensor.shape, tensor.dtype

    def __getitem__(self, _index) -> torch.Tensor:
        return torch.full(self._shape, WEIGHT, dtype=self._dtype, device="cpu")


def load(workload: Workload):
    """The workload's model on the device; transformers quantises it tensor by tensor while loading."""
    from transformers import BitsAndBytesConfig

    model = parser.build_plain(models.find(workload.model), workload.attn_implementation, workload.dtype)
    assert workload.quantization is not None  # callers load only quantised models here
    settings = {name: value for name, value in workload.quantization.items() if name != "prepare"}
    if "load_in_4bit" in settings:
        settings["bnb_4bit_compute_dtype"] = TORCH_NAMES[settings["bnb_4bit_compute_dtype"]]
    if settings["llm_int8_skip_modules"] is not None:
        settings["llm_int8_skip_modules"] = list(settings["llm_int8_skip_modules"])
    load_model = partial(type(model).from_pretrained, config=model.config, dtype=model.dtype,
                         attn_implementation=workload.attn_implementation,
                         quantization_config=BitsAndBytesConfig(**settings))
    if release(transformers.__version__) >= SLICES_SINCE:
        return load_model(None, state_dict={name: _Stored(tensor) for name, tensor in model.named_parameters()})
    with tempfile.TemporaryDirectory(prefix="peakcast-") as directory:
        _write_checkpoint(dict(model.named_parameters()), Path(directory) / "model.safetensors")
        return load_model(directory)


def _write_checkpoint(tensors: dict[str, torch.Tensor], file: Path) -> None:
    """A safetensors file of zeros, which takes no room on disk: its length in 8 bytes, its header, and a hole."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)


def load_to_train(workload: Workload):
    """The model of :func:`load` with its adapters, ready to train."""
    adapters = lora.adapters(workload)
    assert workload.lora is not None and adapters is not None  # a quantised model trains only with adapters
    dtype = "fp32" if workload.lora["autocast_adapter_dtype"] else "bf16"  # an engine may cast it later
    return parser.prepare_for_training(load(workload), workload.recipe,
                                       parser.Patterns(workload.trainable, workload.frozen),
                                       lora=replace(adapters, dtype=dtype),
                                       quantization=quantization.quantized(workload), device="cpu")
