"""Calls of single operators, by name, that run both on a device and on the tracer's meta tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

aten = torch.ops.aten


@dataclass(frozen=True)
class Side:
    """What a device and the tracer do otherwise.

    Attributes:
        device: where tensors are.
        zeros: makes integers of 0, of a shape; the tracer knows their values.
        chosen: makes a call whose attention runs in a backend.
        rms_gradients: of a gradient, the input, the weight and what forward kept; the operator's name is the side's.
        gradients: as ``torch.autograd.grad``.
        known: inputs that were there before the call.
    """

    device: str = "meta"
    zeros: Callable[..., torch.Tensor] = lambda *shape: torch.empty(*shape, dtype=torch.int64, device="meta")
    chosen: Callable = lambda backend, call: call()
    rms_gradients: Callable | None = None
    gradients: Callable = torch.autograd.grad
    known: Callable[[list], list] = list


_side = Side()


def calls(side: Side) -> dict[str, Callable[[], object]]:
    """Every call by its name. Its tensors are made now, and it runs on this side until the next one is asked for."""
    global _side
    _side = side
    groups = (_of_embeddings_and_convolutions, _of_norms_and_indices, _of_reductions,
              _of_losses_and_layers, _of_pictures_and_gathers, _of_attention_and_products)
    return {name: call for group in groups for name, call in group().items()}


def recorded() -> dict[str, list[int]]:
    """What each call allocates and frees on the GPU, in order: bytes, negative where they are freed."""
    for dtype in (torch.float, torch.bfloat16):  # cuBLAS' workspace
        torch.bmm(*(torch.empty(2, 8, 8, dtype=dtype, device="cuda") for _ in range(2)))
    found = {}
    for name, call in calls(ON_DEVICE).items():
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.memory._record_memory_history(context=None)
        call()
        found[name] = [entry["size"] * (1 if entry["action"] == "alloc" else -1)
                       for entry in torch.cuda.memory._snapshot()["device_traces"][0]
                       if entry["action"] in ("alloc", "free_completed")]
    return found


def _zeros_on_device(*shape):
    return torch.zeros(*shape, dtype=torch.int64, device="cuda")


def _chosen_on_device(backend, call):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION if backend == "flash" else SDPBackend.MATH):
        return call()


def _rms_gradients_on_device(gradient, source, weight, sums):
    return aten._fused_rms_norm_backward(gradient, source, list(weight.shape), sums, weight, [True, True])


ON_DEVICE = Side("cuda", _zeros_on_device, _chosen_on_device, _rms_gradients_on_device)


def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device=_side.device)


def applied(function, source):
    return lambda: function(source)


def embedding(tokens, width=64, rows=32064):
    ids, gradient = _side.zeros(tokens), empty(tokens, width)
    return lambda: aten.embedding_dense_backward(gradient, ids, rows, -1, False)


def strided_embedding():
    ids, gradient = _side.zeros(729), empty(64, 729).t()
    return lambda: aten.embedding_dense_backward(gradient, ids, 729, -1, False)


def convolution(bias, channels_last=True):
    weight, images, gradient = empty(1152, 3, 14, 14), empty(4, 3, 378, 378), empty(4, 1152, 27, 27)
    if channels_last:
        gradient = empty(4, 27, 27, 1152).permute(0, 3, 1, 2)
    return lambda: aten.convolution_backward(gradient, images, weight, [1152] if bias else None, [14, 14], [0, 0],
                                             [1, 1], False, [0, 0], 1, [False, True, bias])


def masked_scatter_backward(*shape):
    mask, gradient = _side.zeros(*shape) == 0, empty(*shape[:-1], 64)
    return lambda: aten.masked_scatter_backward(gradient, mask, [gradient.numel()])


def in_layout(layout, *shape, dtype=torch.bfloat16):
    made = empty(*shape, dtype=dtype)
    if layout == "last":
        return made.contiguous(memory_format=torch.channels_last)
    return empty(*shape[:2], *(size + 2 for size in shape[2:]), dtype=dtype)[:, :, 1:-1, 1:-1] if layout == "cut" else made


def image_convolution(layouts, kind, dtype=torch.bfloat16, wanted=(True, True, True)):
    """Forward and backward, with input, weight and gradient each in a layout."""
    groups, channels, kernel, stride, side = {
        "dense": (1, 96, 2, 2, 14), "one wide": (1, 96, 1, 1, 28), "groups": (4, 96, 3, 1, 28),
        "a channel each": (64, 64, 3, 1, 28), "a channel each, 7 wide": (64, 64, 7, 1, 28)}[kind]
    source, weight = in_layout(layouts[0], 4, 64, 28, 28, dtype=dtype), in_layout(
        layouts[1], channels, 64 // groups, kernel, kernel, dtype=dtype)
    gradient = in_layout(layouts[2], 4, channels, side, side, dtype=dtype)
    settings = [stride] * 2, [kernel // 2 if stride == 1 else 0] * 2, [1, 1], False, [0, 0], groups

    def call():
        made = aten.convolution(source, weight, None, *settings)
        gradients = aten.convolution_backward(gradient, source, weight, [channels], *settings, list(wanted))
        layouts = [tensor.stride() for tensor in (made, *gradients) if tensor is not None and tensor.dim() > 1]
        del made, gradients
        for stride in layouts:  # what comes after looks at them
            empty(2 * stride[1], stride[-1], 64)
    return call


def line_convolution(transposed, groups):
    source = empty(4, 300, 64).transpose(1, 2) if transposed else empty(4, 64, 300)
    gradient, weight, settings = empty(4, 300, 64).transpose(1, 2), empty(64, 64 // groups, 3), ([1], [1], [1], False, [0])
    return lambda: [aten.convolution(source, weight, None, *settings, groups), aten.convolution_backward(
        gradient, source, weight, [64], *settings, groups, [True, True, True])]


def single(channels, layout):
    """Pictures of one pixel: their strides say no layout."""
    source = empty(4, 64, 1, 1).as_strided((4, 64, 1, 1), (64, 1, 64, 64) if layout == "last" else (64, 1, 1, 1))
    weight, gradient, settings = empty(channels, 64, 1, 1), empty(4, channels, 1, 1), ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    return lambda: [aten.convolution(source, weight, None, *settings), aten.convolution_backward(
        gradient, source, weight, [channels], *settings, [True, True, True])]


def rms_norm(source):
    weight = empty(source.shape[-1])
    return lambda: torch.nn.functional.rms_norm(source, weight.shape, weight, 1e-6)


def rms_norm_backward(source):
    weight, gradient, sums = empty(source.shape[-1]), empty(*source.shape), empty(*source.shape[:-1], 1, dtype=torch.float32)
    return lambda: _side.rms_gradients(gradient, source, weight, sums)


def with_gradient(function, *inputs, laid=lambda gradient: gradient):
    """Its results outlive the call: autograd's threads let go of theirs when they like."""
    inputs, held = _side.known([source.detach().requires_grad_() for source in inputs]), []

    def call():
        out = function(*inputs)
        held.append((out, _side.gradients(out, inputs, laid(empty(*out.shape, dtype=out.dtype)) if out.dim() else None)))
    return call


