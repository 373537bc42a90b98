"""Allocations of indexing operators: indices, masks, embeddings, sorting and rolling."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from predictor.events.workspaces import INT64
from predictor.trace.operators.call import Call, copies, cub, cub_row, cuda, has, nbytes

FEW_ROWS = 10
"""Embedding backward adds up whole rows, not partial ones, if the embedding has at most this number of rows (such as
token types) of at most 4096 elements. Measured on an emulated GPU; with enough tokens it does so for up to 512 rows."""


def index(call: Call) -> None:
    """Copies of several indices if their strides differ (ATen/native/TensorAdvancedIndexing.cpp, AdvancedIndex)."""
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
    """An accumulating ``index_put`` sorts its indices: they are wrapped, linearised and sorted, and values are expanded
    to contiguous ones (ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel)."""
    target, indices, values, accumulate = call.args[:4]
    call.results()
    if not accumulate:
        return
    indexed = [axis for axis, tensor in enumerate(indices) if tensor is not None]
    count = math.prod(torch.broadcast_shapes(*(indices[axis].shape for axis in indexed)))
    apart = indexed != list(range(indexed[0], indexed[-1] + 1))  # then the indexed dimensions come first
    rest = [size for axis, size in enumerate(target.shape) if axis not in indexed and (apart or axis > indexed[-1])]
    slices = math.prod(rest)
    wrapped, linear = call.allocate(8 * count), call.allocate(8 * count)
    call.free(wrapped)
    for _ in indexed[1:]:
        call.temporaries(8 * count, 8 * count)
    items = count * target.numel() // math.prod(target.shape[axis] for axis in indexed)
    whole = () if values.numel() == items and values.is_contiguous() else (items * values.element_size(),)
    moved = (nbytes(target),) if apart else ()
    sort = cub("index_sort", count, target.numel() // slices)
    call.temporaries(*whole, *moved, 8 * count, 8 * count, 8 * count, sort)
    call.free(linear)


def masked_scatter(call: Call) -> None:
    """Prefix sums of the mask, the expanded mask, and CUB's scan (ATen/native/cuda/IndexKernel.cpp)."""
    source, mask = call.args[:2]
    items = source.numel()
    call.results()
    whole = () if mask.is_contiguous() and mask.numel() == items else (items,)
    call.temporaries(8 * items, *whole, cub_row("cub_scan", items))


def masked_scatter_backward(call: Call) -> None:
    """``masked_select``: the positions of the mask's true values, then what is at them (ATen/native/
    TensorAdvancedIndexing.cpp). The mask selects as many elements as the source had, as transformers makes sure."""
    _, mask = torch.broadcast_tensors(*call.args[:2])
    copied = [call.allocate(size) for size in copies(mask)]
    with _counted(call, mask):
        positions = call.allocate(INT64 * mask.dim() * call.out[0].numel())
    call.release(copied)
    call.results()
    call.free(positions)


def nonzero(call: Call) -> None:
    """A copy of an input that is not contiguous, then the positions."""
    source = call.args[0]
    copied = [call.allocate(size) for size in copies(source)]
    with _counted(call, source):
        call.results()
    call.release(copied)


@contextmanager
def _counted(call: Call, source: torch.Tensor) -> Iterator[None]:
    """Elements that are not zero are counted before, and selected after, the block that allocates their positions
    (ATen/native/cuda/Nonzero.cu, nonzero_cuda_out_impl)."""
    count = call.allocate(4)
    call.temporaries(("cub_sum", (source.numel(),)))
    yield
    call.temporaries(cub("cub_select", source.numel()))
    call.free(count)


def repeat_interleave(call: Call) -> None:
    """Prefix sums of the repeats, and a check that they are positive (ATen/native/Repeat.h, repeat_interleave_common).
    """
    repeats = call.args[0]
    sums = call.allocate(8 * repeats.numel())
    call.temporaries(cub_row("cub_scan", repeats.numel()))
    if call.kwargs.get("output_size") is None:
        call.temporaries(repeats.numel(), 1)
    call.results()
    call.free(sums)


def embedding_backward(call: Call) -> None:
    """A contiguous gradient, buffers to sort many tokens, and fp32 partial rows, or whole rows for an embedding of few
    rows (Embedding.cu, EmbeddingBackwardKernel.cu)."""
    gradient, indices, vocabulary = call.args[:3]
    tokens, width = indices.numel(), gradient.shape[-1]
    copy = None if gradient.is_contiguous() else call.allocate(nbytes(gradient))
    each = ("embedding_indices", (tokens,))
    ordered, original = call.allocate(each), call.allocate(each)
    bits = (cuda(), vocabulary) if has("embedding_sorts_few_bits") else ()
    call.temporaries(each, ("embedding_sort", (tokens, *bits)) if bits else cub("embedding_sort", tokens))
    call.results()
    segment, number = ("embedding_segments", (tokens, vocabulary)), ("embedding_number", (tokens,))
    offsets, count = call.allocate(each), call.allocate(number)
    call.temporaries(each, cub("embedding_unique", tokens))
    partials, starts = call.allocate(segment), call.allocate(segment)
    call.temporaries(cub("embedding_scan", tokens, vocabulary))
    parts = ("embedding_partials", (tokens, vocabulary, 2))
    if vocabulary > FEW_ROWS:
        call.temporaries(number, parts, ("embedding_partials", (tokens, vocabulary, width)))
    else:
        narrow = gradient.element_size() < 4
        call.temporaries(number, parts, parts, *((("embedding_rows", (tokens, vocabulary, width)),) if narrow else ()))
    for buffer in (starts, partials, count, offsets, original, ordered, *([] if copy is None else [copy])):
        call.free(buffer)


def roll(call: Call) -> None:
    """A copy of the input if it is not contiguous; several dimensions are rolled one after another (ATen/native/cuda/
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
    """For one row of int64: its positions in order, then CUB's buffers if it is long (ATen/native/cuda/Sort.cu,
    fillSliceWithIndex and launch_stable_sort_kernel)."""
    source = call.args[0]
    row = (source.numel(),) if source.dim() == 1 and source.dtype == torch.int64 else ()
    call.results_and_temporaries(*((8 * row[0], cub("row_sort", *row)) if row else ()))
