"""Attention as CUDA chooses it, on meta tensors.

On meta, ``scaled_dot_product_attention`` falls to the math path. While tracing it is replaced by one
that calls the fused operator CUDA would take: a plain function, because a function mode would not be
active when a checkpoint recomputes.
"""

from __future__ import annotations

import math
from contextlib import contextmanager

import torch
from torch.nn import functional

aten = torch.ops.aten


def _cudnn(query, key, value, mask, dropout, causal, scale):
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    return aten._scaled_dot_product_cudnn_attention(
        query, key, value, mask, needs_grad, dropout, causal, False, scale=scale)[0]


def _flash(query, key, value, mask, dropout, causal, scale):
    width = query.shape[-1]
    pad = -width % 8
    if pad:
        scale = 1 / math.sqrt(width) if scale is None else scale
        query, key, value = (functional.pad(t, (0, pad)) for t in (query, key, value))
    out = aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale)[0]
    return out[..., :width] if pad else out


def _efficient(query, key, value, mask, dropout, causal, scale):
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, needs_grad, dropout, causal, scale=scale)[0]


KERNELS = {"cudnn": _cudnn, "flash": _flash, "efficient": _efficient}


def choose(backend: str, query, key, mask) -> str:
    """The kernel that PyTorch takes for these inputs (ATen/native/transformers/cuda/sdp_utils.cpp)."""
    if backend == "flash" and mask is not None:
        return "efficient"
    return backend


@contextmanager
def as_cuda_chooses(backend: str):
    """Replace ``scaled_dot_product_attention`` while the block runs."""
    original = functional.scaled_dot_product_attention

    def chosen(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        kernel = choose(backend, query, key, attn_mask)
        if query.device.type != "meta" or kernel == "math":
            return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -math.inf)
        return KERNELS[kernel](query, key, value, attn_mask, dropout_p, is_causal, scale)

    functional.scaled_dot_product_attention = chosen
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = original
