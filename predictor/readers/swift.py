"""ms-swift's flags, YAML and JSON (release 4.6, swift/arguments/)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from predictor.common.files import read_mapping
from predictor.common.suggestions import show
from predictor.common.value_types import Choice, Number, Whole
from predictor.model import hub
from predictor.readers import fsdp, trainer, weight_dtype
from predictor.readers import training_arguments as hf
from predictor.readers.configuration import Reading
from predictor.readers.fields import Format, noted, part, refused, to
from predictor.readers.loading import RESUMED, on_one_gpu
from predictor.readers.value_types import FLAG, TEXT, Any_, ConfigFile, Mapped, Words

_LATER = "it is not predicted: leave it out"
ARGUMENTS = hf.ARGUMENTS | hf.OLDER | {
    "per_device_train_batch_size": to("per_device_train_batch_size", hf.BATCH, 1),
    "per_device_eval_batch_size": part(hf.BATCH, 1, "per_device_eval_batch_size"),
    "gradient_accumulation_steps": part(hf.STEPS, option="gradient_accumulation_steps"),
    "gradient_checkpointing": to("gradient_checkpointing", FLAG, True),
    "vit_gradient_checkpointing": part(FLAG),
    "weight_decay": to("weight_decay", Number(), 0.1),
    "bf16": part(FLAG),
    "fp16": part(FLAG),
    "model": part(TEXT, option="model"),
    "torch_dtype": part(weight_dtype.DTYPE, option="dtype"),
    "attn_impl": part(TEXT, option="attn_implementation"),
    "max_length": to("sequence_length", hf.LENGTH),
    "max_pixels": part(Whole(1, 1 << 28), option="image_size"),
    "tuner_type": part(Choice(("lora", "full"), dict.fromkeys(
        ("longlora", "adalora", "llamapro", "adapter", "vera", "boft", "fourierft", "reft", "bone"),
        "use lora or full")), "lora"),
    "tuner_backend": part(Choice(("peft",), {"unsloth": "use peft"}), "peft"),
    "freeze_llm": part(FLAG, False),
    "freeze_vit": part(FLAG, True),
    "freeze_aligner": part(FLAG, True),
    "target_modules": part(Words(), ("all-linear",)),
    "target_regex": part(TEXT),
    "modules_to_save": part(Words(), ()),
    "lora_rank": part(Whole(1, 65_536), 8, "lora.r"),
    "lora_alpha": part(Number(), 32, "lora.lora_alpha"),
    "lora_dropout": part(Number(), 0.05, "lora.lora_dropout"),
    "lora_bias": part(Choice(("none", "all")), "none"),
    "lora_dtype": part(weight_dtype.DTYPE),
    "use_rslora": part(FLAG, False),
    "use_dora": part(FLAG, False),
    "quant_method": part(Choice(("bnb",), dict.fromkeys(("hqq", "eetq", "quanto", "fp8"), "use bnb"))),
    "quant_bits": part(Choice((4,), dict.fromkeys((1, 2, 3, 8), "use 4"))),
    "bnb_4bit_quant_type": part(Choice(("nf4", "fp4")), "nf4"),
    "bnb_4bit_use_double_quant": part(FLAG, True),
    "bnb_4bit_compute_dtype": part(weight_dtype.DTYPE),
    "packing": part(FLAG, False),
    "padding_free": part(FLAG, False),
    "packing_length": part(hf.LENGTH),
    "val_dataset": part(Any_()),
    "cached_val_dataset": part(Any_()),
    "split_dataset_ratio": part(Number(), 0.0),
    "eval_strategy": part(TEXT),
    "save_strategy": part(TEXT, "steps"),
    "save_only_model": part(FLAG, False),
    "model_kwargs": part(Mapped()),
    "enable_dft_loss": part(FLAG, False),
    "enable_channel_loss": part(FLAG, False),
    "loss_scale": part(TEXT, "default"),
    "is_binary_loss_scale": part(FLAG),
    "callbacks": part(Words(), ()),
    **dict.fromkeys(("lorap_lr_ratio", "vit_lr", "aligner_lr"), noted("further optimizer groups", Number())),
    "adapters": noted(RESUMED),
    "new_special_tokens": noted("further rows of the embedding and the head"),
    "router_aux_loss_coef": noted("the loss of routers", Number(), 0.0),
    "experts_impl": noted("how experts are computed"),
    **dict.fromkeys(("external_plugins", "custom_register_path"), noted("what code of your own changes")),
    "predict_with_generate": noted("samples that are generated in an evaluation", FLAG),
    "eval_use_evalscope": noted("samples that are generated in an evaluation", FLAG),
    "use_logits_to_keep": part(FLAG),
    "sequence_parallel_size": refused(_LATER, (1, "1")),
    **dict.fromkeys(("freeze_parameters", "freeze_parameters_regex", "freeze_parameters_ratio", "trainable_parameters",
                     "trainable_parameters_regex"), refused("give frozen and trainable of the workload", (
                         None, "", (), 0, 0.0, "0", "0.0", "[]"))),
    **dict.fromkeys(("target_parameters", "use_galore", "lisa_activated_layers", "optimizer", "zero_hpz_partition_size",
                     "deepspeed_autotp_size", "loss_type", "use_swift_lora", "use_ray",
                     "use_flash_ckpt"), refused(_LATER, (
                         None, "", False, 0, "0", "false", "False", ()))),
    **dict.fromkeys(("task_type", "num_labels"), refused("training with next-token loss is predicted", (
        None, "", "causal_lm"))),
    **dict.fromkeys(("device_map", "max_memory"), refused(
        "a model over several devices is not predicted: leave it out")),
    "bnb_4bit_quant_storage": refused("use uint8", (None, "", "uint8")),
    "init_weights": refused(_LATER, (None, "", True, False, "true", "True", "false", "False", "gaussian",
                                     "orthogonal"), default="true"),
    "load_args": refused("the arguments of a checkpoint are not read: give them here", kind=FLAG),
}
SIDES = {"qwen2_vl": 28, "qwen2_5_vl": 28, "qwen3_vl": 32}
"""``model_type`` -> side of a token in pixels, where ms-swift goes by the variables of qwen_vl_utils (0.0.14)."""
BINARY = {"default", "last_round", "all", "base", "ignore_empty_think", "ignore_think_prefix"}
"""Parts of ``loss_scale`` whose weights are 0 and 1 (swift/loss_scale)."""
CALLBACKS = ("early_stop", "perf_log", "graceful_exit")
"""Those of swift/callbacks that change no step."""
BUCKET = 2e8
SHARDED = "SHARDED_STATE_DICT"
FSDP2 = {"fsdp": "full_shard auto_wrap", "fsdp_config": {
    "fsdp_version": 2, "reshard_after_forward": True, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "cpu_ram_efficient_loading": True, "state_dict_type": SHARDED, "activation_checkpointing": True}}
"""swift/config/fsdp2.json."""


def rules(reading: Reading) -> None:
    """swift/arguments/sft_args.py, pipelines/train/tuner.py, trainers/mixin.py."""
    name = trainer.model(reading, "model")
    environment = reading.given.environment
    if environment.get("SWIFT_SINGLE_DEVICE_MODE") != "1":
        here = environment.get("NPROC_PER_NODE", "")
        on_one_gpu(reading, int(here) if here.isdecimal() and len(here) < 6 else reading.world_size,
                   "set NPROC_PER_NODE to their number, or let it see one GPU")
    _loss(reading)
    for callback in reading["callbacks"]:
        if callback not in CALLBACKS:
            raise reading.wrong("callbacks", f"names {show(callback)}, which is not predicted: leave it out")
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
            raise reading.wrong("torch_dtype", "is fp16, which ms-swift trains under autocast of fp16: predicted is "
                                               "that over weights of float32 alone: use them, or bfloat16")
        weight_dtype.precision(reading, reading["torch_dtype"], "torch_dtype")
    if reading["use_logits_to_keep"] is not False:
        reading.note("use_logits_to_keep: ms-swift computes logits only where a token has a label; here all count")
    trainer.together(reading)
    held = next((key for key in ("split_dataset_ratio", "val_dataset", "cached_val_dataset") if reading[key]), None)
    strategy = reading["eval_strategy"] or reading["save_strategy"]  # sft_args.py, _init_eval_strategy
    trainer.evaluation(reading, held or "val_dataset", held is not None and strategy != "no")


def builtin(name: Any) -> Any:
    """The content of the configs that ms-swift has by name; anything else as it is.

    The names are ``zero0`` to ``zero3``, and ``zero2_offload`` and ``zero3_offload`` (swift/config).
    """
    stages = {"zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3, "zero2_offload": 2, "zero3_offload": 3}
    if name not in stages if isinstance(name, str) else True:
        return name
    stage, device = stages[name], "cpu" if name.endswith("offload") else "none"
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
    """arguments/sft_args.py, ``_init_fsdp``: a config by name, a file or its content; it replaces ``fsdp_config``, and
    its checkpointing goes before the Trainer's."""
    if not reading["fsdp"] or "fsdp" in reading.given.launched_with:
        return
    asked = reading.checked("fsdp", part(ConfigFile()), reading["fsdp"])
    if isinstance(asked, str):
        asked = FSDP2 if asked == "fsdp2" else read_mapping(reading.file("fsdp"), "the FSDP config")
    config = asked.get("fsdp_config", {})
    if not isinstance(config, Mapping):
        raise reading.wrong("fsdp", f"has fsdp_config {show(config)}: a section of keys is needed")
    if reading["save_only_model"] and "SHARDED" in str(config.get("state_dict_type", SHARDED)).upper():
        raise reading.wrong("save_only_model", f"is on, and fsdp has state_dict_type {SHARDED}: ms-swift stops there; "
                                               "leave it out")
    if "fsdp_config" in reading.written:
        reading.unread.append(reading.written.pop("fsdp_config"))
    reading.values |= {"fsdp": asked.get("fsdp", FSDP2["fsdp"]), "fsdp_config": config}
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
    trainer.lora(reading, trainer.LoraKeys("lora_rank", "lora_alpha", "lora_dropout", "modules_to_save"),
                 targets=targets, by=by, bias=reading["lora_bias"])
    if reading["lora_dtype"] is not None:
        wide = reading["lora_dtype"] == "fp32"
        trainer.change(reading, "lora", reading.workload["lora"] | {"autocast_adapter_dtype": wide}, "lora_dtype")
    trainer.freeze_projector(reading, name, "tuner_type")
    if reading["quant_method"]:
        found = hub.parts(name)
        half = reading["bnb_4bit_compute_dtype"] or reading["torch_dtype"] or "bf16"
        reading.put("quantization", {
            "load_in_4bit": True, "bnb_4bit_quant_type": reading["bnb_4bit_quant_type"], "bnb_4bit_compute_dtype": half,
            "bnb_4bit_use_double_quant": reading["bnb_4bit_use_double_quant"], "prepare": "trl",
            **({"llm_int8_skip_modules": _not_quantized(found)} if found else {})},
            "quant_method", "quant_bits", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_compute_dtype")


def _quantized(reading: Reading) -> None:
    """arguments/base_args/quant_args.py, ``get_quantization_config``; the Trainer trains no weights of 4 bits."""
    if not reading["quant_method"]:
        if reading["quant_bits"]:
            reading.note("quant_bits: ms-swift quantizes nothing, as quant_method is not given")
    elif not reading["quant_bits"]:
        raise reading.wrong("quant_method", "is given, but quant_bits is not: ms-swift stops there; give 4")
    elif reading["tuner_type"] == "full":
        raise reading.wrong("quant_method", "is given, but tuner_type is full: weights of 4 bits do not train")


def _not_quantized(found: hub.Parts) -> list[str]:
    """arguments/base_args/quant_args.py, ``get_modules_to_not_convert``: all but the language model."""
    parts = (pattern.strip("*").partition(".")[0] for pattern in (*found.towers, found.projector[0]))
    return [*dict.fromkeys(f"model.{part}" for part in parts), "lm_head"]


def _checkpointing(reading: Reading, name: str) -> None:
    """trainers/mixin.py, ``_fix_gradient_checkpointing``: reentrant unless DDP is the engine."""
    ddp = reading.world_size > 1 and not reading["deepspeed"] and not reading["fsdp"]
    trainer.checkpointing(reading, reentrant=not ddp, because="" if ddp else "unless DDP is the engine")
    found, towers = hub.parts(name), reading["vit_gradient_checkpointing"]
    if found and reading.workload["gradient_checkpointing"] and towers is False:
        reading.put("gradient_checkpointing_modules", [found.language[0]], "vit_gradient_checkpointing")
        if reading["freeze_vit"]:
            reading.put("no_grad", list(found.towers), "vit_gradient_checkpointing", "freeze_vit")


def _loss(reading: Reading) -> None:
    """trainers/seq2seq_trainer.py, ``compute_loss``: with a loss of its own, the model's own has no labels."""
    scaled = reading["is_binary_loss_scale"]
    if scaled is None:
        scaled = set(reading["loss_scale"].split("+")) <= BINARY
    own = next((key for key in ("enable_dft_loss", "enable_channel_loss") if reading[key]),
               None if scaled else "loss_scale")
    if own and reading["use_liger_kernel"]:
        given = "on" if reading[own] is True else show(reading[own])
        raise reading.wrong(own, f"is {given}, and use_liger_kernel is on, whose loss ms-swift then replaces with its "
                                 "own: leave out one of them")
    if own:
        reading.note(f"{own}: ms-swift's own loss of each token, predicted as that of transformers")


def _pictures(reading: Reading, name: str) -> None:
    """Pictures come scaled to ``max_pixels``. Qwen-VL has variables besides, which ``model_kwargs`` sets too: a limit
    in tokens goes before one in pixels (model/models/qwen.py, ``compat_qwen_vl_utils``)."""
    given = {str(key).upper(): item for key, item in (reading["model_kwargs"] or {}).items()}
    found, limits = hub.config(name), {}
    side = SIDES.get(found.document["model_type"]) if found else None
    for variable, pixels in (("MAX_PIXELS", 1), ("IMAGE_MAX_TOKEN_NUM", side * side)) if side else ():
        by = "model_kwargs" if variable in given else variable
        item = given.pop(variable, reading.given.environment.get(variable))
        if item is not None:
            limits = {by: pixels * reading.checked(by, ARGUMENTS["max_pixels"], item)}
    if reading["max_pixels"] is not None:
        limits["max_pixels"] = reading["max_pixels"]
    least = min(limits, key=limits.__getitem__, default="max_pixels")
    trainer.pictures(reading, name, limits.get(least), least)
    if given:
        reading.note(f"model_kwargs {', '.join(given)}: what the model's own processor makes of them")


def _dtype(reading: Reading) -> None:
    """arguments/base_args/model_args.py, ``_init_mixed_precision``: weights of bf16 train in bf16, others in fp16."""
    if "bf16" not in reading and "fp16" not in reading:
        said = weight_dtype.said_by_model(reading)
        loaded = reading["torch_dtype"] or (said[1] if said else "bf16")
        reading.decided_half = "bf16" if loaded == "bf16" else "fp16"


FORMAT = Format(
    "swift", "ms-swift 4.6", ARGUMENTS,
    frozenset(("tuner_type", "train_type", "sft_type", "freeze_vit", "freeze_aligner", "attn_impl",
               "padding_free", "vit_gradient_checkpointing", "split_dataset_ratio")),
    rules, hf.RENAMED | {"train_type": "tuner_type", "sft_type": "tuner_type", "model_id_or_path": "model",
                         "lora_target_modules": "target_modules", "lora_dropout_p": "lora_dropout",
                         "batch_size": "per_device_train_batch_size", "quantization_bit": "quant_bits"},
    shares=("transformers", "older"))
