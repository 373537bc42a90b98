"""Tensor parallelism as transformers has it: the model's own plan says which weights are sharded, its own code does it.

transformers 5.17: distributed/tensor_parallel.py (``apply_tensor_parallelism``), with the plans of configurations
(``base_model_tp_plan``) and heads (``_tp_plan``). Sharded weights are DTensors of one mesh, everything else stays as it
is. On meta the same code runs over a group that moves nothing, so sizes, copies and order come from PyTorch itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.distributed.device_mesh import DeviceMesh, _mesh_resources
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes

from predictor.errors import InputError

GROUP = "peakcast_tensor_parallel"


def shard(model, mesh: DeviceMesh) -> None:
    """Shards a model on meta over a mesh of one dimension, as one rank of it, and hangs the plan's hooks on its modules.

    Raises:
        InputError: a model without a plan, or one whose heads or weights the degree does not divide.
    """
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    check(model, mesh.size())
    apply_tensor_parallelism(model, mesh)
    model.tie_weights()
    for name, parameter in model.named_parameters():
        if local(parameter).numel() * mesh.size() != parameter.numel() and is_sharded(parameter):
            raise InputError(f"tensor_parallel_size {mesh.size()} does not divide {name} of "
                             f"{' x '.join(map(str, parameter.shape))}: ranks that hold unlike parts are not predicted")


def check(model, size: int) -> None:
    """Whether the model has a plan, and whole heads on every rank.

    transformers divides the rows of the projections, then takes them apart by ``head_dim``: with another degree its
    forward stops at a shape that is invalid.

    Raises:
        InputError: it has none, or the degree does not divide its heads.
    """
    name = type(model).__name__
    if not getattr(model, "tp_plan", None):
        raise InputError(f"tensor_parallel_size {size}: transformers has no tp_plan for {name}: leave it out")
    config = model.config.get_text_config()
    for key, called in (("num_attention_heads", "attention heads"), ("num_key_value_heads", "key/value heads")):
        heads = getattr(config, key, None)
        if heads and heads % size:
            raise InputError(f"tensor_parallel_size {size} does not divide the {heads} {called} of {name}, and "
                             f"transformers cannot split one: give a divisor of {heads}")


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether a rank holds a part of it."""
    return isinstance(tensor, DTensor) and any(placement.is_shard() for placement in tensor.placements)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def like(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """As ``torch.empty_like``: of a DTensor's kind, if it is one."""
    made = torch.empty_like(local(tensor), device=device)
    if not isinstance(tensor, DTensor):
        return made
    return DTensor.from_local(made, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape,
                              stride=tensor.stride())


def locals_of(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """What this rank holds of each."""
    return [local(tensor) for tensor in tensors]


@contextmanager
def on_meta(size: int) -> Iterator[DeviceMesh]:
    """A mesh of so many ranks for tensors on meta, in a process that need not have joined any group, nor be alone in
    the one that it joined.

    The shapes that DTensor asks PyTorch for on the side are no events.
    """
    from torch._C._distributed_c10d import _register_process_group, _unregister_process_group
    from torch.distributed import HashStore, ProcessGroup
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    def aside(original):
        def without_modes(*args):
            with _disable_current_modes():
                return original(*args)

        return without_modes

    group = ProcessGroup(HashStore(), 0, size)  # the registry does not keep it
    _register_process_group(GROUP, group)
    mesh = DeviceMesh("meta", list(range(size)), mesh_dim_names=("tp",), _init_backend=False, _rank=0)
    mesh._dim_group_names = [GROUP]
    asks = "_propagate_tensor_meta_non_cached"
    try:
        with (patch.object(ShardingPropagator, asks, aside(getattr(ShardingPropagator, asks))),
              patch.object(_mesh_resources, "num_devices_per_host", lambda _: size)):
            yield mesh
    finally:
        _unregister_process_group(GROUP)
