"""Reads axolotl's YAML configurations (release 0.19)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.common.suggestions import quoted
from predictor.common.value_types import Invalid, Whole
from predictor.model import hub
from predictor.readers import own_keys, picture_sizes, trainer, weight_dtype
from predictor.readers.axolotl_keys import ARGUMENTS, ATTENTION, KERNELS, LIGER, LOSS
from predictor.readers.loading import on_one_gpu
from predictor.readers.reading import Format, Own, Reading
from predictor.workload import lora_keys
from predictor.workload.keys import image_sizes

WIDE = (None, "sdpa", "eager")
"""Attention implementations with which embeddings, head and norms stay fp32 (utils/schemas/config.py,
``attn_needs_dtype_cast``)."""
PLUGINS = ("LigerPlugin", "CutCrossEntropyPlugin", "SwanLabPlugin", "LMEvalPlugin")
"""Known plugins. The first two act by their own keys; the others do not change a step's memory."""
MOST_SIDE = 16_384
"""Limit on the height and the width of pictures, in pixels."""
MULTIPLE = 64
"""Default of ``pad_to_multiple_of``, in tokens."""
LORA = trainer.LoraKeys("lora_r", "lora_alpha", "lora_dropout", "lora_modules_to_save", "lora_target_parameters")
LOADED = ("ForCausalLM", "ForConditionalGeneration", "ForImageTextToText", "ForVision2Seq", "LMHeadModel")
"""Endings of the names of transformers' classes with a next-token head."""


def rules(reading: Reading) -> None:
    """Sets the workload as axolotl does (utils/config/__init__.py, core/builders/base.py, loaders/)."""
    name = trainer.model(reading, "base_model")
    on_one_gpu(reading, reading.world_size, "start it with accelerate launch, or let it see one GPU")
    _as_loaded(reading)
    _batch(reading)
    _length(reading, name)
    trainer.attention(reading, _attention(reading), *_given(reading, "attn_implementation", *ATTENTION))
    _trained(reading, name)
    _checkpointing(reading)
    if reading["sample_packing"]:
        reading.put("padding", "packed", "sample_packing")
        if _attention(reading) == "sdpa" and reading["sdpa_varlen"] is not False:
            reading.note("sdpa_varlen: packed samples through PyTorch's varlen_attn; predicted with a mask of all "
                         "pairs of tokens")
    liger = [key for key in LIGER if reading[key]]
    if liger and "LigerPlugin" not in _plugins(reading):
        reading.note(f"{', '.join(liger)}: axolotl leaves that out, as plugins does not name "
                     "axolotl.integrations.liger.LigerPlugin")
    elif len(liger) == len(LIGER):
        reading.put("use_liger_kernel", True, *LIGER)
    elif liger:
        reading.note(f"{', '.join(liger)}: some of Liger's kernels without the others ({', '.join(LIGER)} together are "
                     "predicted): it needs less than is predicted without them")
    _dtype(reading)
    if reading["fsdp_config"] and not reading["fsdp"]:
        reading.values["fsdp"] = "full_shard"
    if reading["fsdp_version"] == 1:
        raise reading.refused("fsdp_version", "is 1: FSDP1 is not predicted, give 2")
    trainer.engine(reading, name)
    _embeddings(reading)
    if "dtype" not in reading.workload:
        weight_dtype.precision(reading, reading.half or "fp32", *_given(reading, "bf16", "fp16", "bfloat16", "float16"))
        if reading["bf16"] == "full":  # no autocast (core/builders/base.py, _configure_precision_settings)
            del reading.workload["mixed_precision"], reading.rows["mixed_precision"]
    _pictures(reading, name)
    reading.values.setdefault("eval_batch_size", reading["micro_batch_size"])
    trainer.together(reading)
    _evaluation(reading)


def _given(reading: Reading, *names: str) -> tuple[str, ...]:
    return tuple(name for name in names if name in reading) or names[:1]


def _plugins(reading: Reading) -> set[str]:
    return {name.rpartition(".")[2] for name in reading["plugins"]}


