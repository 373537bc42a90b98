"""Reads ms-swift's flags, YAML and JSON (release 4.6, swift/arguments/)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from predictor.common import numbers
from predictor.common.files import read_mapping
from predictor.common.suggestions import quoted
from predictor.common.value_types import Choice, Number, Whole
from predictor.model import hub
from predictor.readers import fsdp, own_keys, picture_sizes, trainer, weight_dtype
from predictor.readers import training_arguments as hf
from predictor.readers.fields import copied_to, for_rules, noted, refused
from predictor.readers.loading import RESUMED, on_one_gpu
from predictor.readers.reading import Format, Own, Reading
from predictor.readers.value_types import FLAG, TEXT, Any_, ConfigFile, Mapped, Words

_LATER = "it is not predicted: leave it out"
ARGUMENTS = hf.ARGUMENTS | hf.OLDER | {
    "per_device_train_batch_size": copied_to("per_device_train_batch_size", hf.BATCH, 1),
    "per_device_eval_batch_size": for_rules(hf.BATCH, 1, "per_device_eval_batch_size"),
    "gradient_accumulation_steps": for_rules(hf.STEPS, option="gradient_accumulation_steps"),
    "gradient_checkpointing": copied_to("gradient_checkpointing", FLAG, True),
    "vit_gradient_checkpointing": for_rules(FLAG),
    "weight_decay": copied_to("weight_decay", Number(), 0.1),
    "bf16": for_rules(FLAG),
    "fp16": for_rules(FLAG),
    "model": for_rules(TEXT, option="model"),
    "torch_dtype": for_rules(weight_dtype.DTYPE, option="dtype"),
    "attn_impl": for_rules(TEXT, option="attn_implementation"),
    "max_length": copied_to("sequence_length", hf.LENGTH),
    "max_pixels": for_rules(Whole(1, 1 << 28), option="image_size"),
    "tuner_type": for_rules(Choice(("lora", "full"), dict.fromkeys(
        ("longlora", "adalora", "llamapro", "adapter", "vera", "boft", "fourierft", "reft", "bone"),
        "use lora or full")), "lora"),
    "tuner_backend": for_rules(Choice(("peft",), {"unsloth": "use peft"}), "peft"),
    "freeze_llm": for_rules(FLAG, False),
    "freeze_vit": for_rules(FLAG, True),
    "freeze_aligner": for_rules(FLAG, True),
    "target_modules": for_rules(Words(), ("all-linear",)),
    "target_regex": for_rules(TEXT),
    "modules_to_save": for_rules(Words(), ()), "target_parameters": for_rules(Words()),
    "lora_rank": for_rules(Whole(1, 65_536), 8, "lora.r"),
    "lora_alpha": for_rules(Number(), 32, "lora.lora_alpha"),
    "lora_dropout": for_rules(Number(), 0.05, "lora.lora_dropout"),
    "lora_bias": for_rules(Choice(("none", "all")), "none"),
    "lora_dtype": for_rules(weight_dtype.DTYPE),
    "use_rslora": for_rules(FLAG, False),
    "use_dora": for_rules(FLAG, False),
    "quant_method": for_rules(Choice(("bnb",), dict.fromkeys(("hqq", "eetq", "quanto", "fp8"), "use bnb"))),
    "quant_bits": for_rules(Choice((4,), dict.fromkeys((1, 2, 3, 8), "use 4"))),
    "bnb_4bit_quant_type": for_rules(Choice(("nf4", "fp4")), "nf4"),
    "bnb_4bit_use_double_quant": for_rules(FLAG, True),
    "bnb_4bit_compute_dtype": for_rules(weight_dtype.DTYPE),
    "packing": for_rules(FLAG, False),
    "padding_free": for_rules(FLAG, False),
    "packing_length": for_rules(hf.LENGTH),
    "val_dataset": for_rules(Any_()),
    "cached_val_dataset": for_rules(Any_()),
    "split_dataset_ratio": for_rules(Number(), 0.0),
    "eval_strategy": for_rules(TEXT),
    "save_strategy": for_rules(TEXT, "steps"),
    "save_only_model": for_rules(FLAG, False),
    "model_kwargs": for_rules(Mapped()),
    "enable_dft_loss": for_rules(FLAG, False),
    "enable_channel_loss": for_rules(FLAG, False),
    "loss_scale": for_rules(TEXT, "default"),
    "is_binary_loss_scale": for_rules(FLAG),
    "callbacks": for_rules(Words(), ()),
    **dict.fromkeys(("lorap_lr_ratio", "vit_lr", "aligner_lr"), noted("further optimizer groups", Number())),
    "adapters": noted(RESUMED),
    "new_special_tokens": noted("further rows of the embedding and the head"),
    "router_aux_loss_coef": noted("the auxiliary loss of MoE routers", Number(), 0.0),
    "experts_impl": noted("how experts are computed"),
    **dict.fromkeys(("external_plugins", "custom_register_path"), noted("changes by your own code")),
    "predict_with_generate": noted("samples that are generated in an evaluation", FLAG),
    "eval_use_evalscope": noted("samples that are generated in an evaluation", FLAG),
    "use_logits_to_keep": for_rules(FLAG),
    "sequence_parallel_size": refused(_LATER, (1, "1")),
    **dict.fromkeys(("freeze_parameters", "freeze_parameters_regex", "freeze_parameters_ratio", "trainable_parameters",
                     "trainable_parameters_regex"), refused("give frozen and trainable of the workload", (
                         None, "", (), 0, 0.0, "0", "0.0", "[]"))),
    **dict.fromkeys(("use_galore", "lisa_activated_layers", "optimizer", "zero_hpz_partition_size",
                     "deepspeed_autotp_size", "loss_type", "use_swift_lora", "use_ray",
                     "use_flash_ckpt"), refused(_LATER, (
                         None, "", False, 0, "0", "false", "False", ()))),
    **dict.fromkeys(("task_type", "num_labels"), refused("training with next-token loss is predicted", (
        None, "", "causal_lm"))),
    **dict.fromkeys(("device_map", "max_memory"), refused(
        "a model split over several devices is not predicted: leave it out")),
    "bnb_4bit_quant_storage": refused("use uint8", (None, "", "uint8")),
    "init_weights": refused(_LATER, (None, "", True, False, "true", "True", "false", "False", "gaussian",
                                     "orthogonal"), default="true"),
    "load_args": refused("the arguments of a checkpoint are not read: give them here", value_type=FLAG),
}
BINARY = {"default", "last_round", "all", "base", "ignore_empty_think", "ignore_think_prefix"}
"""Parts of ``loss_scale`` with no weights other than 0 and 1 (swift/loss_scale)."""
CALLBACKS = ("early_stop", "perf_log", "graceful_exit")
"""Callbacks of swift/callbacks that do not change a step's memory."""
BUCKET = 2e8
SHARDED = "SHARDED_STATE_DICT"
STAGES = {"zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3, "zero2_offload": 2, "zero3_offload": 3}
"""Name of a DeepSpeed config in swift/config -> its stage."""
FSDP2 = {"fsdp": "full_shard auto_wrap", "fsdp_config": {
    "fsdp_version": 2, "reshard_after_forward": True, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "cpu_ram_efficient_loading": True, "state_dict_type": SHARDED, "activation_checkpointing": True}}
"""Content of swift/config/fsdp2.json."""


def rules(reading: Reading) -> None:
    """Sets the workload as ms-swift does (swift/arguments/sft_args.py, pipelines/train/tuner.py, trainers/mixin.py)."""
    name = trainer.model(reading, "model")
    environment = reading.input.environment
    if environment.get("SWIFT_SINGLE_DEVICE_MODE") != "1":
        here = numbers.whole(environment.get("NPROC_PER_NODE", ""))
        on_one_gpu(reading, reading.world_size if here is None else here,
                   "set NPROC_PER_NODE to their number, or let it see one GPU")
    _loss(reading)
    for callback in reading["callbacks"]:
        if callback not in CALLBACKS:
            raise reading.refused("callbacks", f"names {quoted(callback)}, which is not predicted: leave it out")
    batch = reading["per_device_train_batch_size"]
    steps = reading["gradient_accumulation_steps"] or max(1, math.ceil(16 / batch / reading.world_size))
    reading.put("gradient_accumulation_steps", steps, "gradient_accumulation_steps",
                because="" if "gradient_accumulation_steps" in reading else "16 samples in all")
    reading.values["gradient_accumulation_steps"] = steps
    trainer.attention(reading, reading["attn_impl"], "attn_impl")
    _quantized(reading)
    adapters = reading["tuner_type"] == "lora"
    _adapters(reading, name) if adapters else trainer.trained(
        reading, name, "tuner_type", towers="freeze_vit", projector="freeze_aligner", language="freeze_llm")
    _fsdp(reading, name)
    _checkpointing(reading, name)
    if reading["packing"] or reading["padding_free"]:
        by = "packing" if reading["packing"] else "padding_free"
        if reading.workload["attn_implementation"] != "flash_attention_2":
            raise reading.wrong(by, "is on, but attn_impl is not flash_attn: ms-swift stops there")
        reading.put("padding", "packed", by)
    if reading["packing"] and reading["packing_length"]:  # swift/dataset/packing.py, PackingDataset
        reading.put("sequence_length", reading["packing_length"], "packing_length")
    _pictures(reading, name)
    _dtype(reading)
    trainer.engine(reading, name, builtin(reading["deepspeed"]))
    if "dtype" not in reading.workload:
        if reading["torch_dtype"] == "fp16" == reading.decided_half:
            raise reading.wrong("torch_dtype", "is fp16: ms-swift then trains under fp16 autocast, which is "
                                               "predicted only with weights of float32: use float32 or bfloat16")
        weight_dtype.precision(reading, reading["torch_dtype"], "torch_dtype")
    if reading["use_logits_to_keep"] is not False:
        reading.note("use_logits_to_keep: ms-swift computes logits only where a token has a label; here all count")
    trainer.together(reading)
    held = next((key for key in ("split_dataset_ratio", "val_dataset", "cached_val_dataset") if reading[key]), None)
    strategy = reading["eval_strategy"] or reading["save_strategy"]  # sft_args.py, _init_eval_strategy
    trainer.evaluation(reading, held or "val_dataset", held is not None and strategy != "no")


def builtin(name: Any) -> Any:
    """The content of a DeepSpeed config that ms-swift has under this name; any other value unchanged.

    The names are ``zero0`` to ``zero3``, and ``zero2_offload`` and ``zero3_offload`` (swift/config).
    """
    if name not in STAGES if isinstance(name, str) else True:
        return name
    stage, device = STAGES[name], "cpu" if name.endswith("offload") else "none"
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": False, "contiguous_gradients": True}
    if stage:
        zero["offload_optimizer"] = {"device": device, "pin_memory": True}
    if stage == 3:
        zero |= {"offload_param": {"device": device, "pin_memory": True}, "sub_group_size": 1e9,
                 "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
                 "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
                 "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": True}
    else:
        zero |= {"allgather_partitions": True, "allgather_bucket_size": BUCKET, "reduce_scatter": True,
                 "reduce_bucket_size": BUCKET}
    auto = dict.fromkeys(("gradient_accumulation_steps", "gradient_clipping", "train_batch_size",
                          "train_micro_batch_size_per_gpu"), "auto")
    return {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}, "zero_optimization": zero} | auto


