"""Tensor parallelism as DeepSpeed's AutoTP has it in training: plain tensors, and collectives in place.

DeepSpeed 0.19.8: runtime/engine.py (``_apply_autotp_partitioning``) takes transformers' own plan, if the model has one
(module_inject/tp_plan_converter.py), and puts its layers (module_inject/layers.py) where the plan has a linear layer;
embeddings stay whole. A trace needs no DeepSpeed: :class:`Column` and :class:`Row` allocate as its ``LinearLayer`` and
``LinearAllreduce`` do, which is measured (tests/calibrate/truth/test_autotp_truth.py,
scripts/check.py tensor_parallel).
"""

from __future__ import annotations

import re

import torch
from torch import nn

from predictor.common.errors import InputError
from predictor.model.tensor_parallel import SHARDED, check_heads, check_plan, tied


class _BeforeColumns(torch.autograd.Function):
    """``ColumnParallel``: the gradient of the input is reduced in place, or, if it is not contiguous, a copy is."""

    @staticmethod
    def forward(ctx, activations):
        return activations

    @staticmethod
    def backward(ctx, gradient):
        gradient.contiguous()
        return gradient


class _AfterRows(torch.autograd.Function):
    """``RowParallel``: the output is reduced in place."""

    @staticmethod
    def forward(ctx, output):
        return output

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class _Gather(torch.autograd.Function):
    """``GatherFromTensorParallelRegion``: a buffer of all parts, and the copy of it in their order."""

    @staticmethod
    def forward(ctx, part, size):
        part = part.contiguous()
        ctx.width = part.shape[-1]
        buffer = torch.ops._c10d_functional.all_gather_into_tensor(part, size, "")  # on meta there need be no group
        return torch.cat(list(buffer.view(size, *part.shape)), dim=-1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.narrow(-1, 0, ctx.width).contiguous(), None


class _Sharded(nn.Module):
    """A part of a linear layer, one of so many along a dimension of its weight."""

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
    """Rows of the weight and the bias: a part of the output's features; ``gathers`` makes all of them of it."""

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
    """Columns of the weight: a summand of the output; the bias is whole, and added after the sum."""

    dimension = 1

    def forward(self, activations: torch.Tensor) -> torch.Tensor:
        return self.biased(_AfterRows.apply(self.product(activations)))


def shard(model, size: int) -> None:
    """Puts the parts of one of so many ranks into a model on meta.

    Raises:
        InputError: a model without a plan that is predicted, with a tied head, or whose heads or weights the degree
            does not divide.
    """
    check_plan(model, size, "DeepSpeed would go by the names of layers, which is not predicted: leave it out, or use "
                            "peakcast learn")
    check_heads(model, size, "AutoTP gives some ranks more than others, which is not predicted")
    if tied(model):
        raise InputError(f"tensor_parallel_size {size}: AutoTP shards embeddings and a head that is tied to them by "
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


def _part(whole: nn.Parameter, size: int, dimension: int, name: str) -> nn.Parameter:
    shape = list(whole.shape)
    if shape[dimension] % size:
        raise InputError(f"tensor_parallel_size {size} does not divide {name} ({' x '.join(map(str, shape))}): ranks "
                         "that hold unlike parts are not predicted")
    shape[dimension] //= size
    part = nn.Parameter(whole.new_empty(shape), requires_grad=whole.requires_grad)
    setattr(part, SHARDED, True)
    return part