def _as_loaded(reading: Reading) -> None:
    """Rejects keys that change the model or its trainer in a way that is not predicted."""
    plugins = _plugins(reading)
    for plugin in sorted(plugins - set(PLUGINS)):
        raise reading.refused("plugins", f"names {quoted(plugin)}, which is not predicted: leave it out")
    if "CutCrossEntropyPlugin" in plugins and reading["cut_cross_entropy"] is not False:
        raise reading.wrong("plugins", "names CutCrossEntropyPlugin, which is on unless cut_cross_entropy is false: "
                                       f"{LOSS}")
    loader, config = reading["type_of_model"], reading["base_model_config"]
    if loader and not loader.endswith(LOADED):
        raise reading.wrong("type_of_model", f"is {quoted(loader)}: a model with a head of next tokens is predicted")
    if config and config != reading["base_model"]:
        raise reading.wrong("base_model_config", "is not base_model, whose own config.json is predicted: leave it out")
    if (reading["accelerator_config"] or {}).get("split_batches"):
        raise reading.wrong("accelerator_config", "has split_batches, which splits a micro batch among the GPUs: leave "
                                                  "it out, and give what each has as micro_batch_size")


def _embeddings(reading: Reading) -> None:
    """Rejects a model of mixed dtypes (loaders/model.py, ``_configure_embedding_dtypes``).

    axolotl makes embeddings, head and norms fp32, and casts them back with adapters or if the attention needs it. FSDP
    is excepted, and DeepSpeed casts everything.
    """
    engine = "deepspeed" in reading.workload or reading.workload.get("engine") == "fsdp2" or \
        any(key in reading.input.options for key in ("deepspeed", "zero_stage", "engine"))
    if reading["load_in_4bit"] and not engine and reading["peft_autocast_adapter_dtype"] is not False:
        reading.note("load_in_4bit: adapters and the towers' weights without 4 bits are fp32 in axolotl, bf16 in "
                     "the prediction")
    if reading.half and not reading["adapter"] and not engine and _attention(reading) in WIDE:
        key = next((key for key in ATTENTION if reading[key]), "attn_implementation")
        setting = "on" if reading[key] is True else quoted(reading[key]) if key in reading else "not given"
        raise reading.refused(key, f"is {setting}: axolotl then keeps embeddings, head and norms in fp32 beside layers "
                                   f"of {reading.half}, which is not predicted: give attn_implementation "
                                   "flash_attention_2, deepspeed or fsdp, which leave one dtype")


def _pictures(reading: Reading, name: str) -> None:
    processor_settings = dict(reading["processor_kwargs"] or {})
    side = _whole(reading, "image_size", reading["image_size"], MOST_SIDE)
    most = _whole(reading, "processor_kwargs", processor_settings.get("max_pixels"), MOST_SIDE**2)
    if side is not None:
        trainer.pictures(reading, name, side**2, "image_size", resize=picture_sizes.square(side))
    elif most is not None:
        config = hub.config(name)
        del processor_settings["max_pixels"]
        of_token = picture_sizes.SIDES.get(config.document["model_type"]) if config else None
        trainer.pictures(reading, name, most, "processor_kwargs",
                         resize=picture_sizes.tokens(most, of_token) if of_token else None)
    if processor_settings:
        reading.note(f"processor_kwargs {', '.join(map(str, processor_settings))}: what the processor does with "
                     "images")


def _whole(reading: Reading, name: str, item: Any, most: int) -> int | None:
    """A length or an area in pixels; None for what is no number, such as a height and a width."""
    try:
        return Whole(1, most).check(item) if isinstance(item, int) else None
    except Invalid as error:
        raise reading.wrong(name, f"has {quoted(item)}: a number of pixels {error}") from None


def _evaluation(reading: Reading) -> None:
    """Sets the evaluation (core/builders/base.py, ``_configure_save_and_eval_strategy``; utils/config/__init__.py,
    ``normalize_config``)."""
    held = next((key for key in ("val_set_size", "test_datasets") if reading[key]), None)
    when = next((key for key in ("eval_steps", "evals_per_epoch", "eval_strategy") if reading[key] not in (
        None, 0, "no")), None)
    evaluating = held is not None and when is not None
    if evaluating and (reading["eval_sequence_len"] or 0) > reading["sequence_len"]:
        raise reading.wrong("eval_sequence_len", "is above sequence_len: predicted is an evaluation of that length")
    if evaluating and reading["sample_packing"] and reading["eval_sample_packing"] is False:
        reading.note("eval_sample_packing: an evaluation of padded samples; predicted packed as in training")
    trainer.evaluation(reading, when or "eval_strategy", evaluating, "eval_batch_size")


