"""Allocations of image operators: pooling, resizing, padding and unfolding."""

from __future__ import annotations

from torch._prims_common import suggest_memory_format

from predictor.trace.operators.call import Call, copies, nbytes


def contiguous_input(call: Call) -> None:
    """A copy of the first argument (an input, or the gradient of a result) if it is not contiguous; channels-last
    counts as not contiguous (ATen/native/cuda/UpSampleBicubic2d.cu, ReflectionPad.cu and similar files)."""
    call.results_and_temporaries(*copies(call.args[0]))


def resized_smoothly(call: Call) -> None:
    """Resizing with antialiasing: if the input is not contiguous, it is copied, and the result is allocated a second
    time (ATen/native/cuda/UpSampleBilinear2d.cu, upsample_gen2d_aa_out_cuda_template)."""
    source, out = call.args[0], call.out[0]
    call.results_and_temporaries(*(() if source.is_contiguous() else (nbytes(out), nbytes(source))))


def pool_backward(call: Call) -> None:
    """A copy of the gradient if its memory format is not the input's (ATen/native/cuda/AveragePool2d.cu and
    DilatedMaxPool2d.cu)."""
    gradient, source = call.args[:2]
    as_source = gradient.is_contiguous(memory_format=suggest_memory_format(source))
    call.results_and_temporaries(*(() if as_source else (nbytes(gradient),)))


def adaptive_pool_backward(call: Call) -> None:
    """A copy of the gradient if it is not contiguous, unless the input is channels-last
    (ATen/native/cuda/AdaptiveAveragePooling.cu)."""
    call.results_and_temporaries(*(copies(call.args[0]) if call.args[1].is_contiguous() else ()))


def unfold(call: Call) -> None:
    """The result is allocated as large as the input, and then resized; a result that is no larger keeps the first
    storage (ATen/native/cuda/Im2Col.cu and Col2Im.cu)."""
    source, out = call.args[0], call.out[0]
    if nbytes(out) <= nbytes(source):
        call.results(out, size=nbytes(source))
        return call.temporaries(*copies(source))
    first = call.allocate(nbytes(source))
    call.results()
    call.free(first)
    call.temporaries(*copies(source))
