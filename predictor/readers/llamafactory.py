"""Reads LLaMA-Factory's YAML, JSON and flags (release 0.9.5, hparams/)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.common.value_types import Choice, Number, Whole
from predictor.model import hub
from predictor.readers import own_keys, picture_sizes, trainer, weight_dtype
from predictor.readers import training_arguments as hf
from predictor.readers.fields import copied_to, for_rules, noted, refused
from predictor.readers.loading import RESUMED
from predictor.readers.reading import Format, Own, Reading
from predictor.readers.value_types import FLAG, TEXT, Any_, Words
from predictor.workload.keys import Keys

_OPTIMIZER = "its optimizer is not predicted: leave it out"
_LOSS = "its own loss over all logits is not predicted: leave it out"
_MODEL = "it changes the model in a way that is not predicted: leave it out"
ARGUMENTS = hf.ARGUMENTS | hf.OLDER | {
    "model_name_or_path": for_rules(TEXT, option="model"),
    "stage": for_rules(Choice(("sft", "pt"), dict.fromkeys(
        ("rm", "ppo", "dpo", "kto"), "supervised training (sft, pt) is predicted")), "sft"),
    "finetuning_type": for_rules(Choice(("lora", "full"), {
        "freeze": "use full, with frozen patterns of the workload", "oft": "use lora"}), "lora"),
    "cutoff_len": copied_to("sequence_length", hf.LENGTH, 2048),
    "flash_attn": for_rules(Choice(("auto", "disabled", "sdpa", "fa2"), {"fa3": "use fa2"}), "auto"),
    "disable_gradient_checkpointing": for_rules(FLAG, False),
    "use_reentrant_gc": for_rules(FLAG, True, "gradient_checkpointing_kwargs.use_reentrant"),
    "pure_bf16": for_rules(FLAG, False),
    "freeze_vision_tower": for_rules(FLAG, True),
    "freeze_multi_modal_projector": for_rules(FLAG, True),
    "freeze_language_model": for_rules(FLAG, False),
    "lora_rank": for_rules(Whole(1, 65_536), 8, "lora.r"),
    "lora_alpha": for_rules(Number(), option="lora.lora_alpha"),
    "lora_dropout": for_rules(Number(), 0.0, "lora.lora_dropout"),
    "lora_target": for_rules(Words(), ("all",)),
    "additional_target": for_rules(Words()),
    "use_rslora": for_rules(FLAG, False),
    "use_dora": for_rules(FLAG, False),
    "enable_liger_kernel": for_rules(FLAG, False, "use_liger_kernel"),
    "quantization_bit": for_rules(Choice((4,), dict.fromkeys((8, 2, 3), "use 4, or leave it out"))),
    "quantization_method": for_rules(Choice(("bnb",), dict.fromkeys(("hqq", "eetq", "gptq", "awq"), "use bnb")), "bnb"),
    "quantization_type": for_rules(Choice(("nf4", "fp4")), "nf4"),
    "double_quantization": for_rules(FLAG, True),
    "image_max_pixels": for_rules(Whole(1, 1 << 28), 768 * 768, "image_size"),
    "image_min_pixels": for_rules(Whole(1, 1 << 28), 32 * 32),
    "neat_packing": for_rules(FLAG, False),
    "val_size": for_rules(Number(), 0.0),
    "eval_dataset": for_rules(Any_()),
    "upcast_layernorm": noted("norms in fp32", FLAG, False),
    "upcast_lmhead_output": refused("the logits would be there once more in fp32: leave it out", value_type=FLAG),
    "adapter_name_or_path": noted(RESUMED),
    "loraplus_lr_ratio": noted("further optimizer groups", Number()),
    **dict.fromkeys(("use_dft_loss", "use_eaft_loss"), refused(_LOSS, value_type=FLAG)),
    "use_asft_loss": refused(f"a reference model, and {_LOSS}", value_type=FLAG),
    "moe_aux_loss_coef": noted("the auxiliary loss of MoE routers", Number()),
    "crop_to_patches": noted("pictures in several tiles", FLAG, False),
    "image_do_pan_and_scan": noted("pictures in several tiles", FLAG, False),
    "resize_vocab": noted("further rows of the embedding and the head", FLAG, False),
    **dict.fromkeys(("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon"), refused(_OPTIMIZER)),
    **dict.fromkeys(("use_unsloth", "use_unsloth_gc", "shift_attn", "mixture_of_depths", "use_llama_pro", "use_kt",
                     "fp8", "use_v1_kernels", "use_mca", "use_hyper_parallel"), refused(_MODEL)),
}


def rules(reading: Reading) -> None:
    """Sets the workload as LLaMA-Factory does (hparams/parser.py, model/adapter.py, model/patcher.py)."""
    name = trainer.model(reading, "model_name_or_path")
    trainer.attention(reading, {"auto": "sdpa"}.get(reading["flash_attn"], reading["flash_attn"]), "flash_attn")
    adapters = reading["finetuning_type"] == "lora"
    _adapters(reading, name) if adapters else _without_adapters(reading, name)
    reading.put("gradient_checkpointing", not reading["disable_gradient_checkpointing"] or
                reading["gradient_checkpointing"], "disable_gradient_checkpointing")
    reading.put("use_liger_kernel", reading["enable_liger_kernel"] or reading["use_liger_kernel"],
                "enable_liger_kernel", "use_liger_kernel")
    if not reading["disable_gradient_checkpointing"]:
        launch = reading.input.launch  # model/model_utils/checkpointing.py, prepare_model_for_training
        fsdp2 = launch is not None and str(launch.fsdp.get("version")) == "2"
        reading.put("gradient_checkpointing_kwargs", {"use_reentrant": reading["use_reentrant_gc"] and not fsdp2},
                    "use_reentrant_gc", because="false with accelerate's FSDP2" if fsdp2 else "")
    _frozen_towers(reading, name)
    if reading["neat_packing"]:
        reading.put("padding", "packed", "neat_packing")
    most = reading["image_max_pixels"]
    trainer.pictures(reading, name, most, "image_max_pixels", resize=picture_sizes.llamafactory(
        most, reading["image_min_pixels"], _is_qwen(name)) if isinstance(most, int) else None)
    trainer.engine(reading, name, unused=False if adapters else None)  # hparams/parser.py, get_train_args
    if reading["pure_bf16"] and reading.workload.get("engine") == "fsdp2":  # model/adapter.py, init_adapter
        reading.put("dtype", "bf16", "pure_bf16")
    if "dtype" not in reading.workload:
        _precision(reading, adapters)
    trainer.together(reading)
    trainer.evaluation(reading, "eval_strategy", reading["eval_strategy"] != "no" and
                       bool(reading["val_size"] or reading["eval_dataset"]))


def _frozen_towers(reading: Reading, name: str) -> None:
    """Sets what a frozen vision tower keeps for backward.

    LLaMA-Factory recomputes only layers with parameters that train (model/model_utils/checkpointing.py,
    ``get_custom_gradient_checkpointing_func``), so never those of a frozen tower. They keep their activations where
    gradients reach them: peft makes the outputs of embeddings require gradients if the model is checkpointed and not
    quantized (0.21, peft_model.py, ``_prepare_model_for_gradient_checkpointing``), and since transformers 5 a tower's
    patch embedding is among those (modeling_utils.py, ``enable_input_require_grads``).
    """
    parts = hub.parts(name)
    if not parts or not reading["freeze_vision_tower"]:
        return
    checkpointed = reading.workload["gradient_checkpointing"]
    if reading["finetuning_type"] == "lora" and checkpointed and "quantization" not in reading.workload:
        reading.put("gradient_checkpointing_modules", [parts.language[0]], "freeze_vision_tower",
                    because="only what trains is recomputed")
        reading.note("with transformers below 5 the frozen vision tower keeps no activations; here it keeps them all, "
                     "as with transformers 5")
    else:
        reading.put("no_grad", list(parts.towers), "freeze_vision_tower", because="no gradients reach it")


def _is_qwen(name: str) -> bool:
    config = hub.config(name)
    return config is not None and str(config.document["model_type"]).startswith("qwen")


def _adapters(reading: Reading, name: str) -> None:
    everywhere = tuple(reading["lora_target"]) == ("all",)
    targets = reading["lora_target"]
    if everywhere:
        targets = trainer.parts_with_adapters(name, not reading["freeze_vision_tower"], False,
                                              not reading["freeze_language_model"])
    alpha = "lora_alpha" if "lora_alpha" in reading else 2 * reading["lora_rank"]
    trainer.lora(reading, trainer.LoraKeys("lora_rank", alpha, "lora_dropout", "additional_target"), targets=targets,
                 by=("finetuning_type", "lora_target"))
    trainer.freeze_projector(reading, name, "finetuning_type")
    if reading["quantization_bit"]:
        reading.put("quantization", {
            "load_in_4bit": True, "bnb_4bit_quant_type": reading["quantization_type"],
            "bnb_4bit_use_double_quant": reading["double_quantization"],
            "bnb_4bit_compute_dtype": reading.half or "fp32",
            "llm_int8_skip_modules": ["lm_head"], "prepare": "trl"},
            "quantization_bit", "quantization_type", "double_quantization")
        reading.note("quantization_bit 4: adapters are fp32 in LLaMA-Factory, bf16 in the prediction")


def _without_adapters(reading: Reading, name: str) -> None:
    if reading["quantization_bit"]:
        raise reading.wrong("quantization_bit", "is given, but finetuning_type is full: weights of 4 bits do not train")
    trainer.trained(reading, name, "finetuning_type", towers="freeze_vision_tower",
                    projector="freeze_multi_modal_projector", language="freeze_language_model")


def _precision(reading: Reading, adapters: bool) -> None:
    """Sets the dtype of the weights: trained parameters are fp32 unless ``pure_bf16``, frozen ones are in the autocast
    dtype."""
    half = reading.half
    if adapters or reading["pure_bf16"]:
        wide = "fp32" if half == "fp16" else "bf16"
        weight_dtype.precision(reading, wide if half or reading["pure_bf16"] else None, half or "pure_bf16")
    else:
        weight_dtype.precision(reading, "fp32", because="what trains is fp32")
        if half and reading.workload["recipe"] != "full":
            reading.note(f"parameters that do not train: {half} in LLaMA-Factory, fp32 here", _wide)


def _wide(workload: Keys) -> str | None:
    return "" if workload.dtype == "fp32" else None


def _checkpoints(item: bool, now: Reading) -> dict[str, bool]:
    return {"disable_gradient_checkpointing": not item} | ({} if item else {"gradient_checkpointing": False})


def _reentrant(item: Mapping[str, Any] | None, now: Reading) -> dict[str, bool] | None:
    if item is None:  # it goes with the checkpoints
        return {}
    on = now["disable_gradient_checkpointing"]  # the framework sets use_reentrant only where its own key is on
    return None if on or item.keys() - {"use_reentrant"} else {"use_reentrant_gc": item["use_reentrant"]}


def _of_4_bits(item: Any, now: Reading) -> Mapping[str, Any] | None:
    return own_keys.quantized(item, now, {"finetuning_type": "lora", "quantization_bit": 4}, "quantization_type",
                              "double_quantization")


OWN: Mapping[str, Own] = {
    "recipe": own_keys.parts_or_adapters("finetuning_type", "freeze_vision_tower", "freeze_multi_modal_projector",
                                         "freeze_language_model"),
    "quantization": _of_4_bits,
    "gradient_checkpointing": _checkpoints,
    "gradient_checkpointing_kwargs": _reentrant,
    "attn_implementation": own_keys.fixed({"sdpa": {"flash_attn": "sdpa"}, "flash_attention_2": {"flash_attn": "fa2"},
                                           "eager": {"flash_attn": "disabled"}}),
    "use_liger_kernel": own_keys.fixed({True: {"enable_liger_kernel": True}}),
    "image_size": own_keys.pixels("image_max_pixels"),
    "mixed_precision": own_keys.half,
    "padding": own_keys.fixed({"packed": {"neat_packing": True}, "none": {"neat_packing": False}}),
}
FORMAT = Format(
    "llamafactory", "LLaMA-Factory 0.9.5", ARGUMENTS,
    frozenset(("finetuning_type", "cutoff_len", "lora_target", "dataset_dir", "freeze_vision_tower",
               "disable_gradient_checkpointing", "image_max_pixels")),
    rules, hf.RENAMED, shares=("transformers", "older"), own=OWN, starts="llamafactory-cli train")
