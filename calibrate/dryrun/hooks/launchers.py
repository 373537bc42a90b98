"""Makes launchers of several ranks start one process, which acts as the rank of a dry run (:mod:`.fake_ranks`).

torchrun, accelerate and the frameworks that call them start their processes in ``torch.distributed.run.run``. DeepSpeed
has a launcher of its own, whose command line is changed before it is parsed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from predictor.common.errors import InputError
from predictor.readers import launchers

ONE_GPU = ("--num_gpus", "1")
CHOOSING = ("num_gpus", "num_nodes", "hostfile", "include", "exclude", "node_rank", "no_ssh", "no_ssh_check",
            "force_multi", "launcher", "launcher_args", "master_addr", "ssh_port")
"""Options of DeepSpeed's launcher (deepspeed 0.19, launcher/runner.py) that choose machines and GPUs."""


def start_one_process() -> None:
    """Changes this process if it is a launcher."""
    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    if program == "deepspeed" or "deepspeed.launcher.runner" in sys.orig_argv:
        sys.argv[1:] = of_one_gpu(sys.argv[1:])
    elif not program.endswith(".py"):  # a program of a package, or python -m
        _patch_torchrun()


def of_one_gpu(words: Sequence[str]) -> list[str]:
    """The arguments of DeepSpeed's launcher, with the GPU of this machine in place of all that they name."""
    try:
        options, command = launchers.options("deepspeed", words, "the command")
    except InputError:  # the launcher itself says what is wrong
        return list(words)
    kept = [word for name, item in options.items() if name not in CHOOSING
            for word in ([f"--{name}", item] if item else [f"--{name}"])]
    return [*ONE_GPU, *kept, *command]


def _patch_torchrun() -> None:
    import torch.distributed.run as torchrun

    original = torchrun.run

    def run(args):
        """As torch 2.11's ``run``, for one process of one node, which finds a free port for itself."""
        args.nnodes, args.nproc_per_node, args.node_rank = "1", "1", 0
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id, args.standalone = "static", "", "none", True
        return original(args)

    torchrun.run = run
