"""Makes ``torch.distributed`` in one process behave as if the other ranks existed.

Tensors on the GPU go to PyTorch's real NCCL process group over the emulated GPU's NCCL, which moves no data. Tensors on
the CPU go to PyTorch's ``fake`` process group. Gathered and scattered objects are this process's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable

BACKENDS = "cpu:fake,cuda:nccl"
MOST_GROUPS = 256
UNIQUE_ID = bytes(128)
"""A ncclUniqueId (nccl.h). The first rank of a group puts one into the store for the others."""


def pretend(rank: int, world_size: int) -> None:
    """Make every process group have ``world_size`` ranks, with this process as ``rank``."""
    os.environ |= variables(rank, world_size)
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as module

    replaced = {
        "init_process_group": _init_process_group(module.init_process_group, rank, world_size),
        "new_group": _new_group(module.new_group),
        "all_gather_object": _all_gather_object,
        "gather_object": _gather_object,
        "scatter_object_list": _scatter_object_list(rank),
        **dict.fromkeys(("broadcast_object_list", "send_object_list", "recv_object_list", "monitored_barrier"),
                        _nothing)}
    for name, function in replaced.items():
        for place in (module, dist):
            if hasattr(place, name):
                setattr(place, name, function)


def _init_process_group(original: Callable, rank: int, world_size: int) -> Callable:
    """A function that makes the default group of all ranks, whatever backend the script names."""
    def init_process_group(*_, group_name="", **__):
        import torch.testing._internal.distributed.fake_pg  # noqa: F401  registers the backend
        from torch._C._distributed_c10d import HashStore

        store = HashStore()
        for group in range(MOST_GROUPS):  # ProcessGroupNCCL's keys: default group, then subgroups
            key = f"0//{group}//cuda//0" if group else "0//cuda//0"
            store.set(key, UNIQUE_ID)  # type: ignore[arg-type]  # the binding takes bytes, too
        original(BACKENDS, store=store, rank=rank, world_size=world_size, group_name=group_name)
        from calibrate.job.single_rank import agree

        agree()

    return init_process_group


def _new_group(original: Callable) -> Callable:
    """A function that makes further groups with our backends."""
    def new_group(ranks=None, timeout=None, backend=None, *arguments, **options):
        return original(ranks, timeout, None if backend is None else BACKENDS, *arguments, **options)

    return new_group


def _all_gather_object(object_list, obj, group=None):
    object_list[:] = [obj] * len(object_list)


def _gather_object(obj, object_gather_list=None, *_, **__):
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)


def _scatter_object_list(rank: int) -> Callable:
    """A function that returns this rank's object if the script has a list of them."""
    def scatter_object_list(scatter_object_output_list, scatter_object_input_list=None, *_, **__):
        if scatter_object_input_list:
            scatter_object_output_list[0] = scatter_object_input_list[rank % len(scatter_object_input_list)]

    return scatter_object_list


def _nothing(*_, **__):
    """Replaces functions that only wait for other ranks or send objects."""


def variables(rank: int, world_size: int) -> dict[str, str]:
    """Environment variables of a launcher: each rank on a node of its own, because the process sees one GPU."""
    return {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
