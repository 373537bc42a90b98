"""Rules that several formats share, because their frameworks all train with Hugging Face's Trainer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import read_mapping
from predictor.common.suggestions import nearest, quoted
from predictor.common.value_types import freeze
from predictor.model import hub
from predictor.model.model_config import Modality
from predictor.readers import deepspeed, fsdp, picture_sizes
from predictor.readers.reading import Reading
from predictor.workload import compared
from predictor.workload.engines import ENGINES, name_of
from predictor.workload.keys import KEYS, Keys

ATTENTION = {"flash_attn": "flash_attention_2", "fa2": "flash_attention_2", "disabled": "eager"}


def model(reading: Reading, name: str) -> str:
    """Sets the model: the known name for a hub id, or the model that an option names; empty without a model."""
    if name in reading:
        known = hub.known(reading[name])
        reading.put("model", known, name, because="" if known == reading[name] else reading[name])
    return reading.model


def attention(reading: Reading, implementation: str | None, *names: str, default: str = "sdpa") -> None:
    """Sets ``attn_implementation`` from a framework's name for it."""
    known = ATTENTION.get(implementation or "", implementation)
    reading.put("attn_implementation", known or default, *names)


def change(reading: Reading, key: str, item: Any, *names: str, because: str = "") -> None:
    """Changes the value of a key that was already set; ``names`` are added to its origin."""
    row = replace(reading.rows[key], value=freeze(item), because=because)
    for name in names:
        row = row.also_from(reading.input.name, reading.called(name))
    reading.workload[key], reading.rows[key] = item, row


def checkpointing(reading: Reading, *, reentrant: bool = False, because: str = "") -> None:
    """Sets ``gradient_checkpointing_kwargs`` if gradient checkpointing is on."""
    if not reading.workload["gradient_checkpointing"]:
        return
    known = ("use_reentrant", "every_n_layers", "offload")
    settings = dict(reading["gradient_checkpointing_kwargs"] or {})
    for key in [key for key in settings if key in ("preserve_rng_state", "determinism_check", "debug", "early_stop")]:
        del settings[key]  # they concern random states and shape checks only
    for key in settings:
        if key not in known:
            raise reading.wrong("gradient_checkpointing_kwargs", f"has the key {quoted(key)}: known are "
                                                                 f"{', '.join(known)}")
    reading.put("gradient_checkpointing_kwargs", {"use_reentrant": reentrant} | settings,
                "gradient_checkpointing_kwargs", because=because)


def engine(reading: Reading, name: str, config: Any = None, unused: bool | None = None) -> None:
    """Sets the engine: DeepSpeed if a config is named, FSDP2 for ``fsdp``, DDP on several GPUs, else plain PyTorch.

    ``unused`` is the framework's default for ``ddp_find_unused_parameters``; None: the Trainer's default.
    """
    _accelerator(reading)
    config = config or reading["deepspeed"]
    sharded = bool(reading["fsdp"])
    if config is not None and sharded:
        raise reading.wrong("fsdp", "is given, and so is deepspeed: keep one")
    if config is not None:
        path = reading.file("deepspeed") if isinstance(config, str) else config
        deepspeed.use(reading, path, "deepspeed", model=name)
        return
    reading.put("max_grad_norm", reading["max_grad_norm"], "max_grad_norm")
    if sharded:
        fsdp.use(reading)
    elif reading.world_size > 1:
        reading.put("engine", "ddp", because=f"{reading.world_size} GPUs without DeepSpeed and FSDP")
        names = {"bucket_cap_mb": "ddp_bucket_cap_mb", "static_graph": "ddp_static_graph"}
        given = {key: reading[theirs] for key, theirs in names.items() if theirs in reading and reading[theirs]}
        key = "ddp_find_unused_parameters"
        if unused is None:
            unused = finds_unused_parameters(reading.workload["gradient_checkpointing"], "lora" in reading.workload)
        unused = unused if reading[key] is None else reading[key]
        if given or unused:
            settings = given | ({"find_unused_parameters": True} if unused else {})
            reading.put("ddp", settings, *(names[key] for key in given))
        reading.record("ddp.find_unused_parameters", unused, key)


