"""Fused attention."""

from __future__ import annotations

import torch

from predictor.operators.call import Call


def attention_dimensions(query: torch.Tensor) -> tuple[int, int, int, int]:
    """``(batch, heads, sequence, width)`` of a ``[batch, heads, sequence, width]`` query."""
    return tuple(query.shape)


def cudnn_forward(call: Call) -> None:
    """Seed and offset come before the results, sums of rows only if asked for (attention.cu,
    _scaled_dot_product_cudnn_attention_cuda)."""
    call.results(*(tensor for tensor in call.out if tensor.dim() == 0))
    call.results(call.out[0])
    if call.args[4]:  # compute_log_sumexp
        call.results()


def cudnn_backward(call: Call) -> None:
    """The graph's workspace (ATen/native/cudnn/MHA.cpp, run_cudnn_SDP_bprop)."""
    call.around(("cudnn_backward", attention_dimensions(call.args[1])))


def flash_forward(call: Call) -> None:
    """Partial results when keys are split (flash_api.cpp, set_params_splitkv), before seed and offset. Of one query, as
    in decoding, heads that share keys are rows (the same file, mha_fwd, seqlenq_ngroups_swapped)."""
    query, key = call.args[:2]
    dimensions = batch, heads, rows, width = attention_dimensions(query)
    if rows == 1:
        dimensions = (batch, key.shape[1], heads // key.shape[1], width, key.shape[2])
    call.results(*call.out[:2])
    partial = [call.allocate((name, dimensions)) for name in ("flash_split_sums", "flash_split_outputs")]
    call.results()
    for buffer in partial:
        call.free(buffer)


def flash_backward(call: Call) -> None:
    """Accumulators, and dK and dV for all heads where heads are grouped (flash_api.cpp, mha_bwd)."""
    query, key = call.args[1:3]
    dimensions = attention_dimensions(query)
    expanded = () if query.shape[1] == key.shape[1] else (query.numel() * query.element_size(),) * 2
    call.around(("flash_softmax_sum", dimensions), ("flash_dq_accumulator", dimensions), *expanded)


def efficient_forward(call: Call) -> None:
    """Sums of rows, rounded up; seed and offset stay on the CPU (attention.cu, _efficient_attention_forward)."""
    out, sums, *_ = call.out
    call.results(out)
    if sums.numel():
        call.results(sums, size=("efficient_rows", attention_dimensions(call.args[0])))


def padded_mask(call: Call) -> None:
    """A mask for memory-efficient attention (ATen/native/transformers/attention.cpp, pad_bias)."""
    mask, padding = call.args[:2]
    if mask.dtype.is_floating_point and mask.dim() == 4 and list(padding) == [0, -mask.shape[-1] % 8]:
        rows = mask.numel() // mask.shape[-1]
        call.results(call.out[0], size=("padded_mask", (rows, mask.shape[-1], mask.element_size())))
    call.results()


def efficient_backward(call: Call) -> None:
    """Row sums, which are an expression of their own in fp32, and the gradient accumulators (attention_backward.cu)."""
    query, dimensions = call.args[1], attention_dimensions(call.args[1])
    *gradients, bias = call.out
    call.results(*gradients)
    if bias.numel():
        length = bias.shape[-1]
        call.results(bias, size=("bias_gradient", (bias.numel() // length, length, bias.element_size())))
    wide = query.element_size() == 4
    terms = [call.allocate(4 * query.numel()), call.allocate(("efficient_delta", dimensions))] if wide else []
    delta = call.allocate(("efficient_delta", dimensions))
    for buffer in reversed(terms):
        call.free(buffer)
    accumulators = call.allocate(("efficient_backward", (*dimensions, 4) if wide else dimensions))
    call.free(delta)
    call.free(accumulators)
