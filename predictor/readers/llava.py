"""Reads the flags of LLaVA's ``train.py`` (haotian-liu/LLaVA, release 1.2), as in ``pretrain.sh``, ``finetune.sh`` and
``finetune_lora.sh``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.common.suggestions import quoted
from predictor.common.value_types import Choice, Number, Whole
from predictor.model import hub
from predictor.readers import own_keys, trainer, weight_dtype
from predictor.readers import training_arguments as hf
from predictor.readers.fields import copied_to, for_rules, noted, refused
from predictor.readers.reading import Format, Own, Reading
from predictor.readers.value_types import FLAG, TEXT
from predictor.workload.keys import Keys

PINS = "torch 2.1.2, transformers 4.37.2 and DeepSpeed 0.12.6"
VOCABULARY = 32_000
ARGUMENTS = hf.ARGUMENTS | hf.OLDER | {
    "optim": copied_to("optim", TEXT, "adamw_torch"),
    "model_name_or_path": for_rules(TEXT, "facebook/opt-125m", "model"),
    "model_max_length": copied_to("sequence_length", hf.LENGTH, 512),
    "vision_tower": for_rules(TEXT),
    "mm_projector_type": for_rules(Choice(("mlp2x_gelu",), {"linear": "use mlp2x_gelu, a projector of two layers"}),
                              "linear"),
    "mm_vision_select_feature": noted("the class token beside the patches", Choice(("patch", "cls_patch")), "patch",
                                      ("patch",)),
    "mm_use_im_start_end": noted("two rows more of the embedding and the head", FLAG, False),
    "image_aspect_ratio": for_rules(Choice(("square", "pad"), {
        "anyres": "name a model of LLaVA-NeXT with --image-size instead"}), "square"),
    "freeze_backbone": for_rules(FLAG, False),
    "tune_mm_mlp_adapter": for_rules(FLAG, False),
    "freeze_mm_mlp_adapter": for_rules(FLAG, False),
    "bits": for_rules(Choice((16, 4), {8: "weights of 8 bits are not predicted: use 4 or 16"}), 16),
    "quant_type": for_rules(Choice(("nf4", "fp4")), "nf4"),
    "double_quant": for_rules(FLAG, True),
    "lora_enable": for_rules(FLAG, False),
    "lora_r": for_rules(Whole(1, 65_536), 64, "lora.r"),
    "lora_alpha": for_rules(Number(), 16, "lora.lora_alpha"),
    "lora_dropout": for_rules(Number(), 0.05, "lora.lora_dropout"),
    "lora_bias": for_rules(Choice(("none", "all", "lora_only")), "none"),
    **dict.fromkeys(("fsdp", *hf.WRAPPED), refused("transformers 4.37 has FSDP1, which is not predicted: use "
                                                   "deepspeed, or leave it out")),
    "mm_projector_lr": noted("four optimizer groups where the prediction has two", Number()),
}
"""Defaults are those of llava/train/train.py, and otherwise of transformers 4.37."""
ATTENTION = {"train_mem.py": "flash_attention_2", "llava.train.train_mem": "flash_attention_2"}
NO_GRAD = "*vision_tower*"


def rules(reading: Reading) -> None:
    """Sets the workload as LLaVA's ``train()`` uses its flags."""
    name = _model(reading)
    program = reading.input.program.rpartition("/")[2]
    default = ATTENTION.get(program, "sdpa")
    reading.put("attn_implementation", default, because=program or "train.py")
    if program == "train_xformers.py":
        reading.note("xformers' attention: predicted as PyTorch's (sdpa)")
    _trained(reading, name)
    trainer.checkpointing(reading, reentrant=True, because="transformers 4.37")
    reading.put("no_grad", [NO_GRAD], because="llava/model/multimodal_encoder/clip_encoder.py")
    trainer.engine(reading, name)
    if "dtype" not in reading.workload:
        weight_dtype.precision(reading, "bf16" if reading["bf16"] else "fp32", "bf16")
    trainer.together(reading)
    trainer.evaluation(reading, "eval_strategy", reading["eval_strategy"] != "no")
    _differences(reading)


def _model(reading: Reading) -> str:
    name = hub.llava(reading["model_name_or_path"], reading["vision_tower"])
    if reading["vision_tower"] and hub.is_language_model_of_llava(name):
        raise reading.wrong("vision_tower", f"is {quoted(reading['vision_tower'])}: beside {name} only "
                                            f"openai/{hub.CLIP} is known")
    if name in hub.LANGUAGE_MODELS.values() and "mm_projector_type" not in reading and \
            "llava" not in reading["model_name_or_path"].lower():
        raise reading.refused("mm_projector_type", "is not given, and LLaVA's default, linear, is not supported: use "
                                                   "mlp2x_gelu, a projector of two layers")
    because = "" if name == reading["model_name_or_path"] else reading["model_name_or_path"]
    reading.put("model", name, "model_name_or_path", "vision_tower", "mm_projector_type", because=because)
    return name


