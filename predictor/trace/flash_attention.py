"""Stand-ins for the flash-attn package on meta tensors (``attn_implementation: flash_attention_2``).

The package itself need not be installed. Its two functions, as transformers calls them, have the results and the
autograd graph of flash-attn 2.8 (flash_attn/flash_attn_interface.py), and the workspaces of
csrc/flash_attn/flash_api.cpp (``predictor.trace.operators.flash_attention``). They have not been compared with
measurements: predictions are marked ``assumed``. The flash attention of PyTorch's SDPA is in
``predictor.trace.operators.attention``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional

from predictor.model import transformers_releases
from predictor.trace.autocast import STAND_IN

_LIBRARY = torch.library.Library("flash_attn_2", "DEF")
_LIBRARY.define("forward(Tensor query, Tensor key, Tensor value, float dropout) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define("backward(Tensor query, Tensor key, int sequences) -> ()")
_LIBRARY.impl("backward", lambda query, key, sequences: None, "Meta")


def _forward(query, key, value, dropout):
    """Returns the output, the row sums and the state of the random generator.

    Inputs are ``[batch, tokens, heads, width]``, or ``[tokens, heads, width]`` if sequences are packed. Which dtypes
    the kernels take is checked where the call is recorded: other calls only ask for shapes.
    """
    rows = query.shape[:-1]
    rows = (rows[0], rows[2], rows[1]) if len(rows) == 3 else (rows[1], rows[0])
    return torch.empty_like(query), query.new_empty(rows, dtype=torch.float32), query.new_empty(2, dtype=torch.int64)


_LIBRARY.impl("forward", _forward, "Meta")


class _Attention(torch.autograd.Function):
    """FlashAttnFunc, or FlashAttnVarlenFunc if ``bounds`` of packed sequences are given."""

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
    """The signature that transformers inspects before it calls a function of the package: tensors, then options."""
    options = {"dropout_p": 0.0, "softmax_scale": None, "causal": False, "window_size": (-1, -1), "softcap": 0.0,
               "deterministic": False}
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([*(inspect.Parameter(name, either) for name in tensors),
                              *(inspect.Parameter(name, either, default=value) for name, value in options.items())])


def flash_attn_func(q, k, v, dropout_p=0.0, *_without_effect, **_named):
    """Attention of a padded batch."""
    return _Attention.apply(q, k, v, (), dropout_p, torch.is_grad_enabled())


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, *_max_seqlens, dropout_p=0.0, **_without_effect):
    """Attention of packed sequences."""
    return _Attention.apply(q, k, v, (cu_seqlens_q, cu_seqlens_k), dropout_p, torch.is_grad_enabled())


# The stubs of functions lack ``__signature__``, which ``inspect.signature`` reads.
flash_attn_func.__signature__ = _signature("q", "k", "v")  # type: ignore[attr-defined]
flash_attn_varlen_func.__signature__ = _signature(  # type: ignore[attr-defined]
    "q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")


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
    """Puts packed tokens back into a padded batch."""
    return _PutFirstAxis.apply(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


@contextmanager
def on_meta() -> Iterator[None]:
    """While the block runs, transformers finds the stand-ins (5.17: modeling_flash_attention_utils.py).

    Raises:
        InputError: the installed release calls the package in another way.
    """
    from transformers import modeling_flash_attention_utils as library
    from transformers.integrations import flash_attention as caller

    transformers_releases.check_flash_attention(caller)
    imports = (flash_attn_func, flash_attn_varlen_func, None, pad_input, None)
    target_dtype = caller.get_target_dtype

    def on_stand_in(query, module):  # it looks up autocast by the tensor's device type, and meta has no autocast
        query_there: Any = SimpleNamespace(dtype=query.dtype, device=torch.device(STAND_IN))
        return target_dtype(query_there, module)

    with (patch.object(caller, "get_target_dtype", on_stand_in),
          patch.dict(vars(library), _lazy_imports=lambda *args, **kwargs: imports),
          patch.dict(library.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2], general_availability_check=lambda: True)):
        yield
