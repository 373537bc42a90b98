"""Rules that several frameworks share, as all of them train with Hugging Face's Trainer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import read_mapping
from predictor.common.suggestions import nearest, show
from predictor.common.value_types import freeze
from predictor.model import hub
from predictor.model.model_config import Kind
from predictor.readers import deepspeed, fsdp
from predictor.readers.configuration import Reading
from predictor.workload import compared
from predictor.workload.engines import ENGINES, name_of
from predictor.workload.workload import Workload

ATTENTION = {"flash_attn": "flash_attention_2", "fa2": "flash_attention_2", "disabled": "eager"}


def model(reading: Reading, name: str) -> str:
    """The model that a hub id means, or an option of ours names; empty where none is named."""
    if name in reading:
        found = hub.known(reading[name])
        reading.put("model", found, name, because="" if found == reading[name] else reading[name])
    return reading.model


def attention(reading: Reading, wanted: str | None, *names: str, default: str = "sdpa") -> None:
    """``attn_implementation`` by whatever name."""
    found = ATTENTION.get(wanted or "", wanted)
    reading.put("attn_implementation", found or default, *names)


def change(reading: Reading, key: str, item: Any, *names: str, because: str = "") -> None:
    """Another value of a key, said by what said it before, and by these keys besides."""
    row = replace(reading.rows[key], value=freeze(item), because=because)
    for name in names:
        row = row.said_by(reading.given.name, reading.called(name))
    reading.workload[key], reading.rows[key] = item, row


def checkpointing(reading: Reading, *, reentrant: bool = False, because: str = "") -> None:
    """``gradient_checkpointing_kwargs``, which say nothing where it is off."""
    if not reading.workload["gradient_checkpointing"]:
        return
    known = ("use_reentrant", "every_n_layers", "offload")
    given = dict(reading["gradient_checkpointing_kwargs"] or {})
    for key in [key for key in given if key in ("preserve_rng_state", "determinism_check", "debug", "early_stop")]:
        del given[key]  # they keep generator states and check shapes
    for key in given:
        if key not in known:
            raise reading.wrong("gradient_checkpointing_kwargs", f"has the key {show(key)}: known are "
                                                                 f"{', '.join(known)}")
    reading.put("gradient_checkpointing_kwargs", {"use_reentrant": reentrant} | given, "gradient_checkpointing_kwargs",
                because=because)


def engine(reading: Reading, name: str, config: Any = None, unused: bool | None = None) -> None:
    """DeepSpeed if a config is named, FSDP2 if asked for, DDP on several GPUs, plain PyTorch on one; ``unused`` is
    what the framework makes of ``ddp_find_unused_parameters`` where it is not given; None leaves it to the Trainer."""
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
        asked = {"bucket_cap_mb": "ddp_bucket_cap_mb", "static_graph": "ddp_static_graph"}
        given = {key: reading[theirs] for key, theirs in asked.items() if theirs in reading and reading[theirs]}
        key = "ddp_find_unused_parameters"
        if unused is None:
            unused = finds_unused(reading.workload["gradient_checkpointing"], "lora" in reading.workload)
        unused = unused if reading[key] is None else reading[key]
        if given or unused:
            found = given | ({"find_unused_parameters": True} if unused else {})
            reading.put("ddp", found, *(asked[key] for key in given))
        reading.say("ddp.find_unused_parameters", unused, key)


ACCELERATOR = {
    "split_batches": "GPUs share the batch: leave it out, and give as per_device_train_batch_size what each gets",
    "use_configured_state": "what the script made before is not known: leave it out",
    "num_steps": "give gradient_accumulation_steps",
    "sync_each_batch": "gradients are predicted to be reduced in the last micro-batch of a step: leave it out",
}
"""What changes memory in a way that is not predicted, where it is on."""
ACCELERATORS = (*ACCELERATOR, "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking",
                "adjust_scheduler", "sync_with_dataloader")
"""Keys of ``accelerator_config`` and of its ``gradient_accumulation_kwargs``."""


def _accelerator(reading: Reading) -> None:
    """``accelerator_config``, a path or its content (transformers 5.17, trainer_pt_utils.py, ``AcceleratorConfig``)."""
    given = reading["accelerator_config"] if "accelerator_config" in reading.form.fields else None
    if isinstance(given, str):
        given = read_mapping(reading.file("accelerator_config"), "accelerator_config")
    keys = dict(given or {})
    keys |= keys.pop("gradient_accumulation_kwargs", None) or {}
    for key, item in keys.items():
        if key not in ACCELERATORS:
            raise reading.wrong("accelerator_config", f"has the key {show(key)}, which accelerate has not"
                                                      f"{nearest(key, ACCELERATORS)}")
        if key in ACCELERATOR and item:
            raise reading.wrong("accelerator_config", f"has {key} {show(item)}: {ACCELERATOR[key]}")
    if keys.get("dispatch_batches"):
        reading.note("accelerator_config dispatch_batches: the first GPU holds the batches of all")


def finds_unused(checkpoints: bool, adapters: bool) -> bool:
    """What the Trainer makes of ``ddp_find_unused_parameters`` where it is not given (transformers 5.17, trainer.py,
    ``_build_accelerator_args``): checkpoints turn it off, but not under peft's model, which is no ``PreTrainedModel``.
    """
    return adapters or not checkpoints


def together(reading: Reading) -> None:
    """Not everything was compared with every kernel: the nearest that was is predicted, and named."""
    workload = reading.workload
    narrow = workload.get("quantization", {"prepare": "trl"}).get("prepare") == "trl" or "deepspeed" in workload
    if not narrow and hub.parts(reading.model) and workload["attn_implementation"] == "flash_attention_2":
        change(reading, "attn_implementation", "sdpa")
        mask = ", with a mask of all pairs of tokens" if workload.get("padding") == "packed" else ""
        reading.note("flash_attention_2 in a tower that peft makes fp32, which runs under autocast alone: predicted as "
                     f"PyTorch's own attention{mask}")
    flash = workload["attn_implementation"] == "flash_attention_2"
    if not workload.get("mixed_precision") or workload.get("engine") == "fsdp2":
        return
    only = [key for key in ("use_liger_kernel", "quantization") if workload.get(key)]
    only += ["padding packed"] if flash and workload.get("padding") == "packed" else []
    if only and workload["dtype"] == "bf16" == workload["mixed_precision"]:
        del workload["mixed_precision"], reading.rows["mixed_precision"]
        reading.note(f"autocast over bf16 weights, beside {' and '.join(only)}: left out", without_autocast)
        if workload.get("lora") and not workload.get("quantization"):
            change(reading, "lora", workload["lora"] | {"autocast_adapter_dtype": False},
                   because="autocast would compute in bf16")
            reading.note("adapters: fp32 in the training, bf16 here", without_autocast)
    elif flash:
        change(reading, "attn_implementation", "sdpa")
        reading.put("sdpa_backend", "flash", because="flash_attention_2 under autocast")
        reading.note("flash_attention_2 under autocast: predicted as PyTorch's own flash kernel")


def without_autocast(workload: Workload) -> str | None:
    """Of a note about plain loops that are predicted without autocast."""
    plain = workload.engine in ("torch", "ddp") and (workload.dtype, workload.mixed_precision) == ("bf16", "none")
    return "" if plain else None


def evaluation(reading: Reading, name: str, asked: bool, batch: str = "per_device_eval_batch_size") -> None:
    """An evaluation is predicted where it was compared with one, and named otherwise."""
    if not asked:
        return
    size, stage = reading[batch], reading.rows.get("deepspeed.zero_optimization.stage")
    if evaluates(reading.workload, stage and stage.value):
        reading.put("per_device_eval_batch_size", size, name, batch)
    else:
        reading.note(f"{name} {reading[name]}: {evaluation_left_out(size)}")


def asks_for_evaluation(strategy: str, do_eval: bool, on_start: bool) -> bool:
    """Whether the Trainer, or the script around it, evaluates with such arguments."""
    return strategy != "no" or do_eval or on_start


def evaluates(keys: Mapping[str, Any], zero_stage: int | None) -> bool:
    """Whether an evaluation beside these keys of a workload is predicted; ``zero_stage`` None: without DeepSpeed."""
    used = keys.get("engine", "torch") if zero_stage is None else name_of("deepspeed", zero_stage)
    return ENGINES[used].whole and compared.goes_with("per_device_eval_batch_size", keys)


def evaluation_left_out(size: int) -> str:
    """What is said of one that is not predicted, of so many samples."""
    return f"the evaluation of batches of {size} (where it can be predicted: per_device_eval_batch_size)"


@dataclass(frozen=True)
class LoraKeys:
    """What a framework calls the settings of LoRA.

    Attributes:
        alpha: a number where the framework derives it from others.
        extra: what trains beside the adapters, where the framework has such a key.
    """

    r: str
    alpha: str | float
    dropout: str
    extra: str = ""

    @property
    def names(self) -> list[str]:
        """The keys."""
        return [key for key in (self.r, self.alpha, self.dropout, self.extra) if isinstance(key, str) and key]


def lora(reading: Reading, keys: LoraKeys, *, targets: Any, by: tuple[str, ...], bias: str = "none") -> None:
    """The ``lora`` key; targets None or ``all-linear`` alone are the language model's linear layers."""
    found: dict[str, Any] = {
        "r": reading[keys.r], "lora_alpha": reading[keys.alpha] if isinstance(keys.alpha, str) else keys.alpha,
        "lora_dropout": reading[keys.dropout]}
    if targets:
        found["target_modules"] = targets if isinstance(targets, str) else \
            targets[0] if tuple(targets) == ("all-linear",) else list(targets)
    if keys.extra and reading[keys.extra]:
        found["modules_to_save"] = list(reading[keys.extra])
    found |= {flag: True for flag in ("use_rslora", "use_dora") if flag in reading.form.fields and reading[flag]}
    found |= {"bias": bias} if bias != "none" else {}
    reading.put("recipe", "lora", *by)
    reading.put("lora", found, *keys.names, *by)


