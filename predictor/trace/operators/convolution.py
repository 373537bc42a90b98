"""Allocations of convolutions: copies into the memory format of the library that computes them.

Sources in PyTorch 2.11: ATen/native/Convolution.cpp (choice of the library: select_conv_backend, use_cudnn_depthwise),
ATen/native/ConvUtils.h (cudnn_conv_suggest_memory_format), ATen/native/cudnn/ConvShared.cpp and
ATen/native/cuda/DepthwiseConv2d.cu. The workspace of cuDNN's heuristics is not modelled: it depends on the version of
cuDNN, and the emulated cuDNN requests none.
"""

from __future__ import annotations

import torch
from torch._prims_common import suggest_memory_format

from predictor.trace.operators.call import Call, nbytes
from predictor.trace.operators.reductions import partial_sums

CONTIGUOUS = torch.contiguous_format


def forward(call: Call) -> None:
    """Copies of the input, and with cuDNN of the weight, if they have another memory format."""
    source, weight, *_, dilation, transposed, _, groups = call.args
    held: list[int] = []
    if source.dim() == 3:
        _copy_into(call, source, CONTIGUOUS, held)
        source, weight = _as_2d(source.contiguous()), _as_2d(weight)
    native = _is_native(source, weight, call.args[3], dilation, transposed, groups)
    layout = CONTIGUOUS if native else _layout(source, weight)
    _copy_into(call, source, layout, held)
    call.results()
    if not native:
        _copy_into(call, weight, layout, held)
    call.release(held)


def backward(call: Call) -> None:
    """Copies of input, gradient and weight if they have another memory format; the bias's gradient is a sum."""
    gradient, source, _, _, *_, output_mask = call.args
    gradients = iter(call.out)
    of_source, of_weight, of_bias = (next(gradients) if is_wanted else None for is_wanted in output_mask)
    held: list[int] = []
    if source.dim() == 3:
        _copy_into(call, source, CONTIGUOUS, held)
    (_native if _backward_is_native(call.args) else _cudnn)(call, of_source, of_weight)
    if of_bias is not None:
        call.results(of_bias)
        partial_sums(call, gradient, (0, *range(2, gradient.dim())), of_bias)
    call.release(held)


def _native(call: Call, of_source, of_weight) -> None:
    """PyTorch's own kernel computes the weight's gradient first (conv_depthwise2d_backward_cuda)."""
    gradient, source = (_as_2d(tensor) for tensor in call.args[:2])
    held: list[int] = []
    _copy_into(call, gradient, CONTIGUOUS, held)
    if of_weight is not None:
        inner: list[int] = []
        if call.args[1].dim() > 3:  # a one-dimensional convolution's input is contiguous already
            _copy_into(call, source, CONTIGUOUS, inner)
        call.results(of_weight)
        call.release(inner)
    if of_source is not None:
        call.results(of_source)
    call.release(held)


def _cudnn(call: Call, of_source, of_weight) -> None:
    """cudnn_convolution_backward: the output's gradient gets the input's memory format; each computed gradient gets the
    format of the tensors that it is computed from."""
    source, gradient, weight = _as_cudnn_takes_them(call.args)
    held: list[int] = []
    if source is not call.args[1] and call.args[1].dim() > 3:
        held.append(call.allocate(nbytes(source)))
    if gradient.stride() != _as_2d(call.args[0]).stride():
        held.append(call.allocate(nbytes(gradient)))
    if of_source is not None:
        inner: list[int] = []
        layout = _layout(gradient, weight)
        call.results(of_source)
        _copy_into(call, weight, layout, inner)
        _copy_into(call, gradient, layout, inner)
        call.release(inner)
    if of_weight is not None:
        inner = []
        layout = _layout(source, gradient)
        _copy_into(call, gradient, layout, inner)
        _copy_into(call, source, layout, inner)
        call.results(of_weight)
        call.release(inner)
    call.release(held)


def results(args, out: torch.Tensor) -> torch.Tensor:
    """A convolution's result in CUDA's memory format; meta tensors only use the input's format."""
    source, weight, _, stride, _, dilation, transposed, _, groups = args
    if source.dim() == 3 or _is_native(source, weight, stride, dilation, transposed, groups):
        return _with_layout(out, CONTIGUOUS)
    return _with_layout(out, _layout(source, weight))


