"""Tensor parallelism of DeepSpeed's AutoTP in training: shards are plain tensors, and collectives run in place.

DeepSpeed 0.19.8: runtime/engine.py (``_apply_autotp_partitioning``) takes transformers' plan, if the model has one
(module_inject/tp_plan_converter.py), and replaces the plan's linear layers by its own (module_inject/layers.py).
Embeddings stay whole. A trace does not need DeepSpeed: :class:`Column` and :class:`Row` allocate as its ``LinearLayer``
and ``LinearAllreduce`` do. Measurements confirm that (tests/calibrate/truth/test_autotp_truth.py, scripts/check.py
tensor_parallel).
"""

from __future__ import annotations

import re

import torch
from torch import nn

from predictor.common.errors import NotPredicted
from predictor.model.tensor_parallel import SHARDED, check_heads, check_plan, tied


class _BeforeColumns(torch.autograd.Function):
    """``ColumnParallel``: the input's gradient, or a contiguous copy of it, is all-reduced in place."""

    @staticmethod
    def forward(ctx, activations):
        return activations

    @staticmethod
    def backward(ctx, gradient):
        gradient.contiguous()
        return gradient


class _AfterRows(torch.autograd.Function):
    """``RowParallel``: the output is all-reduced in place."""

    @staticmethod
    def forward(ctx, output):
        return output

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class _Gather(torch.autograd.Function):
    """``GatherFromTensorParallelRegion``: an all-gather into a buffer, and a copy of it with the parts in order."""

    @staticmethod
    def forward(ctx, part, size):
        part = part.contiguous()
        ctx.width = part.shape[-1]
        buffer = torch.ops._c10d_functional.all_gather_into_tensor(part, size, "")  # meta needs no process group
        return torch.cat(list(buffer.view(size, *part.shape)), dim=-1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.narrow(-1, 0, ctx.width).contiguous(), None


class _Sharded(nn.Module):
    """One rank's part of a linear layer, split along ``dimension`` of its weight into ``size`` parts."""

    dimension: int

    def __init__(self, whole: nn.Linear, size: int, name: str) -> None:
        super().__init__()
        self.weight = _part(whole.weight, size, self.dimension, f"{name}.weight")
        self.bias = whole.bias

    def product(self, activations: torch.Tensor) -> torch.Tensor:
        return torch.matmul(activations, self.weight.transpose(-1, -2))

    def biased(self, output: torch.Tensor) -> torch.Tensor:
        return output if self.bias is None else output + self.bias


class Column(_Sharded):
    """A rank with some rows of the weight and bias computes some output features; ``gathers`` collects all of them."""

    dimension = 0

    def __init__(self, whole: nn.Linear, size: int, name: str, *, gathers: bool) -> None:
        super().__init__(whole, size, name)
        if self.bias is not None:
            self.bias = _part(self.bias, size, 0, f"{name}.bias")
        self.size = size if gathers else 1

    def forward(self, activations: torch.Tensor) -> torch.Tensor:
        output = self.biased(self.product(_BeforeColumns.apply(activations)))
        return output if self.size == 1 else _Gather.apply(output, self.size)


class Row(_Sharded):
    """A rank with some columns of the weight computes a summand of the output. The whole bias is added after the sum.
    """

    dimension = 1

    def forward(self, activations: torch.Tensor) -> torch.Tensor:
        return self.biased(_AfterRows.apply(self.product(activations)))


def shard(model, size: int) -> None:
    """Replaces the layers of a model on meta by the parts of one rank of ``size``.

    Raises:
        InputError: the model has no plan, or a plan that is not predicted, or a tied head; or the degree does not
            divide its heads or weights.
    """
    check_plan(model, size, "DeepSpeed would then choose layers by name, which is not predicted: leave it out, or use "
                            "peakcast learn")
    check_heads(model, size, "AutoTP gives some ranks more than others, which is not predicted")
    if tied(model):
        raise NotPredicted(f"tensor_parallel_size {size}: AutoTP shards embeddings and a head that is tied to them by "
                           "vocabulary, which is not predicted yet: use engine torch or ddp")
    plan = {re.compile(".*" + re.escape(pattern).replace(r"\*", ".*") + "$"): style
            for pattern, style in model.tp_plan.items()}
    for name, module in list(model.named_modules()):
        style = next((style for pattern, style in plan.items() if pattern.match(name)), None)
        if style == "replicated_with_grad_allreduce":
            module.weight.register_hook(lambda gradient: gradient.contiguous())
        elif style == "rowwise":
            model.set_submodule(name, Row(module, size, name))
        elif style in ("colwise", "colwise_gather_output"):
            model.set_submodule(name, Column(module, size, name, gathers=style == "colwise_gather_output"))


def _part(whole: torch.Tensor, size: int, dimension: int, name: str) -> nn.Parameter:
    shape = list(whole.shape)
    if shape[dimension] % size:
        raise NotPredicted(f"tensor_parallel_size {size} does not divide {name} ({' x '.join(map(str, shape))}): ranks "
                           "that hold unlike parts are not predicted")
    shape[dimension] //= size
    part = nn.Parameter(whole.new_empty(shape), requires_grad=whole.requires_grad)
    setattr(part, SHARDED, True)
    return part