ACCELERATOR = {
    "split_batches": "GPUs share the batch: leave it out, and give as per_device_train_batch_size what each gets",
    "use_configured_state": "what the script made before is not known: leave it out",
    "num_steps": "give gradient_accumulation_steps",
    "sync_each_batch": "gradients are predicted to be reduced in the last micro-batch of a step: leave it out",
}
"""Key of ``accelerator_config`` that is rejected while it is on -> what to do instead."""
ACCELERATORS = (*ACCELERATOR, "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking",
                "adjust_scheduler", "sync_with_dataloader")
"""All keys of ``accelerator_config`` and of its ``gradient_accumulation_kwargs``."""


def _accelerator(reading: Reading) -> None:
    """Checks ``accelerator_config``, a path or its content (transformers 5.17, trainer_pt_utils.py,
    ``AcceleratorConfig``)."""
    config = reading["accelerator_config"] if "accelerator_config" in reading.form.fields else None
    if isinstance(config, str):
        config = read_mapping(reading.file("accelerator_config"), "accelerator_config")
    keys = dict(config or {})
    inner = keys.pop("gradient_accumulation_kwargs", None) or {}
    if not isinstance(inner, Mapping):
        raise reading.wrong("accelerator_config", f"has gradient_accumulation_kwargs {quoted(inner)}: a section of "
                                                  "keys is needed")
    keys |= inner
    for key, item in keys.items():
        if key not in ACCELERATORS:
            raise reading.wrong("accelerator_config", f"has the key {quoted(key)}, which accelerate has not"
                                                      f"{nearest(key, ACCELERATORS)}")
        if key in ACCELERATOR and item:
            raise reading.wrong("accelerator_config", f"has {key} {quoted(item)}: {ACCELERATOR[key]}")
    if keys.get("dispatch_batches"):
        reading.note("accelerator_config dispatch_batches: the first GPU holds the batches of all GPUs")


def finds_unused_parameters(checkpoints: bool, adapters: bool) -> bool:
    """The Trainer's default for ``ddp_find_unused_parameters`` (transformers 5.17, trainer.py,
    ``_build_accelerator_args``).

    Activation checkpointing turns it off, but not for peft's model, which is no ``PreTrainedModel``.
    """
    return adapters or not checkpoints


def together(reading: Reading) -> None:
    """Replaces combinations that were not compared by the nearest that was, and adds a note about it."""
    workload = reading.workload
    narrow = (workload.get("quantization", {"prepare": "trl"}).get("prepare") == "trl" or "deepspeed" in workload
              or workload.get("mixed_precision"))
    if not narrow and hub.parts(reading.model) and workload["attn_implementation"] == "flash_attention_2":
        change(reading, "attn_implementation", "sdpa")
        mask = ", with a mask of all pairs of tokens" if workload.get("padding") == "packed" else ""
        reading.note("flash_attention_2 in a tower that peft casts to fp32, where it runs only under autocast: "
                     f"predicted as PyTorch's own attention{mask}")
    flash = workload["attn_implementation"] == "flash_attention_2"
    if not workload.get("mixed_precision") or workload.get("engine") == "fsdp2":
        return
    only = [key for key in ("use_liger_kernel",) if workload.get(key)]
    only += ["padding packed"] if flash and workload.get("padding") == "packed" else []
    if only and workload["dtype"] == "bf16" == workload["mixed_precision"] and workload.get("engine") != "fsdp1":
        del workload["mixed_precision"], reading.rows["mixed_precision"]
        reading.note(f"autocast over bf16 weights, beside {' and '.join(only)}: left out", without_autocast)
        if workload.get("lora") and not workload.get("quantization"):
            change(reading, "lora", workload["lora"] | {"autocast_adapter_dtype": False},
                   because="autocast would compute in bf16")
            reading.note("adapters: fp32 in the training, bf16 in the prediction", without_autocast)
    elif flash:
        change(reading, "attn_implementation", "sdpa")
        reading.put("sdpa_backend", "flash", because="flash_attention_2 under autocast")
        reading.note("flash_attention_2 under autocast: predicted as PyTorch's own flash kernel")


