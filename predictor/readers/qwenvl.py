"""Reads the flags of ``train_qwen.py`` in Qwen-VL's own repository (QwenLM/Qwen3-VL, qwen-vl-finetune).

Sources: qwenvl/train/argument.py, train_qwen.py (``set_model``, ``train``) and qwenvl/data/data_processor.py, as of
2025.
"""

from __future__ import annotations

from collections.abc import Mapping

from predictor.common.value_types import Choice, Number, Whole
from predictor.model import hub
from predictor.readers import own_keys, trainer, weight_dtype
from predictor.readers import training_arguments as hf
from predictor.readers.fields import copied_to, for_rules, noted
from predictor.readers.reading import Format, Own, Reading
from predictor.readers.value_types import FLAG, TEXT, Words

PINS = "torch 2.6, transformers 4.57, DeepSpeed 0.17.1 and flash-attn 2.7.4"
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj")
SIDE = 28
ARGUMENTS = hf.ARGUMENTS | hf.OLDER | {
    "optim": copied_to("optim", TEXT, "adamw_torch"),
    "model_name_or_path": for_rules(TEXT, "Qwen/Qwen2.5-VL-3B-Instruct", "model"),
    "model_max_length": copied_to("sequence_length", hf.LENGTH, 512),
    "tune_mm_llm": for_rules(FLAG, False),
    "tune_mm_mlp": for_rules(FLAG, False),
    "tune_mm_vision": for_rules(FLAG, False),
    "lora_enable": for_rules(FLAG, False),
    "lora_r": for_rules(Whole(1, 65_536), 8, "lora.r"),
    "lora_alpha": for_rules(Number(), 16, "lora.lora_alpha"),
    "lora_dropout": for_rules(Number(), 0.05, "lora.lora_dropout"),
    "lora_target_modules": for_rules(Words(), ADAPTED),
    "lora_bias": for_rules(Choice(("none",)), "none"),
    "max_pixels": for_rules(Whole(1, 1 << 28), 576 * SIDE * SIDE, "image_size"),
    "data_flatten": for_rules(FLAG, False),
    "data_packing": for_rules(FLAG, False),
    "mm_projector_lr": noted("more optimizer groups than the prediction has", Number()),
    "vision_tower_lr": noted("more optimizer groups than the prediction has", Number()),
}
"""Defaults are those of argument.py, and otherwise of transformers 4.57."""


def rules(reading: Reading) -> None:
    """Sets the workload as ``train()`` uses its flags."""
    name = trainer.model(reading, "model_name_or_path")
    if "model" not in reading.workload and not reading.input.options.get("model"):
        reading.put("model", name := hub.known(reading["model_name_or_path"]), "model_name_or_path")
    _trained(reading, name)
    reading.put("attn_implementation", "flash_attention_2", because="train_qwen.py")
    trainer.pictures(reading, name, reading["max_pixels"], "max_pixels")
    trainer.checkpointing(reading, reentrant=True, because="transformers 4.57")
    trainer.engine(reading, name)
    if "dtype" not in reading.workload:
        weight_dtype.precision(reading, "bf16" if reading["bf16"] else None, "bf16")
    trainer.together(reading)
    trainer.evaluation(reading, "eval_strategy", reading["eval_strategy"] != "no")
    if reading["data_flatten"] or reading["data_packing"]:
        reading.note("data_flatten, data_packing: the samples of a batch in one row: predicted as a batch of full "
                     "samples")
    reading.note("model_max_length: samples are as long as that; a row holds the longest sample of its batch")
    reading.note(f"the repository pins {PINS}: predicted are the versions of the workload")


def _trained(reading: Reading, name: str) -> None:
    """``set_model``: the switch of the language model does not reach a head of its own, which always trains, as it sets
    an attribute of the layer, not of its weight."""
    by, parts = ("tune_mm_vision", "tune_mm_mlp", "tune_mm_llm"), hub.parts(name)
    if reading["lora_enable"]:
        trainer.lora(reading, trainer.LoraKeys("lora_r", "lora_alpha", "lora_dropout"), targets=ADAPTED,
                     by=("lora_enable",))
        trainer.freeze_projector(reading, name, "lora_enable")
        return
    reading.put("recipe", "full", *by)
    if parts is None:
        return
    # the deepstack mergers of Qwen3-VL are parts of the tower there
    inner, outer = parts.projector[:1], parts.projector[1:]
    language = tuple(pattern for pattern in parts.language if "lm_head" not in pattern)
    frozen = [pattern for patterns, key in ((parts.towers + outer, by[0]), (inner, by[1]), (language, by[2]))
              if not reading[key] for pattern in patterns]
    if frozen:
        reading.put("frozen", frozen, *by)


OWN: Mapping[str, Own] = {
    "recipe": own_keys.fixed({"lora": {"lora_enable": True}}),
    "mixed_precision": own_keys.half,
    "image_size": own_keys.pixels("max_pixels"),
    "attn_implementation": own_keys.fixed({"flash_attention_2": {}}),
}
FORMAT = Format(
    "qwenvl", "Qwen-VL's train_qwen.py (transformers 4.57)", ARGUMENTS,
    frozenset(("tune_mm_llm", "tune_mm_vision", "tune_mm_mlp", "dataset_use", "data_flatten", "data_packing")),
    rules, hf.RENAMED, shares=("transformers", "older"), own=OWN)
