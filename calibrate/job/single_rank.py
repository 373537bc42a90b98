"""Makes one process act as one rank of a job whose other ranks do not exist: process groups and device meshes."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from predictor.common.errors import InputError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from predictor.workload.workload import Workload

SETTLED_SECONDS = 0.25
LAUNCHED = "TORCHELASTIC_RUN_ID"
"""Variable that torchrun sets in each process it starts. With it, the other ranks are real."""


def launched() -> bool:
    """Whether torchrun started this process."""
    return LAUNCHED in os.environ


def local_device() -> int:
    """Index of this process's GPU."""
    return int(os.environ.get("LOCAL_RANK", "0")) if launched() else 0


def join(rank: int, world_size: int, *, backend: str) -> None:
    """Make this process rank ``rank`` of ``world_size``.

    Under torchrun the process group is a real one. Otherwise the other ranks do not exist: ``fake`` is the process
    group of PyTorch's own tests, whose collectives return at once; ``nccl`` is PyTorch's real process group over the
    emulated GPU's NCCL, for wrappers that read the work object of a collective.

    Raises:
        InputError: ``nccl`` without torchrun on a real GPU.
    """
    import torch.distributed as dist

    from calibrate.emulator import is_emulated

    if launched():
        dist.init_process_group("nccl")
        if is_emulated():  # the other ranks are real, but no data moves between them
            agree()
        return
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": "0"}
    if backend == "nccl":
        from calibrate.emulator.process_group import init_process_group

        if not is_emulated():
            raise InputError("this engine is measured without other ranks only on the emulated GPU: add "
                             "--device emulated, or start the command with torchrun")
        init_process_group(rank=rank, world_size=world_size)
    else:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    agree()


def mesh(workload: Workload, rank: int) -> DeviceMesh:
    """The device mesh ``dp`` x ``tp`` of data and tensor parallelism, which this process joins.

    The process group is the one that DistributedDataParallel needs (see :func:`join`).

    Raises:
        InputError: the engine makes its own ranks.
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
    """Says which process group this process is in.

    ``none``: it is in none. ``launched``: torchrun started this process, and the other ranks exist. Without torchrun
    the other ranks do not exist, and the result is the backend, ``fake`` or ``nccl`` (see :func:`join`).
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        return "none"
    return "launched" if launched() else dist.get_backend()


def settle() -> None:
    """Wait until the process group's watchdog has freed the tensors of completed collectives.

    The watchdog looks every tenth of a second (torch 2.11, ProcessGroupNCCL.cpp, ``Watchdog::runLoop``). A step on a
    real GPU takes longer than that. On the emulated GPU it takes a hundredth of it, so the loop must wait.
    """
    import torch.distributed as dist

    from calibrate.emulator import events_complete_at_once, is_emulated

    if not is_emulated() or joined() != "nccl":
        return
    if events_complete_at_once():
        for group in dist.distributed_c10d._world.pg_map:  # a mesh has groups for each of its dimensions
            group._wait_for_pending_works()
    else:  # events do not complete at once: collectives that are open now may stay open
        time.sleep(SETTLED_SECONDS)


def agree() -> None:
    """Disable DeepSpeed's checks that ranks agree, because nobody answers rank 0's broadcast here.

    The checks compare integers of all ranks, and the first batch of ranks that share layers. Does nothing in a process
    without DeepSpeed (0.19.8: runtime/zero/utils.py; runtime/engine.py, ``_configure_tensor_parallel_states``).
    """
    module: Any = sys.modules.get("deepspeed.runtime.zero.utils")
    if module is not None:
        module.get_lst_from_rank0 = list
        module.assert_lst_len_same_as_other_ranks = lambda _: None
    engine_class: Any = getattr(sys.modules.get("deepspeed.runtime.engine"), "DeepSpeedEngine", None)
    if configure := getattr(engine_class, "_configure_tensor_parallel_states", None):  # missing in older releases
        def unchecked(engine, model) -> None:
            configure(engine, model)
            engine.first_dataloader_check.remove()

        engine_class._configure_tensor_parallel_states = unchecked
