"""Allocations of the fused attention kernels: cuDNN, flash attention and memory-efficient attention."""

from __future__ import annotations

import torch

from predictor.trace.operators.call import Call, has, nbytes


def attention_dimensions(query: torch.Tensor) -> tuple[int, int, int, int]:
    """``(batch, heads, sequence, width)`` of a ``[batch, heads, sequence, width]`` query."""
    batch, heads, sequence, width = query.shape
    return batch, heads, sequence, width


def cudnn_forward(call: Call) -> None:
    """Seed and offset come before the results, row sums only if backward needs them (attention.cu,
    _scaled_dot_product_cudnn_attention_cuda)."""
    call.results(*(tensor for tensor in call.out if tensor.dim() == 0))
    call.results(call.out[0])
    if call.args[4]:  # compute_log_sumexp
        call.results()


def cudnn_backward(call: Call) -> None:
    """The workspace of cuDNN's graph (ATen/native/cudnn/MHA.cpp, run_cudnn_SDP_bprop)."""
    query, key = call.args[1:3]
    shared = (key.shape[2],) if key.shape[1] < query.shape[1] else ()
    call.results_and_temporaries(("cudnn_backward", (*attention_dimensions(query), *shared)))


def flash_forward(call: Call) -> None:
    """Partial results if keys are split (flash_api.cpp, set_params_splitkv), before seed and offset. For one query, as
    in decoding, query heads that share a key head become rows (flash_api.cpp, mha_fwd, seqlenq_ngroups_swapped). With
    dropout keys are not split, and seed and offset are allocated twice (mha_fwd)."""
    query, key = call.args[:2]
    dropout = call.args[3] if len(call.args) > 3 else 0.0
    batch, heads, rows, width = attention_dimensions(query)
    dimensions: tuple[int, ...] = (batch, heads, rows, width)
    if rows == 1:
        dimensions = (batch, key.shape[1], heads // key.shape[1], width, key.shape[2])
    elif rows != key.shape[2]:
        dimensions += (key.shape[2],)
    call.results(*call.out[:2])
    if dropout and has("flash_seeds_on_device"):
        seeds, unused = (next(tensor for tensor in call.out if nbytes(tensor) == size) for size in (16, 8))
        first = call.allocate(nbytes(seeds))
        call.results(unused)
        call.results()
        return call.free(first)
    names = () if dropout else ("flash_split_sums", "flash_split_outputs")
    partial = [call.allocate((name, dimensions)) for name in names]
    call.results()
    for buffer in partial:
        call.free(buffer)


def flash_backward(call: Call) -> None:
    """First copies of gradient and result in token order, if they are not (attention_backward.cu,
    _flash_attention_backward). Then accumulators, and dK and dV of all query heads if heads share keys (flash_api.cpp,
    mha_bwd)."""
    gradient, query, key, _, out, *_ = call.args
    copies = _as_tokens(call, gradient, out)
    dimensions = attention_dimensions(query)
    whole = key.numel() * key.element_size() * query.shape[1] // key.shape[1]
    expanded = () if query.shape[1] == key.shape[1] else (whole,) * 2
    call.results_and_temporaries(("flash_softmax_sum", dimensions), ("flash_dq_accumulator", dimensions), *expanded)
    call.release(copies)


def _as_tokens(call: Call, *tensors: torch.Tensor) -> list[int]:
    """Copies of the tensors that are not contiguous as ``[batch, tokens, heads, width]``."""
    return [call.allocate(nbytes(tensor)) for tensor in tensors if not tensor.transpose(1, 2).is_contiguous()]


def efficient_forward(call: Call) -> None:
    """Row sums, with rows rounded up; then a result in fp32 if a head is too wide for one block (mem_eff_attention/
    kernel_forward.h, kNeedsOutputAccumulatorBuffer). Seed and offset stay on the CPU (attention.cu,
    _efficient_attention_forward)."""
    out, sums, *seeds = call.out
    if has("efficient_seeds_on_device"):
        call.results(*seeds)
    call.results(out)
    if sums.numel():
        call.results(sums, size=("efficient_rows", attention_dimensions(call.args[0])))
    if out.shape[-1] > 128 and out.element_size() < 4:
        call.temporaries(4 * out.numel())


def padded_mask(call: Call) -> None:
    """The padded mask of memory-efficient attention (ATen/native/transformers/attention.cpp, pad_bias)."""
    mask, padding = call.args[:2]
    if mask.dtype.is_floating_point and mask.dim() == 4 and list(padding) == [0, -mask.shape[-1] % 8]:
        rows = mask.numel() // mask.shape[-1]
        call.results(call.out[0], size=("padded_mask", (rows, mask.shape[-1], mask.element_size())))
    call.results()


def efficient_backward(call: Call) -> None:
    """First a copy of the gradient in token order, if it is not. Then row sums, which fp32 computes in several steps,
    and the accumulators of gradients (attention_backward.cu, _efficient_attention_backward)."""
    query, dimensions = call.args[1], attention_dimensions(call.args[1])
    copies = _as_tokens(call, call.args[0])
    gradients, biases = call.out[:3], call.out[3:]
    call.results(*gradients)
    for bias in biases:
        length = bias.shape[-1]
        call.results(bias, size=("bias_gradient", (bias.numel() // length, length, bias.element_size())))
    key = call.args[2]
    expanded = [call.allocate(nbytes(key) * query.shape[1] // key.shape[1])
                for _ in range(2 * (query.shape[1] != key.shape[1]))]  # dK and dV of all query heads
    wide = query.element_size() == 4
    terms = [call.allocate(4 * query.numel()), call.allocate(("efficient_delta", dimensions))] if wide else []
    delta = call.allocate(("efficient_delta", dimensions))
    for buffer in reversed(terms):
        call.free(buffer)
    keys = call.args[2].shape[2]
    more = (query.element_size(), keys) if keys != query.shape[2] else (4,) if wide else ()
    accumulators = call.allocate(("efficient_backward", (*dimensions, *more)))
    call.free(delta)
    call.free(accumulators)
    call.release([*copies, *expanded])