def without_autocast(workload: Keys) -> str | None:
    """Applies a note only to engines without DeepSpeed and FSDP, in bf16 without autocast (the ``of`` of a note)."""
    plain = workload.engine in ("torch", "ddp") and (workload.dtype, workload.mixed_precision) == ("bf16", "none")
    return "" if plain else None


def evaluation(reading: Reading, name: str, evaluating: bool, batch: str = "per_device_eval_batch_size") -> None:
    """Sets the evaluation's batch size if such a combination was compared; otherwise adds a note.

    Args:
        name: key that turns the evaluation on.
        evaluating: true if the training runs an evaluation.
        batch: key with the evaluation's batch size.
    """
    if not evaluating:
        return
    size, stage = reading[batch], reading.rows.get("deepspeed.zero_optimization.stage")
    if predicts_evaluation(reading.workload, None if stage is None else stage.value):
        reading.put("per_device_eval_batch_size", size, name, batch)
    else:
        reading.note(f"{name} {reading[name]}: {evaluation_left_out(size)}")


def asks_for_evaluation(strategy: str, do_eval: bool, on_start: bool) -> bool:
    """True if the Trainer, or an example script around it, runs an evaluation with these arguments."""
    return strategy != "no" or do_eval or on_start


def predicts_evaluation(keys: Mapping[str, Any], zero_stage: int | None) -> bool:
    """True if an evaluation with these keys of a workload is predicted; ``zero_stage`` None: without DeepSpeed."""
    used = keys.get("engine", "torch") if zero_stage is None else name_of("deepspeed", zero_stage)
    return ENGINES[used].whole and compared.goes_with("per_device_eval_batch_size", keys)


def evaluation_left_out(size: int) -> str:
    """The note about an evaluation that is not predicted; ``size`` is its batch size."""
    return f"the evaluation of batches of {size} (where it can be predicted: per_device_eval_batch_size)"


@dataclass(frozen=True)
class LoraKeys:
    """A framework's names for the settings of LoRA.

    Attributes:
        alpha: a key, or the number if the framework derives it from other keys.
        extra: key with further modules to train, if the framework has one.
        parameters: key with parameters that get adapters, if the framework has one.
    """

    r: str
    alpha: str | float
    dropout: str
    extra: str = ""
    parameters: str = ""

    @property
    def names(self) -> list[str]:
        """The framework's keys."""
        keys = (self.r, self.alpha, self.dropout, self.extra, self.parameters)
        return [key for key in keys if isinstance(key, str) and key]


def lora(reading: Reading, keys: LoraKeys, *, targets: Any, by: tuple[str, ...], bias: str = "none") -> None:
    """Sets the ``lora`` key. Without ``targets`` the language model's linear layers get adapters."""
    settings: dict[str, Any] = {
        "r": reading[keys.r], "lora_alpha": reading[keys.alpha] if isinstance(keys.alpha, str) else keys.alpha,
        "lora_dropout": reading[keys.dropout]}
    if targets:
        settings["target_modules"] = targets if isinstance(targets, str) else \
            targets[0] if tuple(targets) == ("all-linear",) else list(targets)
    if keys.extra and reading[keys.extra]:
        settings["modules_to_save"] = list(reading[keys.extra])
    if keys.parameters and reading[keys.parameters]:
        settings["target_parameters"] = list(reading[keys.parameters])
    settings |= {flag: True for flag in ("use_rslora", "use_dora") if flag in reading.form.fields and reading[flag]}
    settings |= {"bias": bias} if bias != "none" else {}
    reading.put("recipe", "lora", *by)
    reading.put("lora", settings, *keys.names, *by)


LINEAR = "q_proj|k_proj|v_proj|o_proj|out_proj|qkv|proj|gate_proj|up_proj|down_proj|fc1|fc2|linear_fc1|linear_fc2"
"""Names of the linear layers in known language models and towers."""