def _fsdp(reading: Reading, name: str) -> None:
    """Reads ``fsdp``: a config's name, a file or its content (arguments/sft_args.py, ``_init_fsdp``).

    It replaces ``fsdp_config``, and its activation checkpointing replaces the Trainer's.
    """
    if not reading["fsdp"] or "fsdp" in reading.input.launched_with:
        return
    fsdp_value = reading.checked("fsdp", for_rules(ConfigFile()), reading["fsdp"])
    if isinstance(fsdp_value, str):
        fsdp_value = FSDP2 if fsdp_value == "fsdp2" else read_mapping(reading.file("fsdp"), "the FSDP config")
    config = fsdp_value.get("fsdp_config", {})
    if not isinstance(config, Mapping):
        raise reading.wrong("fsdp", f"has fsdp_config {quoted(config)}: a section of keys is needed")
    if reading["save_only_model"] and "SHARDED" in str(config.get("state_dict_type", SHARDED)).upper():
        raise reading.wrong("save_only_model", f"is on, and fsdp has state_dict_type {SHARDED}: ms-swift stops there; "
                                               "leave it out")
    if "fsdp_config" in reading.written:
        reading.unread.append(reading.written.pop("fsdp_config"))
    reading.values |= {"fsdp": fsdp_value.get("fsdp", FSDP2["fsdp"]), "fsdp_config": config}
    if config.get("activation_checkpointing"):
        if hub.parts(name) and reading["gradient_checkpointing"] and reading["vit_gradient_checkpointing"] is not False:
            reading.note("vit_gradient_checkpointing: on beside FSDP's wrappers, which are predicted alone",
                         fsdp.wrapped)
        reading.values["gradient_checkpointing"] = False
        reading.put("gradient_checkpointing", False, "fsdp")