def _batch(reading: Reading) -> None:
    batch, steps = reading["micro_batch_size"], reading["gradient_accumulation_steps"]
    if reading["batch_size"] and "gradient_accumulation_steps" not in reading:
        steps = max(1, reading["batch_size"] // batch)
    elif reading["batch_size"] and reading["batch_size"] != batch * steps:
        raise reading.wrong("batch_size", f"is {reading['batch_size']}, but micro_batch_size {batch} x "
                                          f"gradient_accumulation_steps {steps} is {batch * steps}: leave it out")
    reading.put("per_device_train_batch_size", batch, "micro_batch_size")
    reading.put("gradient_accumulation_steps", steps, *_given(reading, "gradient_accumulation_steps", "batch_size"))
    reading.values["per_device_train_batch_size"] = batch
    reading.values["gradient_accumulation_steps"] = steps


def _length(reading: Reading, name: str) -> None:
    """Pads the sequence length of text models to a multiple, as axolotl does (core/builders/causal.py, ``build``)."""
    length, multiple = reading["sequence_len"], reading["pad_to_multiple_of"] or MULTIPLE
    if reading["pad_to_sequence_len"] is not False and not hub.parts(name) and length % multiple:
        reading.put("sequence_length", length + -length % multiple, "sequence_len", "pad_to_multiple_of",
                    because=f"a multiple of {multiple}")


def _attention(reading: Reading) -> str | None:
    old = [key for key in ATTENTION if reading[key]]
    if reading["attn_implementation"] and old:
        raise reading.wrong("attn_implementation", f"is given, and so is {old[0]}: keep one")
    return reading["attn_implementation"] or (ATTENTION[old[0]] if old else None)


def _trained(reading: Reading, name: str) -> None:
    adapter = reading["adapter"]
    if adapter not in (None, "lora", "qlora"):
        raise reading.refused("adapter", f"{adapter} is not supported: lora and qlora are")
    if adapter is None:
        _without_adapters(reading, name)
        return
    _adapters(reading, adapter)
    if not any(key in reading for key in (*KERNELS, "trust_remote_code")):  # check_auto_enable_lora_kernels
        reading.note(f"{', '.join(KERNELS)}: axolotl's own kernels of adapters, which it turns on where none is named "
                     "and the model has them")
    parts = hub.parts(name)
    if parts:
        trainer.freeze_projector(reading, name, "adapter")
    if reading["load_in_4bit"]:
        reading.put("quantization", {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
                                     "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bf16",
                                     "prepare": "trl", **({"llm_int8_skip_modules": ["lm_head"]} if parts else {}),
                                     **(reading["bnb_config_kwargs"] or {})},
                    "load_in_4bit", "bnb_config_kwargs", "embeddings_skip_upcast")


def _without_adapters(reading: Reading, name: str) -> None:
    """Sets the recipe of a training without adapters: all weights, or all except towers and projector."""
    if reading["load_in_4bit"]:
        raise reading.wrong("load_in_4bit", "is on, but adapter is not given: weights of 4 bits do not train")
    reading.put("recipe", "finetune" if reading["freeze_mm_modules"] else "full", "freeze_mm_modules")
    if reading["freeze_mm_modules"]:
        trainer.freeze_projector(reading, name, "freeze_mm_modules")


def _adapters(reading: Reading, adapter: str) -> None:
    """Sets the adapters from the keys of LoRA and peft."""
    if reading["lora_r"] is None:
        raise reading.wrong("lora_r", f"is not given, but adapter is {adapter}: axolotl has no default")
    targets = "all-linear" if reading["lora_target_linear"] else reading["lora_target_modules"]
    if targets is None:
        raise reading.wrong("lora_target_modules", "is not given, and neither is lora_target_linear: axolotl has no "
                                                   "default")
    if not isinstance(targets, (str, list, tuple)):
        raise reading.wrong("lora_target_modules", f"is {quoted(targets)}: a list of names of layers is needed")
    if adapter == "qlora" and not reading["load_in_4bit"]:
        raise reading.wrong("load_in_4bit", "is off, but adapter is qlora: axolotl stops there; give true")
    if adapter == "lora" and reading["load_in_4bit"]:  # loaders/model.py, _set_quantization_config
        raise reading.wrong("load_in_4bit", "is on, but adapter is lora, for which axolotl makes layers fp32 instead: "
                                            "give adapter qlora")
    trainer.lora(reading, LORA, targets=targets,
                 by=("adapter", *_given(reading, "lora_target_linear", "lora_target_modules")))
    flags = {"use_dora": "peft_use_dora", "use_rslora": "peft_use_rslora",
             "autocast_adapter_dtype": "peft_autocast_adapter_dtype"}
    chosen = {ours: reading[theirs] for ours, theirs in flags.items() if theirs in reading}
    if chosen:
        trainer.change(reading, "lora", reading.workload["lora"] | chosen, *(flags[key] for key in chosen))


def _checkpointing(reading: Reading) -> None:
    checkpointing = reading["gradient_checkpointing"]
    if isinstance(checkpointing, str):
        raise reading.refused("gradient_checkpointing", f"{checkpointing} is not supported: true is, and "
                                                        "gradient_checkpointing_kwargs offload of the workload")
    reading.put("gradient_checkpointing", checkpointing, "gradient_checkpointing")
    trainer.checkpointing(reading, reentrant="gradient_checkpointing_kwargs" not in reading)


def _dtype(reading: Reading) -> None:
    """Chooses the autocast dtype (``resolve_dtype``). "auto" is bf16: all predicted GPUs support it."""
    narrow = reading["fp16"] or reading["float16"]
    wide = reading["bfloat16"] or reading["bf16"] in (True, "full") or (reading["bf16"] == "auto" and not narrow)
    reading.decided_half = "bf16" if wide else "fp16" if narrow else None


def _recipe(item: str, now: Reading) -> Mapping[str, Any] | None:
    """Adapters on all linear layers, with the workload's own rank, unless the file already says which."""
    if item == "lora":
        targets = now["lora_target_linear"] or now["lora_target_modules"]
        return {"adapter": "lora", "lora_r": now["lora_r"] or lora_keys.DEFAULTS["r"],
                "lora_alpha": now["lora_alpha"] or lora_keys.DEFAULTS["lora_alpha"]} | (
                    {} if targets else {"lora_target_linear": True})
    recipes = {"full": {"adapter": None, "freeze_mm_modules": False},
               "finetune": {"adapter": None, "freeze_mm_modules": True}}
    return None if now["load_in_4bit"] else recipes.get(item)


def _of_4_bits(item: Any, now: Reading) -> Mapping[str, Any] | None:
    names = ("bnb_4bit_quant_type", "bnb_4bit_use_double_quant")
    usual = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True} | (now["bnb_config_kwargs"] or {})
    own = {key: value for key, value in (item or {}).items() if key in names and usual[key] != value}
    keys = {**(_recipe("lora", now) or {}), "load_in_4bit": True, "adapter": "qlora"}
    if own:
        keys["bnb_config_kwargs"] = {**(now["bnb_config_kwargs"] or {}), **own}
    return keys if item and item.get("load_in_4bit") else None


