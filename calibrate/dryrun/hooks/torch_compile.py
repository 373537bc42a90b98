"""Ends a dry run's script, with the reason, when ``torch.compile`` compiles a graph for the GPU with Inductor.

Inductor times its kernels, and the emulated GPU runs none. For each timing, Inductor clears an integer tensor as large
as the GPU's cache hundreds of times (torch 2.11, _inductor/runtime/benchmarking.py). The emulator tracks the values of
integer tensors, so this takes minutes without any output, and the tensor would be in the peak.

The script may call ``torch.compile``: the graph is compiled later, when the compiled function first runs. Graphs on the
CPU run as usual, and so do other backends than Inductor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from calibrate.dryrun.hooks import code_location

WHY = "torch.compile makes kernels for the GPU here, and a dry run cannot time them: "
DO = "set TORCH_COMPILE_DISABLE=1; the report is then of the script without torch.compile, which may need more memory"
FLEX = ("use another attention than flex_attention, which needs torch.compile (attn_implementation sdpa in "
        "transformers), and set TORCH_COMPILE_DISABLE=1; the report is then of that script")


def refuse(tell: Callable[[str], None]) -> None:
    """End the script when it compiles for the GPU. ``tell`` is called with the reason first."""
    wrapper: Any = torch._TorchCompileInductorWrapper
    original = wrapper.__call__

    def compile_graph(self, graph, inputs):
        if any(tensor.is_cuda for tensor in _tensors(graph, inputs)):
            line = code_location.calling_line()
            tell((f"{line[0]}:{line[1]}: " if line else "") + WHY + (FLEX if _is_for_flex(graph) else DO))
            raise SystemExit(2)  # Dynamo would treat an Exception as an error of the backend
        return original(self, graph, inputs)

    wrapper.__call__ = compile_graph


def _tensors(graph: torch.fx.GraphModule, inputs: Any) -> Iterator[torch.Tensor]:
    """Tensors that a graph takes or creates."""
    values = [inputs, [node.meta.get("example_value") for node in graph.graph.nodes]]
    return (leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor))


def _is_for_flex(graph: torch.fx.GraphModule) -> bool:
    """Whether a graph contains flex_attention, or is compiled for it, as its block mask is."""
    return (any(getattr(node.target, "__name__", "") == "flex_attention" for node in graph.graph.nodes)
            or any(Path(file).name == "flex_attention.py" for file, _, _ in code_location.stack(sys._getframe())))
