"""axolotl's YAML (release 0.19, utils/schemas)."""

from __future__ import annotations

from predictor import hub
from predictor.readers import trainer, weights
from predictor.readers import training_arguments as hf
from predictor.readers.fields import Format, noted, part, refused, to
from predictor.readers.reading import Reading
from predictor.readers.values import FLAG, TEXT, Any_, ConfigFile, FlagOr, Mapped, Words
from predictor.values import Number, Whole

_LATER = "it is not predicted: leave it out"
_OWN = "its own kernels"
KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
ATTENTION = {"flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "eager_attention": "eager"}
LIGER = ("liger_rope", "liger_rms_norm", "liger_glu_activation", "liger_fused_linear_cross_entropy")
ARGUMENTS = {
    "base_model": part(TEXT, option="model"),
    "sequence_len": to("sequence_length", hf.LENGTH, 512),
    "micro_batch_size": part(hf.BATCH, 1, "per_device_train_batch_size"),
    "gradient_accumulation_steps": part(hf.STEPS, 1, "gradient_accumulation_steps"),
    "batch_size": part(Whole(1, 1 << 30)),
    "eval_batch_size": part(hf.BATCH),
    "optimizer": to("optim", TEXT, "adamw_torch_fused"),
    "optim_args": to("optim_args", Any_()),
    "weight_decay": to("weight_decay", Number(), 0.0),
    "max_grad_norm": part(Number(), 1.0, "max_grad_norm"),
    "bf16": part(FlagOr("auto", "full"), "auto"),
    "fp16": part(FLAG, False),
    "bfloat16": part(FLAG, False),
    "float16": part(FLAG, False),
    "gradient_checkpointing": part(FlagOr("offload", "offload_disk"), False),
    "gradient_checkpointing_kwargs": part(Mapped(), option="gradient_checkpointing_kwargs"),
    "activation_offloading": refused("activations in host memory are predicted for gradient_checkpointing_kwargs "
                                     "offload alone: leave it out", (None, False)),
    "selective_checkpointing": refused(_LATER, (None, False)),
    "attn_implementation": part(TEXT, option="attn_implementation"),
    **dict.fromkeys(ATTENTION, part(FLAG)),
    **dict.fromkeys(("xformers_attention", "flex_attention", "sage_attention"),
                    refused("use flash_attention_2 or sdpa")),
    "sample_packing": part(FLAG, False),
    "batch_flattening": noted("samples without padding, in one row", FlagOr("auto")),
    "adapter": part(TEXT),
    "lora_r": part(Whole(1, 65_536), option="lora.r"),
    "lora_alpha": part(Number(), option="lora.lora_alpha"),
    "lora_dropout": part(Number(), 0.0, "lora.lora_dropout"),
    "lora_target_linear": part(FLAG),
    "lora_target_modules": part(Any_()),
    "lora_modules_to_save": part(Words()),
    "peft_use_dora": part(FLAG, False),
    "peft_use_rslora": part(FLAG, False),
    "peft_autocast_adapter_dtype": part(FLAG),
    "load_in_4bit": part(FLAG, False),
    "load_in_8bit": refused("weights of 8 bits are not predicted: use load_in_4bit with adapter qlora", (None, False)),
    "freeze_mm_modules": part(FLAG, False),
    "unfrozen_parameters": refused("give trainable and frozen of the workload"),
    "deepspeed": part(ConfigFile(), option="deepspeed"),
    "fsdp": part(Any_()),
    "fsdp_config": part(ConfigFile()),
    "fsdp_version": part(Whole(1, 2)),
    "ddp_bucket_cap_mb": part(Number()),
    "ddp_find_unused_parameters": part(FLAG, False),
    "torch_compile": to("torch_compile", FlagOr("auto")),
    "val_set_size": part(Number(), 0.0),
    "test_datasets": part(Any_()),
    **dict.fromkeys(LIGER, part(FLAG, False)),
    **dict.fromkeys(("liger_layer_norm", "liger_rms_norm_gated", *KERNELS, "flash_attn_fuse_mlp", "use_kernels"),
                    noted(_OWN, FLAG)),
    **dict.fromkeys(("cut_cross_entropy", "chunked_cross_entropy", "liger_cross_entropy", "flash_attn_cross_entropy"),
                    refused("its loss keeps other logits than those that are predicted: leave it out", kind=FLAG)),
    "tiled_mlp": refused(_LATER, kind=FLAG),
    "liger_kernel_impl": noted(_OWN),
    **{key: hf.NOT_PREDICTED[key] for key in ("neftune_noise_alpha", "torch_empty_cache_steps")},
    "auto_find_batch_size": noted("the batch is halved when memory runs out; this is the first try", FLAG),
    "loraplus_lr_ratio": noted("further optimizer groups", Number()),
    "lr_groups": noted("further optimizer groups"),
    "embedding_lr": noted("further optimizer groups", Number()),
    "embedding_lr_scale": noted("further optimizer groups", Number()),
    "fp32_norms": noted("norms in fp32", FLAG),
    "tokens": noted("further rows of the embedding and the head"),
    "image_size": part(Any_()),
    **dict.fromkeys(("rl", "reward_model", "process_reward_model"), refused(
        "supervised training with next-token loss is predicted")),
    **dict.fromkeys(("relora", "gptq", "qat", "fp8", "layer_offloading", "lisa_n_layers", "lora_target_parameters",
                     "peft_layers_to_transform", "lora_rank_pattern", "deepcompile", "quantize_moe_experts",
                     "peft_layer_replication", "lora_on_cpu", "use_onebitllms", "use_pose"), refused(_LATER)),
    **dict.fromkeys(("context_parallel_size", "tensor_parallel_size", "sequence_parallel_degree", "dp_shard_size",
                     "dp_replicate_size"), refused("parallelism of other than samples is not predicted: leave it out",
                                                   (None, 1))),
    "ddp_static_graph": part(FLAG),
}


def rules(reading: Reading) -> None:
    """utils/config/__init__.py, core/builders/base.py, loaders/."""
    name = trainer.model(reading, "base_model")
    _batch(reading)
    trainer.attention(reading, _attention(reading), *_given(reading, "attn_implementation", *ATTENTION))
    _trained(reading, name)
    _checkpointing(reading)
    if reading["sample_packing"]:
        reading.put("padding", "packed", "sample_packing")
    liger = [key for key in LIGER if reading[key]]
    if len(liger) == len(LIGER):
        reading.put("use_liger_kernel", True, *LIGER)
    elif liger:
        reading.note(f"{', '.join(liger)}: some of Liger's kernels without the others ({', '.join(LIGER)} together are "
                     "predicted): it needs less than is predicted without them")
    _dtype(reading)
    if reading["fsdp_config"] and not reading["fsdp"]:
        reading.values["fsdp"] = "full_shard"
    if reading["fsdp_version"] == 1:
        raise reading.wrong("fsdp_version", "is 1: FSDP1 is not predicted, give 2")
    trainer.engine(reading, name)
    if "dtype" not in reading.workload:
        weights.precision(reading, reading.half or "fp32", *_given(reading, "bf16", "fp16", "bfloat16", "float16"))
    if isinstance(reading["image_size"], int):
        trainer.pictures(reading, name, reading["image_size"] ** 2, "image_size")
    reading.values.setdefault("eval_batch_size", reading["micro_batch_size"])
    trainer.together(reading)
    trainer.evaluation(reading, "val_set_size", bool(reading["val_set_size"] or reading["test_datasets"]),
                       "eval_batch_size")


def _given(reading: Reading, *names: str) -> tuple[str, ...]:
    return tuple(name for name in names if name in reading) or names[:1]


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


def _attention(reading: Reading) -> str | None:
    old = [key for key in ATTENTION if reading[key]]
    if reading["attn_implementation"] and old:
        raise reading.wrong("attn_implementation", f"is given, and so is {old[0]}: keep one")
    return reading["attn_implementation"] or (ATTENTION[old[0]] if old else None)


def _trained(reading: Reading, name: str) -> None:
    adapter, found = reading["adapter"], hub.parts(name)
    if adapter not in (None, "lora", "qlora"):
        raise reading.wrong("adapter", f"{adapter} is not supported: lora and qlora are")
    if adapter is None:
        if reading["load_in_4bit"]:
            raise reading.wrong("load_in_4bit", "is on, but adapter is not given: weights of 4 bits do not train")
        reading.put("recipe", "finetune" if reading["freeze_mm_modules"] else "full", "freeze_mm_modules")
        if reading["freeze_mm_modules"]:
            trainer.freeze_projector(reading, name, "freeze_mm_modules")
        return
    if reading["lora_r"] is None:
        raise reading.wrong("lora_r", f"is not given, but adapter is {adapter}: axolotl has no default")
    targets = "all-linear" if reading["lora_target_linear"] else reading["lora_target_modules"]
    if targets is None:
        raise reading.wrong("lora_target_modules", "is not given, and neither is lora_target_linear: axolotl has no "
                                                   "default")
    if adapter == "qlora" and not reading["load_in_4bit"]:
        raise reading.wrong("load_in_4bit", "is off, but adapter is qlora: axolotl stops there; give true")
    trainer.lora(reading, r="lora_r", alpha="lora_alpha", dropout="lora_dropout", extra="lora_modules_to_save",
                 targets=targets, by=("adapter", *_given(reading, "lora_target_linear", "lora_target_modules")))
    flags = {"use_dora": "peft_use_dora", "use_rslora": "peft_use_rslora",
             "autocast_adapter_dtype": "peft_autocast_adapter_dtype"}
    chosen = {ours: reading[theirs] for ours, theirs in flags.items() if theirs in reading}
    if chosen:
        reading.put("lora", reading.workload["lora"] | chosen, "lora_r", *(flags[key] for key in chosen))
    if not any(key in reading for key in (*KERNELS, "trust_remote_code")):  # check_auto_enable_lora_kernels
        reading.note(f"{', '.join(KERNELS)}: axolotl's own kernels of adapters, which it turns on where none is named "
                     "and the model has them")
    if found:
        trainer.freeze_projector(reading, name, "adapter")
    if reading["load_in_4bit"]:
        reading.put("quantization", {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
                                     "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bf16"},
                    "load_in_4bit")


def _checkpointing(reading: Reading) -> None:
    wanted = reading["gradient_checkpointing"]
    if isinstance(wanted, str):
        raise reading.wrong("gradient_checkpointing", f"{wanted} is not supported: true is, and "
                                                      "gradient_checkpointing_kwargs offload of the workload")
    reading.put("gradient_checkpointing", wanted, "gradient_checkpointing")
    trainer.checkpointing(reading, reentrant="gradient_checkpointing_kwargs" not in reading)


def _dtype(reading: Reading) -> None:
    """``resolve_dtype``: "auto" is bf16 on GPUs that have it, which are those that are predicted."""
    narrow = reading["fp16"] or reading["float16"]
    wide = reading["bfloat16"] or reading["bf16"] in (True, "full") or (reading["bf16"] == "auto" and not narrow)
    reading.decided_half = "bf16" if wide else "fp16" if narrow else None


FORMAT = Format(
    "axolotl", "axolotl 0.19", ARGUMENTS,
    frozenset(("base_model", "sequence_len", "micro_batch_size", "sample_packing", "lora_target_linear",
               "pad_to_sequence_len", "val_set_size", "base_model_config")),
    rules, renamed={"model_type": "type_of_model"}, shares=())