LINEAR = "q_proj|k_proj|v_proj|o_proj|out_proj|qkv|proj|gate_proj|up_proj|down_proj|fc1|fc2|linear_fc1|linear_fc2"
"""Names of linear layers of the language models and towers that are known."""


def parts_with_adapters(name: str, towers: bool, projector: bool, language: bool) -> str | None:
    """A regular expression of the linear layers of some parts; None for the language model's, which is the default."""
    found = hub.parts(name)
    if found is None or (language and not towers and not projector):
        return None
    inside = [found.layers] * towers + [pattern.strip("*") for pattern in found.language[:1]] * language
    expressions = [rf".*\b(?:{'|'.join(inside)})\..*\.(?:{LINEAR})"] if inside else []
    return "|".join(expressions + [rf".*\b{found.aligner}"] * projector)


def freeze_projector(reading: Reading, name: str, *by: str) -> None:
    """Beside adapters our recipe trains the projector; most frameworks do not, unless it has some itself."""
    found = hub.parts(name)
    targets = str((reading.workload.get("lora") or {}).get("target_modules", ""))
    if found and any(part in targets for part in ("all-linear", "projector", "merger", "connector")):
        reading.note("norms of the projector, which has adapters: they train here")
    elif found:
        reading.put("frozen", _present(name, found.projector), *by, because="only adapters train")


