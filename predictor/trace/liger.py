"""Liger's kernels in a model (``use_liger_kernel``), and their allocations without a GPU.

Liger's Python code allocates the tensors that its Triton kernels fill. It runs unchanged on meta tensors, with kernel
launches that do nothing. Only functions that query the GPU are replaced. Source: liger-kernel 0.8.5.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch

from predictor.common.errors import NotPredicted

_LIBRARY = torch.library.Library("liger", "DEF")
_LIBRARY.define("partials(Tensor weight) -> Tensor")
_LIBRARY.define("logits(Tensor states, Tensor weight) -> Tensor")
_LIBRARY.impl("partials", lambda weight: weight.new_empty((1, *weight.shape), dtype=torch.float32), "Meta")
_LIBRARY.impl("logits", lambda states, weight: states.new_empty((1, len(weight))), "Meta")
"""Operators for allocations whose size depends on the GPU or on a threshold."""


def apply(model) -> None:
    """Replaces the same modules as Hugging Face's Trainer (transformers 5.17, integrations/liger.py): RMSNorm, SwiGLU
    and rotary embedding of the language model, and the head with its loss."""
    _quieten()
    from transformers.integrations.liger import apply_liger_kernel

    apply_liger_kernel(model, None)


@contextmanager
def on_meta(model) -> Iterator[None]:
    """Applies Liger's kernels, so that the model runs on meta tensors while the block runs. Liger's changes to
    transformers itself are undone afterwards."""
    _quieten()
    from liger_kernel.ops import fused_linear_cross_entropy, rms_norm
    from triton.runtime.jit import JITFunction  # type: ignore[import-untyped]  # triton has no type information

    library = vars(sys.modules[type(getattr(model.model, "language_model", model.model)).__module__])
    with (patch.dict(library), patch.object(JITFunction, "run", lambda *args, **kwargs: None),
          patch.object(rms_norm, "rms_norm_backward", _norm_backward),
          patch.object(fused_linear_cross_entropy, "fused_linear_cross_entropy_forward", _loss_and_gradients)):
        apply(model)
        yield


def _quieten() -> None:
    """Silences warnings of Liger, and of bitsandbytes, which it imports, about optional packages and kernels."""
    for library in ("liger_kernel", "bitsandbytes"):
        logging.getLogger(library).setLevel(logging.ERROR)


def _norm_backward(gradient, states, weight, *_, needs_dw):
    """ops/rms_norm.py, rms_norm_backward, in place: the weight's gradient is summed over fp32 rows, one for each
    multiprocessor."""
    shape = gradient.shape
    gradient = gradient.view(-1, shape[-1])
    partials = torch.ops.liger.partials(weight) if needs_dw else None
    gradient = gradient.view(*shape)
    return gradient, None if partials is None else partials.sum(dim=0).to(weight.dtype)


def _loss_and_gradients(*, _input, weight, target, ignore_index, **_others):
    """ops/fused_linear_cross_entropy.py, fused_linear_cross_entropy_forward, for weights in the compute dtype: products
    write into existing results, so all chunks share one buffer of logits."""
    if weight.dtype.itemsize > 2 or _input.dtype != weight.dtype or torch.is_autocast_enabled():
        raise NotPredicted(f"use_liger_kernel: a loss of {_input.dtype} states and {weight.dtype} weights is not "
                           "predicted: use weights of the compute dtype, or peakcast learn")
    input_gradient = torch.zeros_like(_input)
    weight_gradient = torch.zeros_like(weight) if _input.requires_grad and weight.requires_grad else None
    loss = torch.zeros(len(_input), dtype=torch.float32, device=_input.device)
    counted = target != ignore_index
    counted.sum().item()
    logits = torch.ops.liger.logits(_input, weight)
    del logits
    return torch.sum(loss), None, None, None, input_gradient, weight_gradient, None
