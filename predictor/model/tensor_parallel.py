"""Tensor parallelism of transformers: its own code shards weights by the model's own plan.

transformers 5.17: distributed/tensor_parallel.py (``apply_tensor_parallelism``), with the plans of configurations
(``base_model_tp_plan``) and heads (``_tp_plan``). Sharded weights are DTensors of one mesh; other weights do not
change. On meta the same code runs with a process group that communicates nothing, so sizes, copies and their order are
those of the libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from inspect import signature
from typing import TYPE_CHECKING, cast
from unittest.mock import patch

import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, _mesh_resources
from torch.utils._python_dispatch import _disable_current_modes

from predictor.common.errors import InputError, NotPredicted

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # PyTorch 2.4
    from torch.distributed._tensor import DTensor  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import GroupName  # older releases lack it

GROUP = cast("GroupName", "peakcast_tensor_parallel")
ARGUMENTS = ("model", "tp_mesh")
"""Arguments of ``apply_tensor_parallelism``. Later releases (5.24) also take a plan."""
STYLES = ("colwise", "rowwise", "colwise_gather_output", "embedding_rowwise", "replicated_with_grad_allreduce")
"""Styles of plans that have been compared with a real or emulated GPU."""
SHARDED = "tensor_model_parallel"
"""The attribute by which DeepSpeed marks sharded parameters (``DS_TENSOR_MODEL_PARALLEL``)."""


def shard(model, mesh: DeviceMesh) -> None:
    """Shards a model on meta over a one-dimensional mesh, as one of its ranks; modules get the plan's hooks.

    Raises:
        InputError: the model has no plan or a plan that is not predicted, the degree does not divide its heads or
            weights, or the installed transformers shards in another way.
    """
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    size = mesh.size()
    if tuple(signature(apply_tensor_parallelism).parameters) != ARGUMENTS:
        raise InputError(f"tensor_parallel_size {size}: transformers {version('transformers')} shards in another way "
                         "than 5.17, which is predicted: install transformers==5.17.0, or name a Python that has it "
                         "(--python)")
    check_plan(model, size)
    _check_head(model, size)
    check_heads(model, size, "transformers splits none")
    apply_tensor_parallelism(model, mesh)
    model.tie_weights()  # as from_pretrained does after loading
    for name, parameter in model.named_parameters():
        if is_sharded(parameter) and local_part(parameter).numel() * size != parameter.numel():
            shape = " x ".join(map(str, parameter.shape))
            raise NotPredicted(f"tensor_parallel_size {size} does not divide {name} ({shape}): ranks that hold unlike "
                               "parts are not predicted")


def check_plan(model, size: int, without: str = "leave it out") -> None:
    """Checks that the model has a plan, and that the plan is predicted.

    Args:
        without: the end of the message for a model without a plan: what to do.

    Raises:
        InputError: the model has no plan, or a plan with other styles than :data:`STYLES`.
    """
    name = type(model).__name__
    plan = getattr(model, "tp_plan", None)
    if not plan:
        raise InputError(f"tensor_parallel_size {size}: transformers has no tp_plan for {name}: {without}")
    other = sorted(set(plan.values()) - set(STYLES))
    if other:
        raise NotPredicted(f"tensor_parallel_size {size}: the tp_plan of {name} says {', '.join(other)}, which is not "
                           "predicted yet: leave it out, or use peakcast learn")


def tied(model) -> bool:
    """Whether the head and the input embeddings share one weight."""
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def _check_head(model, size: int) -> None:
    """Rejects heads with which transformers' forward fails.

    The forward gathers the outputs of a sharded head only in equal parts. If the plan shards embeddings, but not the
    head that is tied to them, it multiplies a plain tensor by a DTensor, which raises an error.

    Raises:
        InputError: such a head.
    """
    styles = model.tp_plan.values()
    head = model.get_output_embeddings()
    if head is not None and "colwise_gather_output" in styles and len(head.weight) % size:
        raise InputError(f"tensor_parallel_size {size} does not divide the vocabulary of {type(model).__name__}, "
                         f"{len(head.weight):,} tokens, and transformers stops at that: give a divisor")
    if tied(model) and "embedding_rowwise" in styles and "colwise_gather_output" not in styles:
        raise InputError(f"tensor_parallel_size {size}: the tp_plan of {type(model).__name__} shards embeddings, but "
                         "not the head that is tied to them, and transformers stops at that: leave it out")


def check_heads(model, size: int, otherwise: str) -> None:
    """Checks that every rank gets the same number of whole attention heads.

    transformers divides the rows of the projections, and then splits them by ``head_dim``: with other degrees its
    forward fails at an invalid shape.

    Args:
        otherwise: the part of the message that says what the library would do.

    Raises:
        InputError: the degree does not divide the number of heads.
    """
    config = model.config.get_text_config()
    for key, noun in (("num_attention_heads", "attention heads"), ("num_key_value_heads", "key/value heads")):
        heads = getattr(config, key, None)
        if heads and heads % size:
            raise InputError(f"tensor_parallel_size {size} does not divide the {heads} {noun} of "
                             f"{type(model).__name__}, and {otherwise}: give a divisor of {heads}")


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether a rank has only a part of the tensor."""
    if isinstance(tensor, DTensor):
        return any(placement.is_shard() for placement in tensor.placements)
    return hasattr(tensor, SHARDED)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor: the local tensor of a DTensor, or the tensor itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def empty_like(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """``torch.empty_like`` on a device; for a DTensor, a DTensor with the same mesh and placements."""
    part = torch.empty_like(local_part(tensor), device=device)
    if not isinstance(tensor, DTensor):
        return part
    return DTensor.from_local(part, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape,
                              stride=tensor.stride())


@contextmanager
def on_meta(model, size: int) -> Iterator[None]:
    """Shards a model as the first of ``size`` ranks; the model can run while the block runs.

    The process may belong to another process group, or to none. Operators that DTensor runs only to find the shapes of
    results are hidden from dispatch modes.

    Raises:
        InputError: as :func:`shard`.
    """
    from torch._C._distributed_c10d import _register_process_group, _unregister_process_group
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    shape_propagation = "_propagate_tensor_meta_non_cached"
    group = ProcessGroup(HashStore(), 0, size)  # the registry does not keep it
    _register_process_group(GROUP, group)
    mesh = DeviceMesh("meta", list(range(size)), mesh_dim_names=("tp",), _init_backend=False, _rank=0)
    mesh._dim_group_names = [GROUP]
    try:
        with (patch.object(ShardingPropagator, shape_propagation,
                           _without_modes(getattr(ShardingPropagator, shape_propagation))),
              patch.object(_mesh_resources, "num_devices_per_host", lambda _: size)):
            shard(model, mesh)
            yield
    finally:
        _unregister_process_group(GROUP)


def _without_modes(function: Callable) -> Callable:
    """The function, hidden from dispatch modes such as the recorder."""
    def hidden(*args):
        with _disable_current_modes():
            return function(*args)

    return hidden
