"""Large random weights of a dry run are mostly zeros. Drawing billions of them would take minutes and gigabytes of the
host's memory, and no kernel on the emulated GPU reads them.

Afterwards the random generator is in the state that it would have had, so that all else is as random as it was: the
order of the samples, for example.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable
from typing import Any

import torch

from calibrate.dryrun.hooks import mersenne_twister

LEAST = 1 << 20
"""Elements of the smallest parameter that is not drawn in full."""
DRAWN = 1 << 10
"""Elements that are drawn; so no two weights are equal by chance."""
VECTOR = 16
"""``normal_`` draws one word for each element if their number is a multiple of this (torch 2.11,
ATen/native/cpu/DistributionTemplates.h, ``normal_fill``); ``uniform_`` always does."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""Types of which an element takes one word of the generator."""

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None)


def start() -> None:
    """From now on, ``normal_`` and ``uniform_`` of a parameter on the CPU draw only its first elements.

    So does ``torch.nn.init.trunc_normal_``, which a model may call before a tensor becomes a parameter.
    """
    for name in ("normal_", "uniform_"):
        setattr(torch.nn.Parameter, name, _mostly_zeros(getattr(torch.Tensor, name)))
    torch.nn.init._no_grad_trunc_normal_ = torch.no_grad()(
        _mostly_zeros(torch.nn.init._no_grad_trunc_normal_, (torch.Tensor, torch.nn.Parameter)))


def _mostly_zeros(fill: Callable[..., torch.Tensor], types: tuple[type, ...] = (torch.nn.Parameter,)
                  ) -> Callable[..., torch.Tensor]:
    """``fill``, which draws one word for each element, of the first elements only of large tensors of these types."""
    @functools.wraps(fill)
    def filled(parameter: torch.nn.Parameter, *arguments: Any, generator: torch.Generator | None = None,
               **keywords: Any) -> torch.Tensor:
        if torch.compiler.is_compiling() or type(parameter) not in types or not _is_skipped(parameter):
            return fill(parameter, *arguments, generator=generator, **keywords)
        elements = parameter.detach().view(-1)
        fill(elements[:DRAWN], *arguments, generator=generator, **keywords)
        _zero(elements[DRAWN:])
        mersenne_twister.skip(generator or torch.default_generator, len(elements) - DRAWN)
        return parameter

    return filled


def _zero(elements: torch.Tensor) -> None:
    """Sets elements to zero. Whole pages are given back: the kernel reads them as zeros, and they take no memory."""
    start, end = elements.data_ptr(), elements.data_ptr() + elements.nbytes
    first, last = -(-start // PAGE) * PAGE, end // PAGE * PAGE
    if not elements.is_shared() and LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first),
                                                 mmap.MADV_DONTNEED) == 0:
        size = elements.element_size()
        elements[:(first - start) // size].zero_()
        elements[(last - start) // size:].zero_()
    else:
        elements.zero_()


def _is_skipped(parameter: torch.nn.Parameter) -> bool:
    return (parameter.is_cpu and parameter.is_contiguous()
            and parameter.dtype in DTYPES and parameter.numel() >= LEAST and parameter.numel() % VECTOR == 0
            and not (parameter.requires_grad and torch.is_grad_enabled()))  # an error of PyTorch's
