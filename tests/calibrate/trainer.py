"""Hugging Face's Trainer with the tiny LLaVA, a script of its own on the emulated GPU."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from calibrate.dryrun.dryrun import DryRun, Streams, dryrun
from calibrate.emulator import H100, Machine
from tests.calibrate.small_jobs import BATCH, SEQUENCE
from tests.predictor.small import small_config

SCALARS_BYTES = 64
"""DeepSpeed's norm and overflow flags, the running loss and what the Trainer logs, which are not predicted."""
ZERO2_CONFIG = {"bf16": {"enabled": True}, "gradient_clipping": "auto", "train_micro_batch_size_per_gpu": "auto",
                "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}
ARGUMENTS = {"per_device_train_batch_size": BATCH, "report_to": [], "save_strategy": "no",
             "gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False},
             "optim": "adamw_torch_fused", "logging_steps": 1, "remove_unused_columns": False, "bf16": False}
FROZEN_TOWER = "model.model.vision_tower.requires_grad_(False)"


def train(directory: Path, *, world_size: int | None = None, rank: int = 0, machine: Machine = H100, ends: int = 0,
          errors: int | None = None, max_steps: int = 3, **about: Any) -> DryRun:
    """A few steps of the samples that measured jobs have.

    Args:
        machine: the machine on which it runs.
        ends: the exit code that the script should have.
        errors: file descriptor for its standard error.
        about: what :func:`script` takes.
    """
    path = script(directory, max_steps=max_steps, **about)
    found = dryrun([sys.executable, str(path)], machine, world_size=world_size, rank=rank,
                   streams=Streams(subprocess.DEVNULL, errors))
    assert found.exit_code == ends
    assert ends or found.optimizer_steps == max_steps
    return found


def script(directory: Path, *, dtype: str = "bfloat16", prepare: str = FROZEN_TOWER, callback: str = "",
           **arguments: Any) -> Path:
    """Writes a script that trains.

    Args:
        dtype: of the weights, as it is made on the CPU.
        prepare: lines that make ``model`` ready to train.
        callback: an expression, evaluated in the script where ``PeakcastCallback`` is known.
        arguments: of ``TrainingArguments``, over :data:`ARGUMENTS`; the samples are those of evaluations too.
    """
    document = small_config()
    path = directory / "train.py"
    path.write_text(textwrap.dedent(f"""
        import torch
        from transformers import AutoConfig, LlavaForConditionalGeneration, Trainer, TrainingArguments
        config = AutoConfig.for_model({document.pop("model_type")!r}, **{document!r})
        model = LlavaForConditionalGeneration._from_config(config, dtype=torch.{dtype})
        PREPARE
        ids = torch.full(({SEQUENCE},), 1)
        ids[1:5] = config.image_token_id
        labels = torch.where(ids == config.image_token_id, -100, ids)
        sample = {{"input_ids": ids, "labels": labels, "pixel_values": torch.zeros(3, 28, 28, dtype=torch.{dtype})}}
        arguments = TrainingArguments(output_dir={str(directory)!r}, **{ARGUMENTS | arguments!r})
        CALLBACK
        Trainer(model=model, args=arguments, train_dataset=[sample] * 64, eval_dataset=[sample] * 64,
                callbacks=callbacks).train()
    """).replace("PREPARE", textwrap.dedent(prepare).strip()).replace("CALLBACK", _callbacks(callback)))
    return path


def _callbacks(callback: str) -> str:
    return f"from calibrate import PeakcastCallback\ncallbacks = [{callback}]" if callback else "callbacks = None"