def _trained(reading: Reading, name: str) -> None:
    """Sets ``recipe``, ``lora``, ``frozen`` and ``quantization``.

    ``freeze_backbone`` freezes ``model.model``, which does not contain the head. Adapters are added, and the projector
    is created or made trainable, only afterwards (``initialize_vision_modules``).
    """
    if reading["tune_mm_mlp_adapter"]:
        if reading["lora_enable"]:
            raise reading.wrong("lora_enable", "is true, and so is tune_mm_mlp_adapter, which trains the projector "
                                               "alone: keep one")
        reading.put("recipe", "pretrain", "tune_mm_mlp_adapter")
    elif reading["lora_enable"]:
        trainer.lora(reading, trainer.LoraKeys("lora_r", "lora_alpha", "lora_dropout"), targets=None,
                     by=("lora_enable",), bias=reading["lora_bias"])
        reading.put("lora", reading.workload["lora"] | {"autocast_adapter_dtype": False}, "lora_r", "lora_alpha",
                    "lora_dropout", "lora_bias", because="adapters in the dtype of their layers, as peft had it then")
    else:
        reading.put("recipe", "finetune", "tune_mm_mlp_adapter", "lora_enable")
    parts, whole = hub.parts(name), reading.workload["recipe"] == "finetune"
    frozen = [*(parts.projector if reading["freeze_mm_mlp_adapter"] else ()),
              *(parts.language[:1] if reading["freeze_backbone"] and whole else ())] if parts else []
    if frozen:
        reading.put("frozen", frozen, "freeze_mm_mlp_adapter", "freeze_backbone")
    if reading["bits"] == 4:
        if not reading["lora_enable"]:
            raise reading.wrong("bits", "is 4, but lora_enable is off: weights of 4 bits do not train")
        reading.put("quantization", {
            "load_in_4bit": True, "bnb_4bit_quant_type": reading["quant_type"],
            "bnb_4bit_use_double_quant": reading["double_quant"],
            "bnb_4bit_compute_dtype": "bf16" if reading["bf16"] else "fp32"}, "bits", "quant_type", "double_quant")
        reading.note("bits 4: LLaVA casts adapters, norms and head once more after peft has prepared the model")


def _differences(reading: Reading) -> None:
    """Adds notes about the differences between LLaVA's own model and transformers', which is traced."""
    reading.note(f"LLaVA's repository pins {PINS}: predicted are the versions of the workload")
    reading.note("the loss of LLaVA's own transformers, 4.37, copies its fp32 logits once more", more_bytes=_logits)
    reading.note("LLaVA's own code puts image features among the tokens sample by sample, its vocabulary has 32,000 "
                 "words where llava-hf's has 32,064, and its vision tower has eager attention")


def _logits(workload: Keys) -> int:
    whole = not workload.use_liger_kernel  # which never has all logits at once
    return whole * workload.per_device_train_batch_size * (workload.sequence_length or 0) * VOCABULARY * 4


def _of_4_bits(item: Any, now: Reading) -> Mapping[str, Any] | None:
    return own_keys.quantized(item, now, {"lora_enable": True, "bits": 4, "tune_mm_mlp_adapter": False}, "quant_type",
                              "double_quant")


def _reentrant(item: Mapping[str, Any] | None, now: Reading) -> Mapping[str, Any] | None:
    if item is not None and item.keys() - {"use_reentrant"}:
        return None
    return {"gradient_checkpointing_kwargs": None if item is None else dict(item)}


OWN: Mapping[str, Own] = {
    "recipe": own_keys.fixed({
        "lora": {"lora_enable": True, "tune_mm_mlp_adapter": False},
        "pretrain": {"tune_mm_mlp_adapter": True, "lora_enable": False},
        "finetune": {"tune_mm_mlp_adapter": False, "lora_enable": False}}),
    "quantization": _of_4_bits,
    "use_liger_kernel": own_keys.fixed({}),  # transformers 4.37 has neither that nor offload of checkpoints
    "gradient_checkpointing_kwargs": _reentrant,
    "mixed_precision": own_keys.half,
}
FORMAT = Format(
    "llava", "LLaVA 1.2 (transformers 4.37)", ARGUMENTS,
    frozenset(("mm_projector_type", "tune_mm_mlp_adapter", "vision_tower", "mm_vision_select_layer",
               "pretrain_mm_mlp_adapter")),
    rules, hf.RENAMED, shares=("transformers", "older"), own=OWN)
