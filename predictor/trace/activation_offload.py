"""Traces activation checkpointing that keeps its activations in host memory (``offload=True``).

transformers 5.17 (modeling_utils.py, gradient_checkpointing_enable) runs each checkpoint under PyTorch's
``save_on_cpu`` (torch/autograd/graph.py, 2.11). It copies the saved tensors to pinned host memory, contiguously, and
copies them back to new tensors when backward needs them. Meta tensors have no data to copy, so this module replaces
``save_on_cpu``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch.utils._python_dispatch import _disable_current_modes

from predictor.trace.tracer import Tracer

Packed = tuple[torch.Size, torch.dtype, "torch.Tensor | None"]


@contextmanager
def on_host(tracer: Tracer) -> Iterator[None]:
    """While the block runs, checkpoints save and restore their tensors with the allocations of CUDA."""

    def pack(tensor: torch.Tensor) -> Packed:
        if not tensor.is_contiguous():  # ATen/native/cuda/Copy.cu: copy_requires_temporaries
            tracer.free(tracer.allocate(tensor.numel() * tensor.element_size(), "aten::copy_"))
        values = tracer.host_values.of(tensor)
        return tensor.shape, tensor.dtype, None if values is None else values.clone()

    def unpack(packed: Packed) -> torch.Tensor:
        shape, dtype, values = packed
        with _disable_current_modes():
            tensor = torch.empty(shape, dtype=dtype, device="meta")
            if values is not None:
                tracer.host_values.adopt(tensor, values)
        tracer.watch(tensor, "aten::_to_copy")
        return tensor

    def save_on_cpu(**_settings) -> torch.autograd.graph.saved_tensors_hooks:
        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    with mock.patch("transformers.modeling_utils.save_on_cpu", save_on_cpu, create=True):  # 4.57 does not offload
        yield
