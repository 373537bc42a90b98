"""The workspaces of the flash-attn package, whose two operators ``predictor.trace.flash_attention`` defines and calls.

Source: csrc/flash_attn/flash_api.cpp, flash-attn 2.8.
"""

from __future__ import annotations

import torch

from predictor.common.errors import InputError
from predictor.trace.operators.call import Call


def _rounded(width: int) -> int:
    step = 32 if width <= 128 else 64
    return -(-width // step) * step


def _dimensions(query: torch.Tensor) -> tuple[int, int, int, int]:
    """``(batch, heads, sequence, width)``, with the width rounded up as in the kernels."""
    batch, sequence, heads, width = query.shape
    return batch, heads, sequence, _rounded(width)


def _check(dtype: torch.dtype) -> None:
    """Rejects a dtype that the kernels do not take."""
    if dtype not in (torch.float16, torch.bfloat16):
        raise InputError(f"attn_implementation flash_attention_2 takes fp16 and bf16, not {dtype}: use sdpa")


def forward(call: Call) -> None:
    """flash_api.cpp: splits keys (mha_fwd), but not for packed sequences (mha_varlen_fwd) or with dropout."""
    query, *_, dropout = call.args
    _check(query.dtype)
    call.results(*call.out[:2])
    partial = []
    if query.dim() == 4 and not dropout:
        partial = [call.allocate((name, _dimensions(query))) for name in ("flash_split_sums", "flash_split_outputs")]
    call.results()
    for buffer in reversed(partial):
        call.free(buffer)


def backward(call: Call) -> None:
    """flash_api.cpp, mha_bwd and mha_varlen_bwd: accumulators, and dK and dV of all query heads if they share key
    heads."""
    query, key, sequences = call.args
    expanded = () if query.shape[-2] == key.shape[-2] else (query.numel() * query.element_size(),) * 2
    if query.dim() == 4:
        accumulators = tuple((name, _dimensions(query)) for name in ("flash_softmax_sum", "flash_dq_accumulator"))
    else:
        tokens, heads, width = query.shape
        rows = 4 * heads * (tokens + 128 * sequences)
        accumulators = rows, rows * _rounded(width)
    call.temporaries(*accumulators, *expanded)