def of_a_sum(gradient):
    return empty(1).expand(gradient.shape)


def normal(function, source, *more, **options):
    """Over features or channels, with a weight and a bias."""
    weights = empty(source.shape[more[0]], dtype=source.dtype), empty(source.shape[more[0]], dtype=source.dtype)
    return with_gradient(lambda source, weight, bias: function(source, weight, bias), source, *weights, **options)


def last_layer_norm(source, weight, bias):
    return torch.nn.functional.layer_norm(source, weight.shape, weight, bias)


def batch_norm(source, weight, bias):
    return torch.nn.functional.batch_norm(source, None, None, weight, bias, training=True)


def index_put(target, indices, values, accumulate=True):
    indices = [None if shape is None else _side.zeros(*shape) for shape in indices]
    return lambda: aten._index_put_impl_(target.clone(), indices, values, accumulate, True)


def broadcast_attention():
    query, key, value = empty(2, 8, 300, 64), empty(2, 1, 300, 64), empty(2, 1, 300, 64)
    return lambda: functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def dropped():
    query, key, value = (empty(2, 8, 300, 64) for _ in range(3))
    return lambda: _side.chosen("flash", lambda: functional.scaled_dot_product_attention(query, key, value, dropout_p=0.1))


def attention(backend, causal, mask=None, groups=1, batch=2, length=300, keys=None):
    query = empty(batch, 8, length, 64)
    key, value = (empty(batch, 8 // groups, keys or length, 64) for _ in range(2))
    mask = None if mask is None else empty(batch, 1, length, length, dtype=mask)
    return lambda: _side.chosen(backend, lambda: functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, enable_gqa=groups > 1))


def efficient_backward(width, dtype=torch.float32):
    gradient, query, key, value, out = (empty(2, 300, 4, width, dtype=dtype).transpose(1, 2) for _ in range(5))
    sums, seed = empty(2, 4, 320, dtype=torch.float32), _side.zeros(1)
    return lambda: aten._scaled_dot_product_efficient_attention_backward(
        gradient, query, key, value, None, out, sums, seed, seed, 0.0, [True, True, True, False], True)


def grouped_product(rows, groups=9, columns=256, dtype=torch.bfloat16):
    source, weight, ends = empty(rows, 64, dtype=dtype), empty(groups, 64, columns, dtype=dtype), _side.zeros(groups).int()
    return lambda: torch._grouped_mm(source, weight, offs=ends)


def grouped_gradient(columns=256):
    left, right, ends = empty(900, 512).t(), empty(900, columns), _side.zeros(8).int()
    return lambda: torch._grouped_mm(left, right, offs=ends)


def sort(items):
    row = _side.zeros(items)
    return lambda: row.sort()


def product_of_4_bits(bias=False, nested=False, contiguous=True, rows=1000):
    import bitsandbytes  # noqa: F401 (registers its operators)
    source, weight = empty(2, rows, 128), empty(256 * 64, 1, dtype=torch.uint8)
    source = source if contiguous else empty(2, 1001, 128)[:, 1:]
    maxima, code, mean = empty(512, dtype=torch.uint8), empty(256, dtype=torch.float32), empty((), dtype=torch.float32)
    largest = empty(2 if nested else 512, dtype=torch.float32)
    return lambda: torch.ops.bitsandbytes.gemm_4bit.default(
        source, weight, [256, 128], largest, 64, "nf4", empty(256) if bias else None,
        *((maxima, code, mean) if nested else ()))


def rows_of_8_bits(rows, columns, threshold=6.0):
    import bitsandbytes  # noqa: F401 (registers its operators)
    source = empty(rows, columns, dtype=torch.float16)
    return lambda: torch.ops.bitsandbytes.int8_vectorwise_quant.default(source, threshold=threshold)


def product_of_8_bits(dtype=torch.bfloat16, outliers=True):
    import bitsandbytes  # noqa: F401 (registers its operators)
    source, rows, weight = empty(500, 128, dtype=dtype), empty(500, 128, dtype=torch.int8), empty(64, 128, dtype=torch.int8)
    maxima, scales = (empty(size, dtype=torch.float32) for size in (500, 64))
    if outliers:
        return lambda: torch.ops.bitsandbytes.int8_mixed_scaled_mm.default(
            source, rows, weight, maxima, scales, empty(0, dtype=torch.int64), None)
    return lambda: torch.ops.bitsandbytes.int8_scaled_mm.default(rows, weight, maxima, scales, bias=None, dtype=dtype)


def _of_embeddings_and_convolutions():
    return {
        **{f"embedding backward, {n} tokens": embedding(n) for n in (3072, 3073, 4097, 20000)},
        "embedding backward, strided": strided_embedding(),
        "convolution backward": convolution(False),
        "convolution backward, bias": convolution(True),
        "convolution backward, contiguous": convolution(False, channels_last=False),
        **{f"convolution, {kind}, {', '.join(layouts)}": image_convolution(layouts, kind)
           for kind in ("dense", "one wide", "groups", "a channel each")
           for layouts in (("", "", "last"), ("", "last", ""), ("last", "", ""), ("last", "last", "last"),
                           ("cut", "", "cut"))},
        "convolution, input alone": image_convolution(("cut", "", "cut"), "dense", wanted=(True, False, False)),
        "convolution, weight alone": image_convolution(("cut", "", "cut"), "dense", wanted=(False, True, False)),
        **{f"convolution in fp16, {kind}": image_convolution(("", "", "last"), kind, torch.float16)
           for kind in ("a channel each", "a channel each, 7 wide")},
        **{f"convolution of a line{', transposed' * transposed}, {groups} groups": line_convolution(transposed, groups)
           for transposed in (False, True) for groups in (1, 64)},
        **{f"convolution of a pixel{layout and ', ' + layout}": single(96, layout) for layout in ("", "last")},
    }


def _of_norms_and_indices():
    return {
        "rms norm": rms_norm(empty(4, 1000, 64)),
        "rms norm, strided": rms_norm(empty(4, 64, 1000).transpose(1, 2)),
        "rms norm backward": rms_norm_backward(empty(4, 1000, 64)),
        "rms norm backward of many rows": rms_norm_backward(empty(100352, 96)),
        "rms norm backward, strided": rms_norm_backward(empty(4, 64, 1000).transpose(1, 2)),
        "roll": applied(lambda pictures: pictures.roll((3, 3), (1, 2)), empty(2, 56, 56, 96)),
        "roll of one dimension": applied(lambda pictures: pictures.roll(3, 1), empty(2, 56, 56, 96)),
        "roll, strided": applied(lambda pictures: pictures.roll((3, 3), (2, 3)), empty(2, 56, 56, 96).permute(0, 3, 1, 2)),
        "index_put, strided values": index_put(empty(169, 24), [(2401,)], empty(24, 2401).t()),
        "index_put, two indices": index_put(empty(100, 50, 24), [(30, 1), (1, 40)], empty(30, 40, 24)),
        "index_put, second dimension": index_put(empty(100, 50, 24), [None, (40,)], empty(100, 40, 24)),
        "index_put, one value": index_put(empty(100, 50, 24), [(30,)], empty(24)),
        "index_put, dimensions apart": index_put(empty(100, 50, 24), [(30,), None, (30,)], empty(30, 50)),
        "index_put, no sums": index_put(empty(100, 50, 24), [(30,)], empty(30, 50, 24), accumulate=False),
        "cumsum of a row": applied(lambda ids: ids.cumsum(-1), _side.zeros(1, 9000)),
        "cumsum of rows": applied(lambda ids: ids.cumsum(-1), _side.zeros(2, 9000)),
        "cumsum of a row of flags": applied(lambda row: row.cumsum(-1), empty(1, 9000, dtype=torch.bool)),
    }


def _of_reductions():
    million, last = empty(1000, 1000), in_layout("last", 4, 32, 56, 56)
    rows, flags = empty(5000, 64), empty(5000, 64, dtype=torch.bool)
    return {
        "masked_scatter": lambda: rows.masked_scatter(flags, rows),
        **{f"masked_scatter backward{name}": masked_scatter_backward(*shape) for name, shape in {
            "": (5000, 64), ", three dimensions": (2, 300, 64), ", a value for each token": (2, 300, 1)}.items()},
        "sum of columns": lambda: rows.sum(0),
        "sum of all": lambda: rows.sum(),
        "sum of long rows": lambda: empty(2, 1_000_000).sum(-1),
        "sum of all but a middle dimension": lambda: empty(16, 64, 128, 128).sum((0, 2, 3)),
        "sum of every second column": lambda: empty(50_000, 192)[:, ::2].sum(0),
        **{f"{name} of {of}": (lambda function=function, source=source: function(source))
           for name, function in (
               ("mean", lambda source: source.mean((0, 1) if source.dim() < 3 else (2, 3))),
               ("variance", torch.var), ("norm", torch.linalg.vector_norm), ("largest", torch.amax), ("max", torch.max),
               ("position of the largest", torch.argmax), ("whether all are true", lambda source: (source > 0).all()),
               ("infinities", lambda source: source.isinf().any()), ("log sum exp", lambda source: source.logsumexp(0)))
           for of, source in (("all", million), ("channels last", last))},
    }


def _of_losses_and_layers():
    million, pictures, last = empty(1000, 1000), empty(4, 32, 56, 56), in_layout("last", 4, 32, 56, 56)
    return {
        **{f"{name} loss": with_gradient(lambda source, function=function: function(source, million), empty(1000, 1000))
           for name, function in (("squared", functional.mse_loss), ("smooth", functional.smooth_l1_loss),
                                  ("Huber", functional.huber_loss), ("binary", functional.binary_cross_entropy))},
        "logarithm of a sigmoid": with_gradient(functional.logsigmoid, empty(500, 64)),
        "layer norm of many rows": normal(last_layer_norm, empty(8, 12544, 96), -1),
        "layer norm, strided": normal(last_layer_norm, empty(4, 64, 1000).transpose(1, 2), -1),
        **{f"group norm{', no weight' * (not weight)}": (normal(
            lambda source, *weights: functional.group_norm(source, 8, *weights), empty(4, 32, 28, 28), 1) if weight else
            with_gradient(lambda source: functional.group_norm(source, 8), empty(4, 32, 28, 28)))
           for weight in (True, False)},
        **{f"batch norm, {name}": normal(batch_norm, source, 1, laid=laid) for name, source, laid in (
            ("contiguous", pictures, torch.Tensor.contiguous), ("cut", in_layout("cut", 4, 32, 56, 56), torch.clone),
            ("channels last", last, lambda gradient: gradient.contiguous(memory_format=torch.channels_last)),
            ("rows", empty(9000, 64), torch.clone), ("fp32", empty(4, 32, 56, 56, dtype=torch.float32), torch.clone))},
        **{f"{name} of what is not contiguous": with_gradient(
            lambda source, function=function: function(source, -1), empty(4, 64, 300).transpose(1, 2),
            laid=lambda gradient: empty(*gradient.shape[:-2], *gradient.shape[:-3:-1]).transpose(1, 2))
           for name, function in (("softmax", functional.softmax), ("log softmax", functional.log_softmax),
                                  ("cumsum", torch.cumsum))},
        "log softmax from fp16 to fp32": with_gradient(lambda source: functional.log_softmax(
            source, -1, dtype=torch.float32), empty(500, 64, dtype=torch.float16)),
        **{f"embedding backward, {rows} rows": embedding(5000, 768, rows) for rows in (2, 10)},
        "one hot": applied(lambda ids: functional.one_hot(ids, 64), _side.zeros(300)),
    }


def _of_pictures_and_gathers():
    wide, columns, places = empty(4, 1152, 729).transpose(1, 2), _side.zeros(500, 1), _side.zeros(40)
    return {
        **{f"{name} of a picture, gradient channels last": with_gradient(
            function, empty(4, 32, 28, 28), laid=lambda gradient: gradient.contiguous(memory_format=torch.channels_last))
           for name, function in (
               ("average", lambda source: functional.avg_pool2d(source, 4)),
               ("largest", lambda source: functional.max_pool2d(source, 2)),
               ("size", lambda source: functional.interpolate(source, size=(14, 20), mode="bicubic")),
               ("grid", lambda source: functional.adaptive_avg_pool2d(source, 7)),
               ("padding", lambda source: functional.pad(source, (1, 1, 1, 1), "reflect")))},
        "antialiased size, channels last": with_gradient(lambda source: functional.interpolate(
            source, size=(14, 14), mode="bilinear", antialias=True), in_layout("last", 4, 32, 28, 28)),
        "patches by unfold": with_gradient(lambda source: functional.unfold(source, 4, stride=4), empty(4, 3, 56, 56)),
        "patches by unfold, overlapping": with_gradient(lambda source: functional.unfold(source, 3), empty(4, 3, 56, 56)),
        "product, gradient of a sum": with_gradient(torch.matmul, empty(300, 64), empty(64, 40), laid=of_a_sum),
        "gather": with_gradient(lambda source: source.gather(1, columns), empty(500, 64)),
        "index_select": with_gradient(lambda source: source.index_select(1, places), empty(4, 300, 64)),
        "sum, channels last": lambda: wide.sum((0, 1)),
    }


def _of_attention_and_products():
    return {
        "flash attention, keys split": attention("flash", True, batch=1, length=577),
        "flash attention with dropout": dropped(),
        "flash attention of more keys": attention("flash", False, length=300, keys=2000),
        "flash attention": attention("flash", True, batch=32, length=577),
        **{f"efficient attention backward in fp32, {width} wide": efficient_backward(width) for width in (64, 80, 256)},
        "efficient attention backward": efficient_backward(128, torch.bfloat16),
        "grouped product": grouped_product(1170),
        "grouped product of few rows": grouped_product(1160),
        "grouped product of few columns": grouped_product(9000, columns=128),
        "grouped product in fp16": grouped_product(1170, dtype=torch.float16),
        "grouped product of a weight's gradient": grouped_gradient(),
        **{f"sort of {n}": sort(n) for n in (800, 4096, 4097, 100_000)},
        "product of 4-bit weights": product_of_4_bits(),
        "product of 4-bit weights, bias": product_of_4_bits(bias=True),
        "product of 4-bit weights, maxima of 8 bits": product_of_4_bits(nested=True),
        "product of 4-bit weights, strided": product_of_4_bits(bias=True, contiguous=False),
        **{f"product of 4-bit weights, {2 * rows} rows": product_of_4_bits(nested=True, rows=rows) for rows in (2, 15, 60)},
        **{f"rows of 8 bits, {rows} of {columns}": rows_of_8_bits(rows, columns)
           for rows, columns in ((1, 4096), (1, 4098), (8, 4096), (577, 1024), (4001, 14336))},
        "rows of 8 bits, no threshold": rows_of_8_bits(8, 4096, 0.0),
        "product of 8 bits": product_of_8_bits(),
        "product of 8 bits in fp16": product_of_8_bits(torch.float16),
        "product of 8 bits, no threshold": product_of_8_bits(outliers=False),
        "attention of one key head": broadcast_attention(),
        "math attention, causal": attention("math", True, groups=4),
        "math attention, masked": attention("math", False, torch.bfloat16, groups=4),
        "math attention, boolean mask": attention("math", False, torch.bool, groups=4),
    }