def parts_with_adapters(name: str, towers: bool, projector: bool, language: bool) -> str | None:
    """A regular expression for the linear layers of some parts of a model; None for the default, the language model."""
    model_parts = hub.parts(name)
    if model_parts is None or (language and not towers and not projector):
        return None
    inside = [model_parts.layers] * towers + [pattern.strip("*") for pattern in model_parts.language[:1]] * language
    expressions = [rf".*\b(?:{'|'.join(inside)})\..*\.(?:{LINEAR})"] if inside else []
    return "|".join(expressions + [rf".*\b{model_parts.aligner}"] * projector)


def freeze_projector(reading: Reading, name: str, *by: str) -> None:
    """Freezes the projector, which the recipe ``lora`` trains. Most frameworks do not train it unless it has adapters.
    """
    model_parts = hub.parts(name)
    targets = str((reading.workload.get("lora") or {}).get("target_modules", ""))
    if model_parts and any(part in targets for part in ("all-linear", "projector", "merger", "connector")):
        reading.note("norms of the projector, which has adapters: the prediction trains them")
    elif model_parts:
        reading.put("frozen", _present(name, model_parts.projector), *by, because="only adapters train")


def trained(reading: Reading, name: str, method: str, *, towers: str, projector: str, language: str) -> None:
    """Sets ``recipe`` and ``frozen`` from the keys that freeze parts; ``method`` is the key that turns adapters off."""
    by, parts = (towers, projector, language), hub.parts(name)
    frozen = [bool(reading[key]) for key in by]
    if parts is None:
        reading.put("recipe", "full", method, *by)
        return
    if all(frozen):
        raise reading.wrong(language, f"is on, and so are {towers} and {projector}: nothing is left to train")
    recipe = "full" if not frozen[0] else "pretrain" if frozen[2] else "finetune"
    reading.put("recipe", recipe, method, *by)
    left = {"full": (0, 1, 2), "finetune": (1,), "pretrain": ()}[recipe]
    patterns = sum(((parts.towers, parts.projector, parts.language)[part] for part in left if frozen[part]), ())
    if patterns:
        reading.put("frozen", _present(name, patterns), *by)


def _present(name: str, patterns: tuple[str, ...]) -> list[str]:
    """The patterns without that of the head, if its weight is tied to the embedding: the parameter has one name."""
    config = hub.config(name)
    assert config is not None  # the model has known parts, so it has a config
    text = config.document.get("text_config") or {}
    tied = config.document.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    return [pattern for pattern in patterns if pattern != "*lm_head*" or not tied]


def pictures(reading: Reading, name: str, pixels: int | None, *names: str,
             resize: picture_sizes.Resize | None = None) -> None:
    """Sets ``image_size`` to the largest square image of so many ``pixels``, if the model accepts any size.

    If an option gives the size of the pictures, it becomes what the framework makes of them.

    Args:
        pixels: not a number if the option ``image_size`` replaces it.
        resize: what the framework makes of a picture; None if it does not resize.
    """
    config = hub.config(name)
    given = reading.input.options.get("image_size")
    if given is not None and resize and config and config.kind is Modality.IMAGE_TEXT and \
            "video_frames" not in reading.input.options:
        _resized(reading, given, resize, *names)
        return
    if config is None or not isinstance(pixels, int) or config.kind is not Modality.IMAGE_TEXT or config.image_size:
        return
    side = math.isqrt(pixels)
    if not 1 <= side <= 16_384:
        raise InputError(f"{reading.place(names[0])} is {pixels}: pictures of 1 to {16_384**2:,} pixels are predicted")
    reading.put("image_size", side, *names, because="the largest square picture")


def _resized(reading: Reading, given: int | str, resize: picture_sizes.Resize, *names: str) -> None:
    """Sets ``image_size`` to what the framework makes of pictures of the sizes that an option gives."""
    sizes = [size.partition("x") for size in str(given).split(",")]
    value_type = KEYS["image_size"].metadata["kind"]
    made = value_type.check(",".join("{}x{}".format(*resize(int(height), int(width or height)))
                                     for height, _, width in sizes))
    if made != given:
        reading.put("image_size", made, *names, because=f"{given} of --image-size, as {reading.form.framework} "
                                                        "resizes pictures before the model's processor")
        reading.applied.add("image_size")
