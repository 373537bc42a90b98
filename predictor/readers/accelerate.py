"""Reads the training arguments that ``accelerate launch`` sets, by its options or its configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from predictor.common import numbers
from predictor.common.errors import InputError, NotPredicted
from predictor.common.files import read_mapping
from predictor.common.suggestions import nearest, quoted, shortened
from predictor.readers import launchers
from predictor.readers.accelerate_launch import SECTION, Launch, section_of
from predictor.readers.fields import OFF
from predictor.readers.user_input import UserInput, beside

STAGE, FILE = "zero_stage", "deepspeed_config_file"
DECIDED = (STAGE, "offload_optimizer_device", "offload_param_device", "gradient_accumulation_steps",
           "gradient_clipping")
"""Keys that accelerate builds a DeepSpeed config from. Beside a config file accelerate rejects them."""
FILTERS = ("deepspeed_inclusion_filter", "deepspeed_exclusion_filter")
"""Keys that accelerate passes to the deepspeed launcher, for several machines."""
OPTIONS = ("config_file", "mixed_precision", "dynamo_backend", FILE, *DECIDED)
"""Options of the launcher that change more than the number of processes."""
DISTRIBUTED_TYPES = {"use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP", "multi_gpu": "MULTI_GPU",
         "use_megatron_lm": "MEGATRON_LM", "tpu": "XLA"}
"""Option -> its ``distributed_type``, which overrides that of the file."""
EXCLUSIVE = ("cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp")
"""Options of which accelerate accepts only one (1.15, commands/launch.py, ``_validate_launch_command``)."""
PREDICTED = ("NO", "MULTI_GPU", "DEEPSPEED", "FSDP")
PRECISIONS = ("no", "bf16", "fp16")
NO_CONFIGS: Mapping[str, Mapping[str, Any]] = {}


def launch(options: dict[str, str], name: str, script: str | None = None,
           known: Mapping[str, Mapping[str, Any]] = NO_CONFIGS) -> Launch:
    """Reads the launcher's options and its configuration file, which may be one of ``known`` by its name.

    The number of processes in the file is added to ``options``.

    Raises:
        InputError: the file does not exist or has an unknown key, options exclude each other, or the parallelism is not
            predicted.
    """
    exclusive = [f"--{option}" for option in EXCLUSIVE if option in options]
    if len(exclusive) > 1:
        raise InputError(f"{name}: {exclusive[0]} and {exclusive[1]} are both given, and accelerate stops at that: "
                         "keep one")
    if "multi_gpu" in options and options.get("num_processes") in ("0", "1"):
        raise InputError(f"{name}: --multi_gpu is given with --num_processes {options['num_processes']}, and "
                         "accelerate stops at fewer than 2: leave it out")
    path = options.get("config_file")
    found_at = beside(path, script) if path else None
    if path and not found_at and path not in known:
        raise InputError(f"{name}: --config_file names {quoted(path, 200)}, and there is no such file")
    document = _file(found_at) if found_at else known.get(path or "", {})
    where, blamed = f"--config_file {path}" if path else "accelerate launch", path or name
    distributed_type = _distributed_type(options, document, blamed)
    if distributed_type == "NO":
        options |= {"num_processes": "1", launchers.BY: f"{where}: distributed_type NO: num_processes"}
    elif document.get("num_processes") is not None and "num_processes" not in options:
        options |= {"num_processes": str(document["num_processes"]), launchers.BY: f"{where}: num_processes"}
    return Launch(options, document, distributed_type, where, blamed)


def launched(user_input: UserInput) -> UserInput:
    """Adds the training arguments that accelerate's launcher decides."""
    decided = arguments(user_input.launch, user_input.values) if user_input.launch else {}
    return replace(user_input, values={**user_input.values, **{key: item for key, (item, _) in decided.items()}},
                   launched_with={key: by for key, (_, by) in decided.items()},
                   besides=user_input.besides | decided.keys())


