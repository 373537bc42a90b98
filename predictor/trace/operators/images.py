"""Pooling, resizing, padding and taking apart of pictures."""

from __future__ import annotations

from torch._prims_common import suggest_memory_format

from predictor.trace.operators.call import Call, copies, nbytes


def in_order(call: Call) -> None:
    """A copy of what is not contiguous, if only for channels last: an input, or the gradient of a result (ATen/native/
    cuda/UpSampleBicubic2d.cu, ReflectionPad.cu and their like)."""
    call.around(*copies(call.args[0]))


def resized_smoothly(call: Call) -> None:
    """With antialiasing, what is not contiguous is copied, and the result made once more (ATen/native/cuda/
    UpSampleBilinear2d.cu, upsample_gen2d_aa_out_cuda_template)."""
    source, out = call.args[0], call.out[0]
    call.around(*(() if source.is_contiguous() else (nbytes(out), nbytes(source))))


def pool_backward(call: Call) -> None:
    """A copy of a gradient that does not lie as the input does (ATen/native/cuda/AveragePool2d.cu and
    DilatedMaxPool2d.cu)."""
    gradient, source = call.args[:2]
    as_source = gradient.is_contiguous(memory_format=suggest_memory_format(source))
    call.around(*(() if as_source else (nbytes(gradient),)))


def adaptive_pool_backward(call: Call) -> None:
    """A copy of a gradient that is not contiguous, unless the input lies channels last
    (ATen/native/cuda/AdaptiveAveragePooling.cu)."""
    call.around(*(copies(call.args[0]) if call.args[1].is_contiguous() else ()))


def unfold(call: Call) -> None:
    """The result is made as large as the input, and resized: it keeps what it has if that is enough
    (ATen/native/cuda/Im2Col.cu and Col2Im.cu)."""
    source, out = call.args[0], call.out[0]
    if nbytes(out) <= nbytes(source):
        call.results(out, size=nbytes(source))
        return call.through(*copies(source))
    first = call.allocate(nbytes(source))
    call.results()
    call.free(first)
    call.through(*copies(source))
