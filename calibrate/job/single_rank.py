"""One process as one rank of many: the process groups of a job whose other ranks do not exist."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from predictor.common.errors import InputError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from predictor.workload.workload import Workload

SETTLED_SECONDS = 0.25
LAUNCHED = "TORCHELASTIC_RUN_ID"
"""Set by torchrun in every process that it starts: then the other ranks do exist."""


def launched() -> bool:
    """Whether torchrun started this process."""
    return LAUNCHED in os.environ


def local_device() -> int:
    """The GPU of this process."""
    return int(os.environ.get("LOCAL_RANK", "0")) if launched() else 0


def join(rank: int, world_size: int, *, backend: str) -> None:
    """Make this process rank ``rank`` of ``world_size``.

    Under torchrun the group is a real one. Otherwise the process is alone: ``fake`` is the group of
    PyTorch's own tests, whose collectives do nothing at once; ``nccl`` is PyTorch's real group over
    the emulated GPU's NCCL, which wrappers need that look at the work a collective returns.

    Raises:
        InputError: ``nccl``, alone, on a real GPU.
    """
    import torch.distributed as dist

    from calibrate.emulator import is_emulated

    if launched():
        dist.init_process_group("nccl")
        if is_emulated():  # the ranks are there, but nothing moves between them
            agree()
        return
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": "0"}
    if backend == "nccl":
        from calibrate.emulator.process_group import init_process_group

        if not is_emulated():
            raise InputError("this engine is measured alone only on the emulated GPU: add --device emulated, "
                             "or start the command with torchrun")
        init_process_group(rank=rank, world_size=world_size)
    else:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    agree()


def mesh(workload: Workload, rank: int) -> DeviceMesh:
    """The GPUs of data and tensor parallelism, ``dp`` x ``tp``, of which this process is one.

    The first dimension communicates as DistributedDataParallel needs it (see :func:`join`).

    Raises:
        InputError: an engine that makes its own ranks.
    """
    from torch.distributed.device_mesh import init_device_mesh

    backends = {"torch": "fake", "ddp": "nccl"}
    if workload.engine not in backends:
        raise InputError(f"tensor_parallel_size {workload.tensor_parallel_size}: not measured with engine "
                         f"{workload.engine}: use torch or ddp")
    join(rank, workload.world_size, backend=backends[workload.engine])
    return init_device_mesh("cuda", (workload.data_parallel_size, workload.tensor_parallel_size),
                            mesh_dim_names=("dp", "tp"))


def joined() -> str:
    """What stands for the other ranks: ``none``, ``fake``, ``nccl`` with none behind it, or ``launched``."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return "none"
    return "launched" if launched() else dist.get_backend()


def settle() -> None:
    """Let the process group's watchdog drop the tensors of collectives that are complete: it looks every tenth of a
    second (torch 2.11, ProcessGroupNCCL.cpp, ``Watchdog::runLoop``).

    A step takes a real GPU longer than that, and the emulated one, where it must be said, a hundredth of it.
    """
    import torch.distributed as dist

    from calibrate.emulator import events_complete_at_once, is_emulated

    if not is_emulated() or joined() != "nccl":
        return
    if events_complete_at_once():
        for group in dist.distributed_c10d._world.pg_map:  # a mesh has some for each of its dimensions
            group._wait_for_pending_works()
    else:  # those that are open now may stay so
        time.sleep(SETTLED_SECONDS)


def agree() -> None:
    """Satisfy DeepSpeed's checks that all ranks hold the same integers, and those that share layers the same first
    batch: they take rank 0's from a broadcast that nobody answers. Does nothing in a process without DeepSpeed
    (0.19.8: runtime/zero/utils.py; runtime/engine.py, ``_configure_tensor_parallel_states``)."""
    module = sys.modules.get("deepspeed.runtime.zero.utils")
    if module is not None:
        module.get_lst_from_rank0 = list
        module.assert_lst_len_same_as_other_ranks = lambda _: None
    kind = getattr(sys.modules.get("deepspeed.runtime.engine"), "DeepSpeedEngine", None)
    if configure := getattr(kind, "_configure_tensor_parallel_states", None):  # older releases have none
        def unchecked(engine, model) -> None:
            configure(engine, model)
            engine.first_dataloader_check.remove()

        kind._configure_tensor_parallel_states = unchecked
