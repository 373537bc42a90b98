"""Reading and writing at indices, masks and embeddings."""

from __future__ import annotations

import math

import torch

from predictor.trace.operators.call import Call, nbytes

FEW_ROWS = 10
"""Up to so many rows, as of token types, are added up in place of parts of them, if they are no wider than 4096: read
off an emulated GPU, where up to 512 are with enough tokens."""


def index(call: Call) -> None:
    """Copies of several indices with unlike strides (ATen/native/TensorAdvancedIndexing.cpp, AdvancedIndex)."""
    indices = [tensor for tensor in call.args[1] if tensor is not None]
    copies = []
    if len(indices) > 1 and all(tensor.dtype == torch.int64 for tensor in indices):
        wide = torch.broadcast_tensors(*indices)
        if len({tensor.stride() for tensor in wide}) > 1:
            copies = [call.allocate(8 * tensor.numel()) for tensor in wide if not tensor.is_contiguous()]
    call.results()
    for copy in reversed(copies):
        call.free(copy)


def index_put(call: Call) -> None:
    """Sums into rows are made in their order: indices are wrapped, made linear and sorted, values made whole
    (ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel)."""
    target, indices, values, accumulate = call.args[:4]
    call.results()
    if not accumulate:
        return
    found = [axis for axis, tensor in enumerate(indices) if tensor is not None]
    count = math.prod(torch.broadcast_shapes(*(indices[axis].shape for axis in found)))
    apart = found != list(range(found[0], found[-1] + 1))  # then the indexed dimensions come first
    rest = [size for axis, size in enumerate(target.shape) if axis not in found and (apart or axis > found[-1])]
    slices = math.prod(rest)
    wrapped, linear = call.allocate(8 * count), call.allocate(8 * count)
    call.free(wrapped)
    for _ in found[1:]:
        call.through(8 * count, 8 * count)
    items = count * target.numel() // math.prod(target.shape[axis] for axis in found)
    whole = () if values.numel() == items and values.is_contiguous() else (items * values.element_size(),)
    moved = (nbytes(target),) if apart else ()
    call.through(*whole, *moved, 8 * count, 8 * count, 8 * count, ("index_sort", (count, target.numel() // slices)))
    call.free(linear)


def masked_scatter(call: Call) -> None:
    """Prefix sums of the mask, the mask made whole, CUB's scan (ATen/native/cuda/IndexKernel.cpp)."""
    source, mask = call.args[:2]
    items = source.numel()
    call.results()
    whole = () if mask.is_contiguous() and mask.numel() == items else (items,)
    call.through(8 * items, *whole, ("cub_scan", (items,)))


def masked_scatter_backward(call: Call) -> None:
    """``masked_select``, then a copy with the rest filled up (ATen/native/TensorAdvancedIndexing.cpp)."""
    gradient = call.args[0]
    mask = call.allocate(gradient.numel())
    count = call.allocate(4)
    call.through(("cub_count", ()))
    call.through(("cub_select", (gradient.numel(),)))
    call.free(count)
    call.free(mask)
    selected = call.allocate(nbytes(call.out[0]))
    call.results()
    call.free(selected)


def nonzero(call: Call) -> None:
    """They are counted, then selected (ATen/native/cuda/Nonzero.cu, nonzero_cuda_out_impl)."""
    items = (call.args[0].numel(),)
    count = call.allocate(4)
    call.through(("cub_sum", items))
    call.around(("cub_select", items))
    call.free(count)


def repeat_interleave(call: Call) -> None:
    """Prefix sums of the repeats, and whether all are positive (ATen/native/Repeat.h, repeat_interleave_common)."""
    repeats = call.args[0]
    sums = call.allocate(8 * repeats.numel())
    call.through(("cub_scan", (repeats.numel(),)))
    if call.kwargs.get("output_size") is None:
        call.through(repeats.numel(), 1)
    call.results()
    call.free(sums)


def embedding_backward(call: Call) -> None:
    """A gradient made contiguous, sorting of many tokens, fp32 partial rows, or whole ones of a few (Embedding.cu,
    EmbeddingBackwardKernel.cu)."""
    gradient, indices, vocabulary = call.args[:3]
    tokens, width = indices.numel(), gradient.shape[-1]
    copy = None if gradient.is_contiguous() else call.allocate(nbytes(gradient))
    each = ("embedding_indices", (tokens,))
    ordered, original = call.allocate(each), call.allocate(each)
    call.through(each, ("embedding_sort", (tokens,)))
    call.results()
    segment, number = ("embedding_segments", (tokens, vocabulary)), ("embedding_number", (tokens,))
    offsets, count = call.allocate(each), call.allocate(number)
    call.through(each, ("embedding_unique", (tokens,)))
    partials, starts = call.allocate(segment), call.allocate(segment)
    call.through(("embedding_scan", (tokens, vocabulary)))
    parts = ("embedding_partials", (tokens, vocabulary, 2))
    if vocabulary > FEW_ROWS:
        call.through(number, parts, ("embedding_partials", (tokens, vocabulary, width)))
    else:
        narrow = gradient.element_size() < 4
        call.through(number, parts, parts, *((("embedding_rows", (tokens, vocabulary, width)),) if narrow else ()))
    for buffer in (starts, partials, count, offsets, original, ordered, *([] if copy is None else [copy])):
        call.free(buffer)


def roll(call: Call) -> None:
    """A copy of an input that is not contiguous; one dimension after the other (ATen/native/cuda/
    TensorTransformations.cu, roll_cuda; ATen/native/TensorTransformations.h, roll_common)."""
    source, shifts = call.args[:2]
    last = None
    if not source.is_contiguous():
        last = call.allocate(nbytes(source))
    for _ in shifts[1:]:
        last, before = call.allocate(nbytes(source)), last
        if before is not None:
            call.free(before)
    call.results()
    if last is not None:
        call.free(last)


def sort(call: Call) -> None:
    """Of one row: its positions in order, then, if it is long, CUB's buffers (ATen/native/cuda/Sort.cu,
    fillSliceWithIndex and launch_stable_sort_kernel)."""
    source = call.args[0]
    row = (source.numel(),) if source.dim() == 1 and source.dtype == torch.int64 else ()
    call.around(*((8 * row[0], ("row_sort", row)) if row else ()))
