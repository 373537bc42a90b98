"""The loss and the loading of TRL's SFTTrainer in the reference loop (``loss: trl_sft``), by TRL's own functions."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from predictor.common.errors import InputError
from predictor.common.installing import pip_install
from predictor.engine.device_map_loading import FIRST_BYTES, natural_key
from predictor.model.lora import ADAPTERS, COPIED
from predictor.trace import trl_loss
from predictor.workload.workload import Workload

OUTPUTS = ("log_probs", "entropy", "is_top1")
"""What ``SFTTrainer`` asks of the head (TRL 1.16, trainer/sft_trainer.py)."""


def add_head(model, workload: Workload) -> None:
    """Adds TRL's head to a model, in place.

    Raises:
        InputError: TRL is not installed, or the head's weight is sharded, which only TRL's own script gathers.
    """
    if workload.engine == "fsdp2" or workload.zero_stage == 3:
        raise InputError("loss trl_sft: with sharded parameters run TRL's own command: peakcast predict --run -- trl "
                         "sft …")
    try:
        from trl.trainer.utils import add_fused_lm_head
    except ImportError:
        raise InputError(f"loss trl_sft: running it needs TRL: {pip_install('trl==1.16.0')}") from None
    add_fused_lm_head(model, outputs=OUTPUTS)


def add_trainer(model) -> None:
    """Makes the model return the trainer's loss, in place; call it after autocast wrapped the forward."""
    trl_loss.add_trainer(model, fused_lm_head=True)


def warm_up(model) -> None:
    """Allocates and frees what accelerate and transformers do before they load weights to the GPU."""
    torch.zeros(FIRST_BYTES // 8, dtype=torch.int64, device="cuda")
    size = sum(parameter.nbytes for name, parameter in model.named_parameters() if not _is_added(name))
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    torch.empty(max(size - unused, 0) // 2, dtype=torch.float16, device="cuda")


def loading_order(model) -> Iterator[torch.Tensor]:
    """The tensors in the order of their names, then buffers, then adapters."""
    named = dict(model.named_parameters())
    yield from (named[name] for name in sorted(named, key=natural_key) if not _is_added(name))
    yield from model.buffers()
    yield from (parameter for name, parameter in named.items() if _is_added(name))


def _is_added(name: str) -> bool:
    return ADAPTERS in name or COPIED in name
