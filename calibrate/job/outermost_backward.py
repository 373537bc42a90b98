"""When the outermost backward of a process begins and ends."""

from __future__ import annotations

from collections.abc import Callable


def follow(begins: Callable[[], None], ends: Callable[[], None]) -> Callable[[], None]:
    """Call these around each outermost backward from now on; gives a function that leaves PyTorch as it was.

    ``Tensor.backward`` and ``autograd.backward`` both call the function that is replaced (torch 2.11,
    autograd/graph.py); the backward of a checkpoint's recomputation is inside another, and stays inside it.
    """
    import torch

    original, depth = torch.autograd.graph._engine_run_backward, 0

    def run(*arguments, **options):
        nonlocal depth
        if depth == 0:
            begins()
        depth += 1
        try:
            return original(*arguments, **options)
        finally:
            depth -= 1
            if depth == 0:
                ends()

    places = torch.autograd, torch.autograd.graph
    for place in places:
        place._engine_run_backward = run

    def undo() -> None:
        for place in places:
            if place._engine_run_backward is run:  # not if somebody wrapped it again
                place._engine_run_backward = original

    return undo