def _adapters(reading: Reading, name: str) -> None:
    targets: Any = reading["target_regex"] or reading["target_modules"]
    if tuple(targets) == ("all-linear",):
        trains = (not reading[key] for key in ("freeze_vit", "freeze_aligner", "freeze_llm"))
        targets = trainer.parts_with_adapters(name, *trains)
    by = ("tuner_type", "target_regex" if reading["target_regex"] else "target_modules")
    names = trainer.LoraKeys("lora_rank", "lora_alpha", "lora_dropout", "modules_to_save", "target_parameters")
    trainer.lora(reading, names,
                 targets=targets, by=by, bias=reading["lora_bias"])
    if reading["lora_dtype"] is not None:
        wide = reading["lora_dtype"] == "fp32"
        trainer.change(reading, "lora", reading.workload["lora"] | {"autocast_adapter_dtype": wide}, "lora_dtype")
    trainer.freeze_projector(reading, name, "tuner_type")
    if reading["quant_method"]:
        model_parts = hub.parts(name)
        half = reading["bnb_4bit_compute_dtype"] or reading["torch_dtype"] or "bf16"
        reading.put("quantization", {
            "load_in_4bit": True, "bnb_4bit_quant_type": reading["bnb_4bit_quant_type"], "bnb_4bit_compute_dtype": half,
            "bnb_4bit_use_double_quant": reading["bnb_4bit_use_double_quant"], "prepare": "trl",
            **({"llm_int8_skip_modules": _not_quantized(model_parts)} if model_parts else {})},
            "quant_method", "quant_bits", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_compute_dtype")


def _quantized(reading: Reading) -> None:
    """Checks the quantization keys (arguments/base_args/quant_args.py, ``get_quantization_config``)."""
    if not reading["quant_method"]:
        if reading["quant_bits"]:
            reading.note("quant_bits: ms-swift quantizes nothing, as quant_method is not given")
    elif not reading["quant_bits"]:
        raise reading.wrong("quant_method", "is given, but quant_bits is not: ms-swift stops there; give 4")
    elif reading["tuner_type"] == "full":
        raise reading.wrong("quant_method", "is given, but tuner_type is full: weights of 4 bits do not train")


def _not_quantized(model_parts: hub.Parts) -> list[str]:
    """Modules outside the language model, which are not quantized (arguments/base_args/quant_args.py,
    ``get_modules_to_not_convert``)."""
    parts = dict.fromkeys(map(_top, (model_parts.towers, model_parts.projector)))
    return [*(f"model.{part}" for part in parts), "lm_head"]


def _checkpointing(reading: Reading, name: str) -> None:
    """Sets gradient checkpointing: reentrant except with DDP (trainers/mixin.py, ``_fix_gradient_checkpointing``)."""
    ddp = reading.world_size > 1 and not reading["deepspeed"] and not reading["fsdp"]
    trainer.checkpointing(reading, reentrant=not ddp, because="" if ddp else "unless DDP is the engine")
    model_parts = hub.parts(name)
    if not model_parts or not reading.workload["gradient_checkpointing"]:
        return
    if reading["vit_gradient_checkpointing"] is False:
        reading.put("gradient_checkpointing_modules", [model_parts.language[0]], "vit_gradient_checkpointing")
    if reading["freeze_vit"] and (reading["freeze_aligner"] or _top(model_parts.projector) != _top(model_parts.towers)):
        reading.put("no_grad", list(model_parts.towers), "freeze_vit",  # model/patcher.py, patch_frozen_module
                    because="a tower in which nothing trains runs without gradients")


def _top(patterns: Sequence[str]) -> str:
    """The module right below the model that holds the parameters of the first pattern."""
    return patterns[0].strip("*").partition(".")[0]


def _loss(reading: Reading) -> None:
    """Rejects or notes ms-swift's own losses, which replace the model's (trainers/seq2seq_trainer.py,
    ``compute_loss``)."""
    scaled = reading["is_binary_loss_scale"]
    if scaled is None:
        scaled = set(reading["loss_scale"].split("+")) <= BINARY
    own = next((key for key in ("enable_dft_loss", "enable_channel_loss") if reading[key]),
               None if scaled else "loss_scale")
    if own and reading["use_liger_kernel"]:
        setting = "on" if reading[own] is True else quoted(reading[own])
        raise reading.wrong(own, f"is {setting}, and use_liger_kernel is on, whose loss ms-swift then replaces with "
                                 "its own: leave out one of them")
    if own:
        reading.note(f"{own}: ms-swift's own loss of each token, predicted as that of transformers")


def _pictures(reading: Reading, name: str) -> None:
    """Sets the image size from ``max_pixels``.

    Qwen-VL also has environment variables, which ``model_kwargs`` can set; a limit in tokens overrides one in pixels
    (model/models/qwen.py, ``compat_qwen_vl_utils``).
    """
    variables = {str(key).upper(): item for key, item in (reading["model_kwargs"] or {}).items()}
    config, limits = hub.config(name), {}
    side = picture_sizes.SIDES.get(config.document["model_type"]) if config else None
    for variable, pixels in (("MAX_PIXELS", 1), ("IMAGE_MAX_TOKEN_NUM", side * side)) if side else ():
        by = "model_kwargs" if variable in variables else variable
        item = variables.pop(variable, reading.input.environment.get(variable))
        if item is not None:
            limits = {by: pixels * reading.checked(by, ARGUMENTS["max_pixels"], item)}
    if reading["max_pixels"] is not None:
        limits["max_pixels"] = reading["max_pixels"]
    least = min(limits, key=limits.__getitem__, default="max_pixels")
    steps = [picture_sizes.swift(most) if by == "max_pixels" else picture_sizes.tokens(most, side or 1)
             for by, most in sorted(limits.items(), key=lambda limit: limit[0] != "max_pixels")]
    trainer.pictures(reading, name, limits.get(least), least,
                     resize=picture_sizes.one_after_the_other(*steps) if steps else None)
    if variables:
        reading.note(f"model_kwargs {', '.join(variables)}: what the model's own processor makes of them")


def _dtype(reading: Reading) -> None:
    """Chooses bf16 for weights of bf16, and fp16 for any others (arguments/base_args/model_args.py,
    ``_init_mixed_precision``)."""
    if "bf16" not in reading and "fp16" not in reading:
        own = weight_dtype.dtype_of_model(reading)
        loaded = reading["torch_dtype"] or (own[1] if own else "bf16")
        reading.decided_half = "bf16" if loaded == "bf16" else "fp16"


def _of_4_bits(item: Any, now: Reading) -> Mapping[str, Any] | None:
    return own_keys.quantized(item, now, {"tuner_type": "lora", "quant_method": "bnb", "quant_bits": 4},
                              "bnb_4bit_quant_type", "bnb_4bit_use_double_quant")


def _length(item: int, now: Reading) -> Mapping[str, Any]:
    packed = now["packing"] and now["packing_length"]
    return {"max_length": item} | ({"packing_length": item} if packed else {})


OWN: Mapping[str, Own] = {
    "recipe": own_keys.parts_or_adapters("tuner_type", "freeze_vit", "freeze_aligner", "freeze_llm"),
    "quantization": _of_4_bits,
    "sequence_length": _length,
    "attn_implementation": own_keys.fixed({"sdpa": {"attn_impl": "sdpa"}, "eager": {"attn_impl": "eager"},
                                           "flash_attention_2": {"attn_impl": "flash_attn"}}),
    "image_size": own_keys.pixels("max_pixels", "MAX_PIXELS"),
    "mixed_precision": own_keys.half,
    "padding": own_keys.fixed({"packed": {"packing": True}, "none": {"packing": False, "padding_free": False}}),
}
FORMAT = Format(
    "swift", "ms-swift 4.6", ARGUMENTS,
    frozenset(("tuner_type", "train_type", "sft_type", "freeze_vit", "freeze_aligner", "attn_impl",
               "padding_free", "vit_gradient_checkpointing", "split_dataset_ratio")),
    rules, hf.RENAMED | {"train_type": "tuner_type", "sft_type": "tuner_type", "model_id_or_path": "model",
                         "lora_target_modules": "target_modules", "lora_dropout_p": "lora_dropout",
                         "batch_size": "per_device_train_batch_size", "quantization_bit": "quant_bits"},
    shares=("transformers", "older"), own=OWN, configs={name: builtin(name) for name in STAGES})
