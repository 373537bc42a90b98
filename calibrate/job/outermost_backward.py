"""Callbacks at the begin and the end of each outermost backward of a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def follow(begins: Callable[[], None], ends: Callable[[], None],
           nested: Callable[[int], None] = lambda depth: None) -> Callable[[], None]:
    """Calls ``begins`` and ``ends`` around each outermost backward. Returns a function that restores PyTorch.

    ``nested`` is called with the number of running backwards, one inside the other, whenever it changes.

    ``Tensor.backward`` and ``autograd.backward`` both call the replaced function (torch 2.11, autograd/graph.py). The
    backward of a checkpoint's recomputation runs inside another one and does not count.
    """
    import torch

    original, depth = torch.autograd.graph._engine_run_backward, 0

    def run(*arguments, **options):
        nonlocal depth
        if depth == 0:
            begins()
        depth += 1
        nested(depth)
        try:
            return original(*arguments, **options)
        finally:
            depth -= 1
            nested(depth)
            if depth == 0:
                ends()

    places: tuple[Any, ...] = torch.autograd, torch.autograd.graph
    for place in places:
        place._engine_run_backward = run

    def undo() -> None:
        for place in places:
            if place._engine_run_backward is run:  # other code may have wrapped it again
                place._engine_run_backward = original

    return undo
