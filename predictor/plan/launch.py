"""Names of a configuration's launch files, and the arguments for Hugging Face's Trainer."""

from __future__ import annotations

import fnmatch
import re
from typing import Any

from predictor.common.value_types import thaw
from predictor.events.model_facts import ModelFacts
from predictor.model.lora import ADAPTERS, COPIED
from predictor.workload.workload import Workload

CONFIG, ARGUMENTS, WORKLOAD = "ds_config.json", "training_arguments.json", "workload.json"
FILES = {CONFIG, ARGUMENTS, WORKLOAD}
"""Names of all files that a plan can write."""


def no_arguments(workload: Workload) -> str:
    """The reason why the Trainer would run another job than this one; empty if it runs this one.

    Under FSDP2 accelerate 1.15 wraps the last norm and the head as one unit, casts trained parameters to fp32, and runs
    forward under autocast with fp32 outputs (utils/fsdp_utils.py, ``fsdp2_prepare_model``; accelerator.py,
    ``prepare_model``). It does not support tensor parallelism with plain data parallelism.
    """
    if workload.data_parallel_size > 1 < workload.tensor_parallel_size and not workload.autotp:
        return ("no arguments for Hugging Face's Trainer: accelerate does not support tensor parallelism with plain "
                "data parallelism: the plan is for PyTorch's DistributedDataParallel(model, device_mesh=mesh[\"dp\"])")
    if workload.engine != "fsdp2":
        return ""
    return ("no arguments for Hugging Face's Trainer: its FSDP2 (accelerate's units, autocast, outputs of fp32) is "
            "another job than this one, PyTorch's own fully_shard")


def frozen(facts: ModelFacts) -> tuple[str, ...]:
    """Paths of modules that the training script has to freeze, in the notation of the key ``frozen``.

    They cover all frozen parameters, except those that peft freezes when it adds adapters.
    """
    names = {parameter.name: parameter.trainable for parameter in facts.parameters if not parameter.buffer}
    adapted = any(map(_is_adapter, names))
    return _paths([name for name, trains in names.items() if not trains and (not adapted or _is_adapter(name))],
                  {name for name, trains in names.items() if trains})


def unfrozen(facts: ModelFacts, bias: str) -> tuple[str, ...]:
    """Paths of modules that train beside the adapters although peft freezes them, in the notation of the key
    ``trainable``.

    Args:
        bias: ``bias`` of peft's ``LoraConfig``: the biases that peft leaves trainable.
    """
    names = {parameter.name: parameter.trainable for parameter in facts.parameters if not parameter.buffer}
    wanted = [name for name, trains in names.items() if trains and not _is_adapter(name)
              and (bias == "none" or not name.endswith(".bias"))]
    return _paths(wanted, {name for name, trains in names.items() if not trains})


def _is_adapter(name: str) -> bool:
    return ADAPTERS in name or COPIED in name


def _paths(wanted: list[str], others: set[str]) -> tuple[str, ...]:
    """The shortest paths that cover all wanted names and none of the others."""
    kept = {".".join(parts[:end]) for parts in (name.split(".") for name in others) for end in range(len(parts) + 1)}
    paths, covering = dict[str, None](), dict[str, bool]()
    for parts in (name.split(".") for name in wanted):
        path = next(path for path in (".".join(parts[:end + 1]) for end in range(len(parts))) if path not in kept)
        pattern = re.sub(r"(?<=\.)\d+(?=\.)", "*", path)  # a pattern for all layers, unless it covers others
        if pattern not in covering:
            covering[pattern] = any(fnmatch.filter(others, pattern + end) for end in ("", ".*"))
        paths[path if covering[pattern] else pattern] = None
    return tuple(paths)


def training_arguments(workload: Workload) -> dict[str, Any]:
    """Arguments that ``HfArgumentParser`` reads into ``TrainingArguments`` (transformers 5)."""
    computes = workload.computes_in if workload.engine == "deepspeed" else workload.mixed_precision
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": workload.per_device_train_batch_size,
        "gradient_accumulation_steps": workload.gradient_accumulation_steps,
        "gradient_checkpointing": workload.gradient_checkpointing,
        "optim": workload.optim, "max_grad_norm": workload.max_grad_norm,
        "bf16": computes == "bf16", "fp16": computes == "fp16"}
    if workload.gradient_checkpointing:
        arguments["gradient_checkpointing_kwargs"] = thaw(workload.gradient_checkpointing_kwargs)
    if workload.use_liger_kernel:
        arguments["use_liger_kernel"] = True
    if workload.engine == "deepspeed":
        arguments["deepspeed"] = CONFIG
    return arguments


def command_line(workload: Workload) -> str:
    """The arguments of :func:`training_arguments` as command line options."""
    import json
    import shlex

    words = []
    for name, value in training_arguments(workload).items():
        if value is False:
            continue
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        words += [f"--{name}", shlex.quote(text)]
    return " ".join(words)
