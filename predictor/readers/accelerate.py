"""What ``accelerate launch`` adds to a training's own arguments: by its options, or by its configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import read_mapping
from predictor.common.suggestions import nearest, show
from predictor.readers import launchers
from predictor.readers.fields import OFF, beside

SECTION = "deepspeed_config"
STAGE, FILE = "zero_stage", "deepspeed_config_file"
DECIDED = (STAGE, "offload_optimizer_device", "offload_param_device", "gradient_accumulation_steps",
           "gradient_clipping")
"""What makes a DeepSpeed config where no file is named, beside which accelerate stops at them."""
FILTERS = ("deepspeed_inclusion_filter", "deepspeed_exclusion_filter")
"""What goes to the deepspeed launcher, which starts the processes of several machines."""
OPTIONS = ("config_file", "mixed_precision", "dynamo_backend", FILE, *DECIDED)
"""Of the launcher: what says more than how many processes start."""
KINDS = {"use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP", "multi_gpu": "MULTI_GPU",
         "use_megatron_lm": "MEGATRON_LM", "tpu": "XLA"}
"""Option -> the ``distributed_type`` that it stands for, before that of the file."""
ALONE = ("cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp")
"""Options of which accelerate takes one (1.15, commands/launch.py, ``_validate_launch_command``)."""
PREDICTED = ("NO", "MULTI_GPU", "DEEPSPEED", "FSDP")
PRECISIONS = ("no", "bf16", "fp16")
FSDP = {"version": "1 (accelerate's default)", "auto_wrap_policy": "NO_WRAP (accelerate's default)"}
"""What the launcher takes where neither options nor file say it (1.15, commands/launch.py, utils/dataclasses.py):
neither is predicted."""


@dataclass(frozen=True)
class Launch:
    """Its options and its configuration file, how it trains by them, and what messages name."""

    options: Mapping[str, str]
    document: Mapping[str, Any]
    kind: str
    where: str
    blamed: str

    @property
    def fsdp(self) -> dict[str, Any]:
        """What it says of FSDP, where that is how it trains, whatever the training's own arguments say."""
        said = {key.removeprefix("fsdp_"): item for key, item in self.options.items() if key.startswith("fsdp_")}
        return FSDP | _section(self.document, "fsdp_config", self.blamed) | said if self.kind == "FSDP" else {}


def launch(options: dict[str, str], name: str, script: str | None = None) -> Launch:
    """What is launched; ``options`` get the number of processes that only the file says.

    Raises:
        InputError: no such file, or a key that it may not have; options that exclude each other; other parallelism.
    """
    asked = [f"--{option}" for option in ALONE if option in options]
    if len(asked) > 1:
        raise InputError(f"{name}: {asked[0]} and {asked[1]} are both given, and accelerate stops at that: keep one")
    if "multi_gpu" in options and options.get("num_processes") in ("0", "1"):
        raise InputError(f"{name}: --multi_gpu is given with --num_processes {options['num_processes']}, and "
                         "accelerate stops at fewer than 2: leave it out")
    path = options.get("config_file")
    found_at = beside(path, script) if path else None
    if path and not found_at:
        raise InputError(f"{name}: --config_file names {show(path, 200)}, and there is no such file")
    document = _file(found_at) if found_at else {}
    where, blamed = f"--config_file {path}" if path else "accelerate launch", path or name
    kind = _kind(options, document, blamed)
    if kind == "NO":
        options |= {"num_processes": "1", launchers.BY: f"{where}: distributed_type NO: num_processes"}
    elif document.get("num_processes") is not None and "num_processes" not in options:
        options |= {"num_processes": str(document["num_processes"]), launchers.BY: f"{where}: num_processes"}
    return Launch(options, document, kind, where, blamed)