def arguments(launched: Launch, own: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """Training arguments that the launcher sets, each with its origin.

    ``own`` are the training's own arguments, from flags and file. Those that are on override the launcher's
    (transformers 5.17, training_args.py, ``__post_init__``).

    A DeepSpeed section becomes a config as in accelerate (1.15, utils/dataclasses.py, ``DeepSpeedPlugin``).

    Raises:
        InputError: an invalid value, or fp8.
    """
    options, document, where, blamed = launched.options, launched.document, launched.where, launched.blamed
    switched_on = {key.replace("-", "_") for key, item in own.items()
                   if item not in OFF and str(item).lower() != "false"}
    decided: dict[str, tuple[Any, str]] = {}
    precision = str(options.get("mixed_precision") or document.get("mixed_precision") or (
        "fp16" if document.get("fp16") else "no")).lower()
    if precision not in PRECISIONS:
        raise NotPredicted(f"{blamed}: mixed_precision {quoted(precision)[1:-1]} is not predicted: use bf16")
    if precision != "no" and not {"bf16", "fp16"} & switched_on:
        decided[precision] = ("true", f"{where}: mixed_precision")
    compiled = options.get("dynamo_backend", section_of(document, "dynamo_config", blamed).get(
        "backend", document.get("dynamo_backend")))
    if str(compiled or "no").lower() != "no":
        decided["torch_compile"] = ("true", f"{where}: dynamo_backend")
    if launched.fsdp and "fsdp" not in switched_on:
        decided |= {"fsdp": ("full_shard", f"{where}: distributed_type"),
                  "fsdp_config": (launched.fsdp, f"{where}: fsdp_config")}
    if launched.distributed_type == "DEEPSPEED" and "deepspeed" not in switched_on:
        section = {key: item for key, item in section_of(document, SECTION, blamed).items() if item is not None}
        section |= {key: options[key] for key in (FILE, *DECIDED, *FILTERS) if key in options}
        several = str(options.get("num_machines", document.get("num_machines", 1))) != "1"
        for key in FILTERS if several else ():
            if section.get(key):
                raise InputError(f"{blamed}: {key} is not read: leave it out, and give as num_processes what it leaves")
        decided["deepspeed"] = (_config(section, blamed), f"{where}: {SECTION}")
    return decided


def _file(path: str) -> dict[str, Any]:
    """Reads accelerate's configuration file and rejects keys that accelerate does not have."""
    document, known = read_mapping(path, "accelerate's configuration"), launchers.table()["accelerate's file"]
    for section in known:
        inner = section_of(document, section, path) if section else document
        names = " ".join(known[section]).split()
        for key in inner:
            if key not in names:
                where = f"{path}: {section}" if section else path
                raise InputError(f"{where}: {shortened(str(key), 60)}: {launchers.release('accelerate')} has no such "
                                 f"key{nearest(key, names)}")
    return document


def _distributed_type(options: Mapping[str, str], document: Mapping[str, Any], blamed: str) -> str:
    """The ``distributed_type`` from the options, or else from the file. YAML reads a bare NO as false."""
    chosen = next((name for option, name in DISTRIBUTED_TYPES.items() if option in options),
                  str(document.get("distributed_type", "MULTI_GPU") or "NO").upper())
    if chosen not in PREDICTED and chosen != "MEGATRON_LM":
        raise NotPredicted(f"{blamed}: distributed_type {quoted(chosen)[1:-1]} is not predicted: of accelerate's, "
                           f"{', '.join(PREDICTED)} are{nearest(chosen, PREDICTED)}")
    for key in ("megatron_lm_config", "parallelism_config"):
        by_option = chosen == "MEGATRON_LM" if key == "megatron_lm_config" else "use_parallelism_config" in options
        if document.get(key) or by_option:
            raise NotPredicted(f"{blamed}: {key} is not predicted: use FSDP of version 2, or DeepSpeed")
    for key, item in (*options.items(), *document.items()):
        if key in ("cpu", "use_cpu") and item in ("", True, "true"):
            raise InputError(f"{blamed}: {key}: a training on the CPU takes no GPU memory")
    if document.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        raise InputError(f"{blamed}: compute_environment {quoted(document['compute_environment'])} is not read: give "
                         "the command that is run there")
    return chosen


def _config(section: Mapping[str, Any], blamed: str) -> dict[str, Any] | str:
    """The path of the DeepSpeed config that a section names, or the config that its keys describe."""
    if section.get(FILE):
        both = next((key for key in DECIDED if key in section), None)
        if both:
            raise InputError(f"{blamed}: {SECTION}: {both} is given beside {FILE}, which sets it: leave it out")
        return section[FILE]
    stage = str(section.get(STAGE, 2))
    if stage not in ("0", "1", "2", "3"):
        raise InputError(f"{blamed}: {SECTION}: {STAGE} is {quoted(stage)}: 0 to 3 are stages")
    zero: dict[str, Any] = {"stage": int(stage)}
    for theirs, ours in (("offload_optimizer_device", "offload_optimizer"), ("offload_param_device", "offload_param")):
        zero[ours] = {"device": str(section.get(theirs, "none")).lower()}
    written = {"gradient_accumulation_steps": _number(section, "gradient_accumulation_steps", True, blamed)}
    clipping = _number(section, "gradient_clipping", False, blamed)
    written |= {"gradient_clipping": clipping} if clipping else {}
    return {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "zero_optimization": zero} | written


def _number(section: Mapping[str, Any], key: str, is_whole: bool, blamed: str) -> float | str:
    """A number of the section, or "auto". The launcher passes numbers on as text, which accelerate reads."""
    item = section.get(key, "auto")
    if item == "auto":
        return item
    number = numbers.finite(item)
    if number is None or is_whole and not number.is_integer():
        kind = "a whole number" if is_whole else "a number"
        raise InputError(f"{blamed}: {SECTION}: {key} is {quoted(item)}: {kind} is needed, or auto")
    return int(number) if is_whole else number
