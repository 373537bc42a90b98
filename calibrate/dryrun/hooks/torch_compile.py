"""Refuses what ``torch.compile`` would make for the GPU: Inductor times its kernels, and here none runs.

Each timing clears a tensor of integers as large as the GPU's cache hundreds of times (torch 2.11,
_inductor/runtime/benchmarking.py), whose values are followed: that takes minutes without a word, and its memory
would be in the peak. Merely to call ``torch.compile`` compiles nothing; graphs of the CPU and other backends run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from calibrate.dryrun.hooks import code_location

WHY = "torch.compile makes kernels for the GPU here, and a dry run cannot time them: "
DO = "set TORCH_COMPILE_DISABLE=1; the answer is then of the script without torch.compile, which may need more memory"
FLEX = ("take another attention than flex_attention, which needs torch.compile (attn_implementation sdpa in "
        "transformers), and set TORCH_COMPILE_DISABLE=1; the answer is then of that script")


def refuse(tell: Callable[[str], None]) -> None:
    """End the script as soon as it compiles for the GPU; ``tell`` gets the sentence before."""
    wrapper = torch._TorchCompileInductorWrapper
    original = wrapper.__call__

    def compile_graph(self, graph, inputs):
        if any(tensor.is_cuda for tensor in _tensors(graph, inputs)):
            line = code_location.calling_line()
            tell((f"{line[0]}:{line[1]}: " if line else "") + WHY + (FLEX if _is_for_flex(graph) else DO))
            raise SystemExit(2)  # Dynamo would take an Exception for a fault of the backend
        return original(self, graph, inputs)

    wrapper.__call__ = compile_graph


def _tensors(graph: torch.fx.GraphModule, inputs: Any) -> Iterator[torch.Tensor]:
    """Those that go into a graph or are made in it."""
    values = [inputs, [node.meta.get("example_value") for node in graph.graph.nodes]]
    return (leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor))


def _is_for_flex(graph: torch.fx.GraphModule) -> bool:
    """Whether a graph has flex_attention, or is compiled for it, as its block mask is."""
    return (any(getattr(node.target, "__name__", "") == "flex_attention" for node in graph.graph.nodes)
            or any(Path(file).name == "flex_attention.py" for file, _, _ in code_location.stack(sys._getframe())))
