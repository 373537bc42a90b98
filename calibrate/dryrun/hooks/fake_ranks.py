"""One process in place of many: ``torch.distributed`` answers as if the other ranks were there.

Tensors on the GPU go to PyTorch's real NCCL process group over the emulated GPU's NCCL, which moves
nothing; tensors on the CPU to PyTorch's ``fake`` one. Objects come back as they went in.
"""

from __future__ import annotations

import os
from collections.abc import Callable

BACKENDS = "cpu:fake,cuda:nccl"
MOST_GROUPS = 256
UNIQUE_ID = bytes(128)
"""ncclUniqueId (nccl.h): the first rank of a group leaves one in the store for the others."""


def pretend(rank: int, world_size: int) -> None:
    """Every process group of this process is of ``world_size`` ranks, and this one is ``rank``."""
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
    """Makes the default group of all ranks, whatever the script asks for."""
    def init_process_group(*_, group_name="", **__):
        import torch.distributed as dist
        import torch.testing._internal.distributed.fake_pg  # noqa: F401  makes the backend known

        store = dist.HashStore()
        for group in range(MOST_GROUPS):  # keys as ProcessGroupNCCL composes them: default group, then subgroups
            store.set(f"0//{group}//cuda//0" if group else "0//cuda//0", UNIQUE_ID)
        original(BACKENDS, store=store, rank=rank, world_size=world_size, group_name=group_name)
        from calibrate.job.single_rank import agree

        agree()

    return init_process_group


def _new_group(original: Callable) -> Callable:
    """Makes any further group of our backends."""
    def new_group(ranks=None, timeout=None, backend=None, *arguments, **options):
        return original(ranks, timeout, None if backend is None else BACKENDS, *arguments, **options)

    return new_group


def _all_gather_object(object_list, obj, group=None):
    object_list[:] = [obj] * len(object_list)


def _gather_object(obj, object_gather_list=None, *_, **__):
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)


def _scatter_object_list(rank: int) -> Callable:
    """Hands out this rank's object where the script has a list of them."""
    def scatter_object_list(scatter_object_output_list, scatter_object_input_list=None, *_, **__):
        if scatter_object_input_list:
            scatter_object_output_list[0] = scatter_object_input_list[rank % len(scatter_object_input_list)]

    return scatter_object_list


def _nothing(*_, **__):
    """Stands for what only waits for others, or sends them an object."""


def variables(rank: int, world_size: int) -> dict[str, str]:
    """What a launcher would set: every rank on a node of its own, as the process sees one GPU."""
    return {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