def backward_results(args, out):
    """Gives the gradients of a convolution's input and weight the memory format that they have on a GPU.

    On the meta device, PyTorch gives them the format of the output's gradient.
    """
    of_source, of_weight, of_bias = out
    layouts = CONTIGUOUS, CONTIGUOUS
    if args[1].dim() > 3 and not _backward_is_native(args):
        source, gradient, weight = _as_cudnn_takes_them(args)
        layouts = _layout(gradient, weight), _layout(source, gradient)
    return _with_layout(of_source, layouts[0]), _with_layout(of_weight, layouts[1]), of_bias


def _backward_is_native(args) -> bool:
    _, source, weight, _, stride, _, dilation, transposed, _, groups, _ = args
    source = source if source.dim() > 3 else source.contiguous()
    return _is_native(_as_2d(source), _as_2d(weight), stride, dilation, transposed, groups)


def _is_native(source, weight, stride, dilation, transposed: bool, groups: int) -> bool:
    """Whether PyTorch's own depthwise kernel computes a convolution: one group per channel, contiguous tensors
    (use_cudnn_depthwise)."""
    if transposed or source.dim() != 4 or not 1 < groups == source.shape[1] or weight.shape[0] % groups:
        return False
    if _layout(source, weight) != CONTIGUOUS:
        return False
    stride = (1, *stride) if len(stride) == 1 else tuple(stride)
    square = stride[0] == stride[1] or source.shape[2] == 1
    cudnn = (source.dtype == weight.dtype == torch.float16 and set(dilation) == {1} and square and groups >= 32
             and _is_fast_with_cudnn(source, stride[1], weight))
    return not cudnn


def _is_fast_with_cudnn(source, stride: int, weight) -> bool:
    """ATen/native/Convolution.cpp, check_cudnn_depthwise_workload_with_filter."""
    batch, channels, height, width = source.shape
    size = weight.shape[3]
    if height == 1 and stride == 1:
        return True
    if weight.shape[2] != size or size not in (1, 3, 5) or width < 7 or stride not in (1, 2):
        return False
    if stride == 1:
        return True
    if size == 1:
        return width <= 28 if batch == 1 else batch <= 16 and channels >= 128 and width <= 7
    return batch == 1 or channels >= 512 or (channels >= 256 and width >= 28)


def _as_cudnn_takes_them(args) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Input, gradient and weight of a backward, after the first copies into cuDNN's memory format."""
    gradient, source, weight = args[:3]
    if source.dim() == 3:
        gradient, source, weight = _as_2d(gradient), _as_2d(source.contiguous()), _as_2d(weight)
    if args[-1][1]:
        source = source.contiguous(memory_format=_layout(source, weight))
    layout = suggest_memory_format(source)
    return source, gradient if suggest_memory_format(gradient) == layout else _empty_in(gradient, layout), weight


def _layout(first: torch.Tensor, second: torch.Tensor) -> torch.memory_format:
    """Channels last if either tensor is (cudnn_conv_suggest_memory_format)."""
    return next((layout for layout in map(suggest_memory_format, (first, second)) if layout != CONTIGUOUS), CONTIGUOUS)


def _as_2d(tensor: torch.Tensor) -> torch.Tensor:
    """A one-dimensional convolution's tensor with a second dimension of size 1 (view4d)."""
    return tensor.unsqueeze(2) if tensor.dim() == 3 else tensor


def _empty_in(tensor: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=layout)


def _with_layout(tensor, layout: torch.memory_format):
    """The tensor itself if it has the memory format, else a new one; strides of dimensions of size 1 count too."""
    if tensor is None or (tensor.is_contiguous(memory_format=layout) and suggest_memory_format(tensor) == layout):
        return tensor
    return _empty_in(tensor, layout) if tensor.dim() > 3 else _empty_in(tensor, CONTIGUOUS)


def _copy_into(call: Call, tensor: torch.Tensor, layout: torch.memory_format, held: list[int]) -> None:
    if not tensor.is_contiguous(memory_format=layout):
        held.append(call.allocate(nbytes(tensor)))
