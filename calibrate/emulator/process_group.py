"""One rank of a job of many, with PyTorch's real NCCL process group.

The `fake` process group of PyTorch's own tests does no communication and has no
streams. Here ProcessGroupNCCL itself runs (its streams, events and flattened
buffers are host code); only the library underneath is a stand-in that moves
nothing, and the other ranks do not exist.
"""

import torch.distributed as dist

from calibrate.emulator.job_environment import is_emulated
from predictor.common.errors import InputError

#: Bytes of ncclUniqueId (nccl.h): rank 0 of a group leaves one in the store.
_UNIQUE_ID = bytes(128)


def init_process_group(*, rank: int, world_size: int, groups: int = 256) -> None:
    """Make this process rank `rank` of `world_size` in an NCCL process group, alone.

    Collectives leave their outputs as they are, except that gathered integers
    repeat this rank's (see `twins`). `groups` is how many process groups the job
    may create: what their first ranks would leave in the store is put there.
    """
    if not is_emulated():
        raise InputError("a process group of one process for many ranks needs the emulated GPU")
    store = dist.HashStore()
    if rank:
        for group in range(groups):
            # as ProcessGroupNCCL composes them: default group, then its subgroups
            store.set(f"0//{group}//cuda//0" if group else "0//cuda//0", _UNIQUE_ID)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=world_size)