def _attention_by(item: str, now: Reading) -> Mapping[str, Any]:
    """The key ``attn_implementation``, or an older flag in place of the one that the user has."""
    old = {key: False for key in ATTENTION if now[key]}
    return old | {key: True for key, theirs in ATTENTION.items() if theirs == item} if old else {
        "attn_implementation": item}


def _liger(item: bool, now: Reading) -> Mapping[str, Any] | None:
    named = "LigerPlugin" in _plugins(now)
    plugins = {} if named else {"plugins": [*now["plugins"], "axolotl.integrations.liger.LigerPlugin"]}
    return {**plugins, **dict.fromkeys(LIGER, True)} if item else None


def _pixels(item: int | str, now: Reading) -> Mapping[str, Any] | None:
    """The side of square pictures, or the processor's largest number of pixels where only that keeps the sides."""
    by_processor = {**(now["processor_kwargs"] or {}), "max_pixels": max(h * w for h, w in image_sizes(item))}
    if "image_size" not in now and ("max_pixels" in (now["processor_kwargs"] or {}) or isinstance(item, str)):
        return {"processor_kwargs": by_processor}
    return own_keys.pixels("image_size", square=False)(item, now)


OWN: Mapping[str, Own] = {
    "recipe": _recipe,
    "quantization": _of_4_bits,
    "gradient_checkpointing": own_keys.fixed({on: {"gradient_checkpointing": on} for on in (True, False)}),
    "attn_implementation": _attention_by,
    "use_liger_kernel": _liger,
    "image_size": _pixels,
    "mixed_precision": own_keys.half,
    "padding": own_keys.fixed({"packed": {"sample_packing": True}, "none": {"sample_packing": False}}),
}
FORMAT = Format(
    "axolotl", "axolotl 0.19", ARGUMENTS,
    frozenset(("base_model", "sequence_len", "micro_batch_size", "sample_packing", "lora_target_linear",
               "pad_to_sequence_len", "val_set_size", "base_model_config")),
    rules, renamed={"model_type": "type_of_model", "model_config": "overrides_of_model_config",
                    "model_kwargs": "overrides_of_model_kwargs", "model_revision": "revision_of_model",
                    "evaluation_strategy": "eval_strategy", "liger_swiglu": "liger_glu_activation",
                    "noisy_embedding_alpha": "neftune_noise_alpha"}, shares=(), own=OWN, starts="axolotl train")