def arguments(launched: Launch, given: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """Training arguments that the launcher decides, each with what says so; ``given`` are the training's own, of its
    flags and its file: to those that are on, the launcher's of the same yield (transformers 5.17, training_args.py,
    ``__post_init__``).

    A DeepSpeed section is what accelerate makes of it (1.15, utils/dataclasses.py, ``DeepSpeedPlugin``).

    Raises:
        InputError: a value that it may not have, or fp8.
    """
    options, document, where, blamed = launched.options, launched.document, launched.where, launched.blamed
    given = {key.replace("-", "_") for key, item in given.items() if item not in OFF and str(item).lower() != "false"}
    found: dict[str, tuple[Any, str]] = {}
    precision = str(options.get("mixed_precision") or document.get("mixed_precision") or (
        "fp16" if document.get("fp16") else "no")).lower()
    if precision not in PRECISIONS:
        raise InputError(f"{blamed}: mixed_precision {precision} is not predicted: use bf16")
    if precision != "no" and not {"bf16", "fp16"} & given:
        found[precision] = ("true", f"{where}: mixed_precision")
    compiled = options.get("dynamo_backend", _section(document, "dynamo_config", blamed).get(
        "backend", document.get("dynamo_backend")))
    if str(compiled or "no").lower() != "no":
        found["torch_compile"] = ("true", f"{where}: dynamo_backend")
    if launched.fsdp and "fsdp" not in given:
        found |= {"fsdp": ("full_shard", f"{where}: distributed_type"),
                  "fsdp_config": (launched.fsdp, f"{where}: fsdp_config")}
    if launched.kind == "DEEPSPEED" and "deepspeed" not in given:
        section = {key: item for key, item in _section(document, SECTION, blamed).items() if item is not None}
        section |= {key: options[key] for key in (FILE, *DECIDED, *FILTERS) if key in options}
        several = str(options.get("num_machines", document.get("num_machines", 1))) != "1"
        for key in FILTERS if several else ():
            if section.get(key):
                raise InputError(f"{blamed}: {key} is not read: leave it out, and give as num_processes what it leaves")
        found["deepspeed"] = (_config(section, blamed), f"{where}: {SECTION}")
    return found


def _file(path: str) -> dict[str, Any]:
    """Accelerate's configuration, which has the keys that accelerate knows."""
    document, known = read_mapping(path, "accelerate's configuration"), launchers.table()["accelerate's file"]
    for section in known:
        inner = _section(document, section, path) if section else document
        names = " ".join(known[section]).split()
        for key in inner:
            if key not in names:
                where = f"{path}: {section}" if section else path
                raise InputError(f"{where}: {key}: {launchers.release('accelerate')} has no such key"
                                 f"{nearest(key, names)}")
    return document


def _kind(options: Mapping[str, str], document: Mapping[str, Any], blamed: str) -> str:
    """How it trains, by the options or else by the file; YAML's bare NO is false."""
    kind = next((kind for option, kind in KINDS.items() if option in options),
                str(document.get("distributed_type", "MULTI_GPU") or "NO").upper())
    if kind not in PREDICTED and kind != "MEGATRON_LM":
        raise InputError(f"{blamed}: distributed_type {kind} is not predicted: of accelerate's, {', '.join(PREDICTED)} "
                         f"are{nearest(kind, PREDICTED)}")
    for key in ("megatron_lm_config", "parallelism_config"):
        asked = kind == "MEGATRON_LM" if key == "megatron_lm_config" else "use_parallelism_config" in options
        if document.get(key) or asked:
            raise InputError(f"{blamed}: {key} is not predicted: use FSDP of version 2, or DeepSpeed")
    for key, item in (*options.items(), *document.items()):
        if key in ("cpu", "use_cpu") and item in ("", True, "true"):
            raise InputError(f"{blamed}: {key}: a training on the CPU takes no GPU memory")
    if document.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        raise InputError(f"{blamed}: compute_environment {show(document['compute_environment'])} is not read: give the "
                         "command that is run there")
    return kind


def _section(document: Mapping[str, Any], key: str, blamed: str) -> dict[str, Any]:
    """Its keys without the prefix that they may have; those of DeepSpeed's have none."""
    found = document.get(key) or {}
    if not isinstance(found, Mapping):
        raise InputError(f"{blamed}: {key} is {show(found)}: a section of keys is needed")
    prefixes = (f"{key}_", key.removesuffix("config")) if key != SECTION else ()
    return {next((name.removeprefix(one) for one in prefixes if name.startswith(one)), name): item
            for name, item in ((str(name), item) for name, item in found.items())}


def _config(section: Mapping[str, Any], blamed: str) -> dict[str, Any] | str:
    """The DeepSpeed config that a section names or makes."""
    if section.get(FILE):
        both = next((key for key in DECIDED if key in section), None)
        if both:
            raise InputError(f"{blamed}: {SECTION}: {both} is given beside {FILE}, which says it: leave it out")
        return section[FILE]
    stage = str(section.get(STAGE, 2))
    if stage not in ("0", "1", "2", "3"):
        raise InputError(f"{blamed}: {SECTION}: {STAGE} is {show(stage)}: 0 to 3 are stages")
    zero: dict[str, Any] = {"stage": int(stage)}
    for theirs, ours in (("offload_optimizer_device", "offload_optimizer"), ("offload_param_device", "offload_param")):
        zero[ours] = {"device": str(section.get(theirs, "none")).lower()}
    given = {"gradient_accumulation_steps": _number(section, "gradient_accumulation_steps", int, blamed)}
    clipping = _number(section, "gradient_clipping", float, blamed)
    given |= {"gradient_clipping": clipping} if clipping else {}
    return {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "zero_optimization": zero} | given


def _number(section: Mapping[str, Any], key: str, kind: type, blamed: str) -> float | str:
    given = section.get(key, "auto")
    try:
        return given if given == "auto" else kind(given)
    except (TypeError, ValueError):
        raise InputError(f"{blamed}: {SECTION}: {key} is {show(given)}: a number is needed, or auto") from None
