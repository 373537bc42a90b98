"""Tensor parallelism as transformers has it: the model's own plan says which weights are sharded, its own code does it.

transformers 5.17: distributed/tensor_parallel.py (``apply_tensor_parallelism``), with the plans of configurations
(``base_model_tp_plan``) and heads (``_tp_plan``). Sharded weights are DTensors of one mesh, everything else stays as it
is. On meta the same code runs over a group that moves nothing, so sizes, copies and their order are the libraries' own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.distributed import HashStore, ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, _mesh_resources
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes

from predictor.common.errors import InputError

GROUP = "peakcast_tensor_parallel"
STYLES = ("colwise", "rowwise", "colwise_gather_output", "embedding_rowwise", "replicated_with_grad_allreduce")
"""What plans that were compared with a GPU, real or emulated, say of a module."""
SHARDED = "tensor_model_parallel"
"""DeepSpeed's mark on a parameter of which every rank has its own part (``DS_TENSOR_MODEL_PARALLEL``)."""


def shard(model, mesh: DeviceMesh) -> None:
    """Shards a model on meta over a mesh of one dimension, as one rank of it; its modules get the plan's transforms.

    Raises:
        InputError: a model without a plan that is predicted, or whose heads or weights the degree does not divide.
    """
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    size = mesh.size()
    check_plan(model, size)
    _check_head(model, size)
    check_heads(model, size, "transformers splits none")
    apply_tensor_parallelism(model, mesh)
    model.tie_weights()  # as from_pretrained does after loading
    for name, parameter in model.named_parameters():
        if is_sharded(parameter) and local(parameter).numel() * size != parameter.numel():
            shape = " x ".join(map(str, parameter.shape))
            raise InputError(f"tensor_parallel_size {size} does not divide {name} ({shape}): ranks that hold unlike "
                             "parts are not predicted")


def check_plan(model, size: int, without: str = "leave it out") -> None:
    """Whether the model has a plan, and one that is predicted; ``without`` says what to do where it has none."""
    name = type(model).__name__
    plan = getattr(model, "tp_plan", None)
    if not plan:
        raise InputError(f"tensor_parallel_size {size}: transformers has no tp_plan for {name}: {without}")
    other = sorted(set(plan.values()) - set(STYLES))
    if other:
        raise InputError(f"tensor_parallel_size {size}: the tp_plan of {name} says {', '.join(other)}, which is not "
                         "predicted yet: leave it out, or use peakcast learn")


def tied(model) -> bool:
    """Whether the head's weight is the embeddings'."""
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def _check_head(model, size: int) -> None:
    """Where a head is tied to embeddings that the plan shards, and is not in the plan itself, transformers' forward
    stops at a product of a plain tensor and a DTensor; it gathers the outputs of a head in equal parts alone."""
    styles = model.tp_plan.values()
    head = model.get_output_embeddings()
    if head is not None and "colwise_gather_output" in styles and len(head.weight) % size:
        raise InputError(f"tensor_parallel_size {size} does not divide the vocabulary of {type(model).__name__}, "
                         f"{len(head.weight):,} tokens, and transformers stops at that: give a divisor")
    if tied(model) and "embedding_rowwise" in styles and "colwise_gather_output" not in styles:
        raise InputError(f"tensor_parallel_size {size}: the tp_plan of {type(model).__name__} shards embeddings, but "
                         "not the head that is tied to them, and transformers stops at that: leave it out")


def check_heads(model, size: int, otherwise: str) -> None:
    """Whether every rank gets whole heads, and as many as the others; ``otherwise`` says what would happen.

    transformers divides the rows of the projections, then takes them apart by ``head_dim``: with another degree its
    forward stops at a shape that is invalid.
    """
    config = model.config.get_text_config()
    for key, called in (("num_attention_heads", "attention heads"), ("num_key_value_heads", "key/value heads")):
        heads = getattr(config, key, None)
        if heads and heads % size:
            raise InputError(f"tensor_parallel_size {size} does not divide the {heads} {called} of "
                             f"{type(model).__name__}, and {otherwise}: give a divisor of {heads}")


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether a rank holds a part of it."""
    if isinstance(tensor, DTensor):
        return any(placement.is_shard() for placement in tensor.placements)
    return hasattr(tensor, SHARDED)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def like(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """As ``torch.empty_like``; of a DTensor that is laid out the same."""
    made = torch.empty_like(local(tensor), device=device)
    if not isinstance(tensor, DTensor):
        return made
    return DTensor.from_local(made, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape,
                              stride=tensor.stride())


@contextmanager
def on_meta(model, size: int) -> Iterator[None]:
    """:func:`shard` as the first of so many ranks, in a process that may have joined another group, or none. While the
    block runs, the model runs; what DTensor asks PyTorch on the side, of the shapes of results, is out of sight.

    Raises:
        InputError: as :func:`shard`.
    """
    from torch._C._distributed_c10d import _register_process_group, _unregister_process_group
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    asks = "_propagate_tensor_meta_non_cached"
    group = ProcessGroup(HashStore(), 0, size)  # the registry does not keep it
    _register_process_group(GROUP, group)
    mesh = DeviceMesh("meta", list(range(size)), mesh_dim_names=("tp",), _init_backend=False, _rank=0)
    mesh._dim_group_names = [GROUP]
    try:
        with (patch.object(ShardingPropagator, asks, _aside(getattr(ShardingPropagator, asks))),
              patch.object(_mesh_resources, "num_devices_per_host", lambda _: size)):
            shard(model, mesh)
            yield
    finally:
        _unregister_process_group(GROUP)


def _aside(function: Callable) -> Callable:
    """The function, out of sight of the recorder."""
    def without_modes(*args):
        with _disable_current_modes():
            return function(*args)

    return without_modes