def trained(reading: Reading, name: str, kind: str, *, towers: str, projector: str, language: str) -> None:
    """``recipe`` and ``frozen`` by the keys that freeze parts; ``kind`` says that there are no adapters."""
    by, found = (towers, projector, language), hub.parts(name)
    frozen = [bool(reading[key]) for key in by]
    if found is None:
        reading.put("recipe", "full", kind, *by)
        return
    if all(frozen):
        raise reading.wrong(language, f"is on, and so are {towers} and {projector}: nothing is left to train")
    recipe = "full" if not frozen[0] else "pretrain" if frozen[2] else "finetune"
    reading.put("recipe", recipe, kind, *by)
    left = {"full": (0, 1, 2), "finetune": (1,), "pretrain": ()}[recipe]
    patterns = sum(((found.towers, found.projector, found.language)[part] for part in left if frozen[part]), ())
    if patterns:
        reading.put("frozen", _present(name, patterns), *by)


def _present(name: str, patterns: tuple[str, ...]) -> list[str]:
    """Without the head, where it is the embedding's own weight, which is named once."""
    config = hub.config(name)
    text = config.document.get("text_config") or {}
    tied = config.document.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    return [pattern for pattern in patterns if pattern != "*lm_head*" or not tied]


def pictures(reading: Reading, name: str, pixels: int | None, *names: str) -> None:
    """The largest picture that the framework lets through, where the model takes any size; ``pixels`` may be the
    ``image_size`` of an option, which settles it."""
    config = hub.config(name)
    if config is None or not isinstance(pixels, int) or config.kind is not Kind.IMAGE_TEXT or config.image_size:
        return
    side = math.isqrt(pixels)
    if not 1 <= side <= 16_384:
        raise InputError(f"{reading.place(names[0])} is {pixels}: pictures of 1 to {16_384**2:,} pixels are predicted")
    reading.put("image_size", side, *names, because="the largest square picture")
