"""What ``accelerate launch`` adds to a training's own arguments: by its options, or by its configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.errors import InputError
from predictor.files import read_mapping
from predictor.readers.fields import beside
from predictor.suggest import show

SECTION = "deepspeed_config"
STAGE, FILE = "zero_stage", "deepspeed_config_file"
OPTIONS = ("config_file", "mixed_precision", STAGE, FILE, "offload_optimizer_device", "offload_param_device",
           "gradient_accumulation_steps", "gradient_clipping")
"""Of the launcher: what says more than how many processes start."""
FSDP = {"version": "1 (accelerate's default)", "auto_wrap_policy": "NO_WRAP (accelerate's default)"}
"""What the launcher takes where neither options nor file say it (1.15, commands/launch.py, utils/dataclasses.py):
neither is predicted."""


def arguments(options: dict[str, str], given: Mapping[str, Any], name: str,
              script: str | None = None) -> dict[str, tuple[Any, str]]:
    """Training arguments that the launcher decides, each with what says so; ``options`` get what only the file says.

    A DeepSpeed section is what accelerate makes of it (1.15, utils/dataclasses.py, ``DeepSpeedPlugin``); mixed
    precision and FSDP count where the training's own arguments say nothing of them.

    Raises:
        InputError: no such file, beside the ``script`` or above it either; other parallelism, or fp8.
    """
    path = options.get("config_file")
    found_at = beside(path, script) if path else None
    if path and not found_at:
        raise InputError(f"{name}: --config_file names {show(path, 200)}, and there is no such file")
    document = read_mapping(found_at, "accelerate's configuration") if found_at else {}
    where = f"--config_file {path}" if path else "accelerate launch"
    kind = "FSDP" if "use_fsdp" in options else str(document.get("distributed_type", "")).upper()
    for key in ("megatron_lm_config", "parallelism_config"):
        if document.get(key) or kind == "MEGATRON_LM":
            raise InputError(f"{path or name}: {key} is not predicted: use FSDP of version 2, or DeepSpeed")
    if "num_processes" in document:
        options.setdefault("num_processes", str(document["num_processes"]))
    found: dict[str, tuple[Any, str]] = {}
    precision = options.get("mixed_precision", document.get("mixed_precision"))
    if precision in ("bf16", "fp16") and not {"bf16", "fp16"} & given.keys():
        found[precision] = ("true", f"{where}: mixed_precision")
    elif precision == "fp8":
        raise InputError(f"{path or name}: mixed_precision fp8 is not predicted: use bf16")
    compiled = options.get("dynamo_backend", _section(document, "dynamo_config").get("dynamo_backend", "NO"))
    if str(compiled).upper() != "NO":
        found["torch_compile"] = ("true", f"{where}: dynamo_backend")
    if kind == "FSDP" and "fsdp" not in given:
        said = _section(document, "fsdp_config") | {key: options[key] for key in options if key.startswith("fsdp_")}
        asked = FSDP | {key.removeprefix("fsdp_"): item for key, item in said.items()}
        found |= {"fsdp": ("full_shard", f"{where}: distributed_type"), "fsdp_config": (asked, f"{where}: fsdp_config")}
    section = _section(document, SECTION) if kind == "DEEPSPEED" else {}
    section |= {key: options[key] for key in (STAGE, FILE, "offload_optimizer_device", "offload_param_device")
                if key in options and ("use_deepspeed" in options or section)}
    if section and "deepspeed" not in given:
        found["deepspeed"] = (section.get(FILE) or _config(section, path or name), f"{where}: {SECTION}")
    return found


def _section(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = document.get(key)
    return {str(name): item for name, item in found.items()} if isinstance(found, Mapping) else {}


def _config(section: Mapping[str, Any], name: str) -> dict[str, Any]:
    stage = str(section.get(STAGE, 2))
    if stage not in ("0", "1", "2", "3"):
        raise InputError(f"{name}: {SECTION}: {STAGE} is {show(stage)}: 0 to 3 are stages")
    zero: dict[str, Any] = {"stage": int(stage)}
    for theirs, ours in (("offload_optimizer_device", "offload_optimizer"), ("offload_param_device", "offload_param")):
        zero[ours] = {"device": str(section.get(theirs, "none")).lower()}
    given = {key: section.get(key, "auto") for key in ("gradient_accumulation_steps", "gradient_clipping")}
    return {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "zero_optimization": zero} | given
