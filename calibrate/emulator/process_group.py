"""Runs one rank of a larger job with PyTorch's real NCCL process group; the other ranks do not exist.

The `fake` process group of PyTorch's own tests does no communication and has no
streams. Here ProcessGroupNCCL itself runs (its streams, events and flattened
buffers are host code). Only the NCCL library underneath is emulated, and it moves
no data.
"""

import torch.distributed as dist

from calibrate.emulator.job_environment import is_emulated
from predictor.common.errors import InputError

#: An ncclUniqueId (128 bytes, nccl.h). Rank 0 of each group puts one into the store.
_UNIQUE_ID = bytes(128)


def init_process_group(*, rank: int, world_size: int, groups: int = 256) -> None:
    """Makes this process rank `rank` of `world_size` in an NCCL process group, without the other ranks.

    Collectives leave their outputs as they are, except that gathered integers
    repeat this rank's (see `host_values`). `groups` is the most process groups
    that the job may create: their ids, which their first ranks would put into
    the store, are put there in advance.
    """
    if not is_emulated():
        raise InputError("a process group of one process for many ranks needs the emulated GPU")
    store = dist.HashStore()  # type: ignore[attr-defined]  # torch.distributed imports it if it is available
    if rank:
        for group in range(groups):
            # as ProcessGroupNCCL composes them: default group, then its subgroups
            store.set(f"0//{group}//cuda//0" if group else "0//cuda//0", _UNIQUE_ID)  # type: ignore[arg-type]  # bytes
    dist.init_process_group("nccl", store=store, rank=rank, world_size=world_size)
