"""Large random weights of a dry run are mostly zeros. Drawing billions of them would take minutes, and no kernel on the
emulated GPU reads them.

Afterwards the random generator is in the state that it would have had, so that all else is as random as it was: the
order of the samples, for example.
"""

from __future__ import annotations

import functools
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


def start() -> None:
    """From now on, ``normal_`` and ``uniform_`` of a parameter on the CPU draw only its first elements."""
    for name in ("normal_", "uniform_"):
        setattr(torch.nn.Parameter, name, _mostly_zeros(getattr(torch.Tensor, name)))


def _mostly_zeros(fill: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(fill)
    def filled(parameter: torch.nn.Parameter, *arguments: Any, generator: torch.Generator | None = None,
               **keywords: Any) -> torch.Tensor:
        if torch.compiler.is_compiling() or not _is_skipped(parameter):
            return fill(parameter, *arguments, generator=generator, **keywords)
        elements = parameter.detach().view(-1)
        fill(elements[:DRAWN], *arguments, generator=generator, **keywords)
        elements[DRAWN:].zero_()
        mersenne_twister.skip(generator or torch.default_generator, len(elements) - DRAWN)
        return parameter

    return filled


def _is_skipped(parameter: torch.nn.Parameter) -> bool:
    return (type(parameter) is torch.nn.Parameter and parameter.is_cpu and parameter.is_contiguous()
            and parameter.dtype in DTYPES and parameter.numel() >= LEAST and parameter.numel() % VECTOR == 0
            and not (parameter.requires_grad and torch.is_grad_enabled()))  # an error of PyTorch's
