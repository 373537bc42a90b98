"""The flash-attn package on meta tensors (``attn_implementation: flash_attention_2``), which nothing here needs.

Its two functions as transformers calls them, with the results and the graph of flash-attn 2.8
(flash_attn/flash_attn_interface.py) and what csrc/flash_attn/flash_api.cpp allocates besides. No measurement stands
behind it: predictions are ``assumed``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import patch

import torch
from torch.nn import functional

from predictor.common.errors import InputError

if TYPE_CHECKING:
    from predictor.trace.operators import Call

_LIBRARY = torch.library.Library("flash_attn_2", "DEF")
_LIBRARY.define("forward(Tensor query, Tensor key, Tensor value, float dropout) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define("backward(Tensor query, Tensor key, int sequences) -> ()")
_LIBRARY.impl("backward", lambda query, key, sequences: None, "Meta")


def _forward(query, key, value, dropout):
    """Output, sums of rows, state of the random generator; tokens come before heads, packed ones without a batch."""
    if query.dtype not in (torch.float16, torch.bfloat16):
        raise InputError(f"attn_implementation flash_attention_2 takes fp16 and bf16, not {query.dtype}: use sdpa")
    rows = query.shape[:-1]
    rows = (rows[0], rows[2], rows[1]) if len(rows) == 3 else (rows[1], rows[0])
    return torch.empty_like(query), query.new_empty(rows, dtype=torch.float32), query.new_empty(2, dtype=torch.int64)


_LIBRARY.impl("forward", _forward, "Meta")


class _Attention(torch.autograd.Function):
    """FlashAttnFunc, and FlashAttnVarlenFunc where ``bounds`` of packed sequences are given."""

    @staticmethod
    def forward(ctx, query, key, value, bounds, dropout, grad_enabled):
        keeps, width = grad_enabled and any(tensor.requires_grad for tensor in (query, key, value)), query.shape[-1]
        if width % 8:
            query, key, value = (functional.pad(tensor, [0, 8 - width % 8]) for tensor in (query, key, value))
        out, sums, state = torch.ops.flash_attn_2.forward(query, key, value, dropout)
        if keeps:
            ctx.save_for_backward(query, key, value, out, sums, *bounds, state)
        return out[..., :width]

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, _, _, *bounds, _ = ctx.saved_tensors
        of_query, of_key, of_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        width = gradient.shape[-1]
        padded = functional.pad(gradient, [0, 8 - width % 8]) if width % 8 else gradient
        torch.ops.flash_attn_2.backward(query, key, bounds[0].numel() - 1 if bounds else 0)
        del padded
        return of_query[..., :width], of_key[..., :width], of_value[..., :width], None, None, None


def _signature(*tensors: str) -> inspect.Signature:
    """What transformers looks at before it calls a function of the package: its arguments, then the options."""
    options = {"dropout_p": 0.0, "softmax_scale": None, "causal": False, "window_size": (-1, -1), "softcap": 0.0,
               "deterministic": False}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([*(inspect.Parameter(name, kind) for name in tensors),
                              *(inspect.Parameter(name, kind, default=value) for name, value in options.items())])


def flash_attn_func(q, k, v, dropout_p=0.0, *_without_effect, **_named):
    """Attention of whole batches."""
    return _Attention.apply(q, k, v, (), dropout_p, torch.is_grad_enabled())


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, *, dropout_p=0.0, **_without_effect):
    """Attention of sequences that lie one after the other."""
    return _Attention.apply(q, k, v, (cu_seqlens_q, cu_seqlens_k), dropout_p, torch.is_grad_enabled())


flash_attn_func.__signature__ = _signature("q", "k", "v")
flash_attn_varlen_func.__signature__ = _signature("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q",
                                                  "max_seqlen_k")


class _PutFirstAxis(torch.autograd.Function):
    """IndexPutFirstAxis (flash_attn/bert_padding.py)."""

    @staticmethod
    def forward(ctx, values, indices, rows):
        ctx.save_for_backward(indices)
        out = torch.zeros(rows, *values.shape[1:], device=values.device, dtype=values.dtype)
        out[indices] = values
        return out

    @staticmethod
    def backward(ctx, gradient):
        (indices,) = ctx.saved_tensors
        return gradient[indices], None, None


def pad_input(hidden_states, indices, batch, seqlen):
    """Sequences with their padding again."""
    return _PutFirstAxis.apply(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


@contextmanager
def on_meta() -> Iterator[None]:
    """transformers finds the package while the block runs (5.17: modeling_flash_attention_utils.py)."""
    from transformers import modeling_flash_attention_utils as library
    from transformers.integrations import flash_attention as caller

    found = (flash_attn_func, flash_attn_varlen_func, None, pad_input, None)
    asks = caller.get_target_dtype

    def of_gpu(query, module):  # it asks for autocast by the device's name, and meta has none
        return asks(SimpleNamespace(dtype=query.dtype, device=torch.device("cuda")), module)

    with (patch.object(caller, "get_target_dtype", of_gpu),
          patch.dict(vars(library), _lazy_imports=lambda *args, **kwargs: found),
          patch.dict(library.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2], general_availability_check=lambda: True)):
        yield


def _rounded(width: int) -> int:
    step = 32 if width <= 128 else 64
    return -(-width // step) * step


def _dimensions(query: torch.Tensor) -> tuple[int, int, int, int]:
    """``(batch, heads, sequence, width)`` with the width that kernels round up to."""
    batch, sequence, heads, width = query.shape
    return batch, heads, sequence, _rounded(width)


def _play_forward(call: Call) -> None:
    """flash_api.cpp: keys are split (mha_fwd) unless sequences are packed (mha_varlen_fwd) or there is dropout."""
    query, *_, dropout = call.args
    call.results(*call.out[:2])
    partial = []
    if query.dim() == 4 and not dropout:
        partial = [call.allocate((name, _dimensions(query))) for name in ("flash_split_sums", "flash_split_outputs")]
    call.results()
    for buffer in reversed(partial):
        call.free(buffer)


def _play_backward(call: Call) -> None:
    """mha_bwd and mha_varlen_bwd of the same: accumulators, and dK and dV for all heads where heads are grouped."""
    query, key, sequences = call.args
    expanded = () if query.shape[-2] == key.shape[-2] else (query.numel() * query.element_size(),) * 2
    if query.dim() == 4:
        accumulators = tuple((name, _dimensions(query)) for name in ("flash_softmax_sum", "flash_dq_accumulator"))
    else:
        tokens, heads, width = query.shape
        rows = 4 * heads * (tokens + 128 * sequences)
        accumulators = rows, rows * _rounded(width)
    call.through(*accumulators, *expanded)


OPERATORS = {"flash_attn_2::forward": _play_forward, "flash_attn_2::backward": _play_backward}
"""For ``operators.TABLE``."""
