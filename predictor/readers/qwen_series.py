"""Reads the flags of ``train_sft.py`` in the widely used repository 2U1/Qwen-VL-Series-Finetune.

Sources: src/params.py and src/train/train_sft.py, as of 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.common.value_types import Choice, Number, Whole
from predictor.model import hub
from predictor.readers import own_keys, trainer, weight_dtype
from predictor.readers import training_arguments as hf
from predictor.readers.fields import copied_to, for_rules, noted, refused
from predictor.readers.reading import Format, Own, Reading
from predictor.readers.value_types import FLAG, TEXT, Any_

_GROUPS = "more optimizer groups than the prediction has"
_LATER = "it is not predicted: leave it out"
ARGUMENTS = hf.ARGUMENTS | hf.OLDER | {
    "optim": copied_to("optim", TEXT, "adamw_torch"),
    "model_id": for_rules(TEXT, "Qwen/Qwen2-VL-7B-Instruct", "model"),
    "max_seq_length": copied_to("sequence_length", hf.LENGTH, 32_768),
    "freeze_vision_tower": for_rules(FLAG, False),
    "freeze_llm": for_rules(FLAG, False),
    "freeze_merger": for_rules(FLAG, False),
    "unfreeze_topk_llm": refused(_LATER, value_type=Whole(0, 1_024)),
    "unfreeze_topk_vision": refused(_LATER, value_type=Whole(0, 1_024)),
    "disable_flash_attn2": for_rules(FLAG, False),
    "bits": for_rules(Choice((16,), {4: "adapters over quantized weights of this script are not predicted",
                                     8: "weights of 8 bits are not predicted"}), 16),
    "lora_enable": for_rules(FLAG, False),
    "vision_lora": for_rules(FLAG, False),
    "use_dora": for_rules(FLAG, False),  # train_sft.py does not use it
    "lora_rank": for_rules(Whole(1, 65_536), 64, "lora.r"),
    "lora_alpha": for_rules(Number(), 16, "lora.lora_alpha"),
    "lora_dropout": for_rules(Number(), 0.05, "lora.lora_dropout"),
    "lora_bias": for_rules(Choice(("none",)), "none"),
    "lora_namespan_exclude": for_rules(Any_()),
    "num_lora_modules": refused("the last modules only: not predicted", (None, -1), Whole(-1, 100_000), -1),
    "use_liger": for_rules(FLAG, True),
    "image_max_pixels": for_rules(Whole(1, 1 << 28), 12_845_056, "image_size"),
    "image_resized_width": noted("pictures are resized to it: give --image-size"),
    "image_resized_height": noted("pictures are resized to it: give --image-size"),
    **dict.fromkeys(("vision_lr", "merger_lr", "head_lr"), noted(_GROUPS, Number())),
}
"""Defaults are those of params.py, and otherwise of transformers."""
LANGUAGE = r".*language_model\..*\.(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
"""The linear layers of the language model. The script adapts embeddings and head too, unless they are excluded."""
EXCLUDED = ("lm_head", "embed_tokens")


def rules(reading: Reading) -> None:
    """Sets the workload as ``train()`` uses its flags."""
    name = trainer.model(reading, "model_id")
    if "model" not in reading.workload and not reading.input.options.get("model"):
        reading.put("model", name := hub.known(reading["model_id"]), "model_id")
    if reading["lora_enable"]:
        _adapted(reading, name)
    else:
        trainer.trained(reading, name, "lora_enable", towers="freeze_vision_tower", projector="freeze_merger",
                        language="freeze_llm")
    trainer.attention(reading, "sdpa" if reading["disable_flash_attn2"] else "flash_attention_2", "disable_flash_attn2")
    liger = reading["use_liger"] and "qwen3" not in reading["model_id"].lower()
    reading.put("use_liger_kernel", bool(liger), "use_liger")
    trainer.pictures(reading, name, reading["image_max_pixels"], "image_max_pixels")
    trainer.checkpointing(reading, reentrant=not reading["vision_lora"], because="train_sft.py")
    trainer.engine(reading, name)
    if "dtype" not in reading.workload:
        weight_dtype.precision(reading, reading.half or "fp32", "bf16", "fp16")
    trainer.together(reading)
    trainer.evaluation(reading, "eval_strategy", reading["eval_strategy"] != "no")
    reading.note("max_seq_length: samples are as long as that; a batch is as long as its longest sample")


def _adapted(reading: Reading, name: str) -> None:
    """Adapters of the language model; tower and merger train in full where they are not frozen.

    Raises:
        NotPredicted: adapters of the embeddings or of the tower.
    """
    if not reading["freeze_llm"]:
        raise reading.wrong("freeze_llm", "is off beside lora_enable, and the script stops at that: turn it on")
    if reading["vision_lora"]:
        raise reading.refused("vision_lora", "is on: adapters of all layers of the tower are not predicted")
    excluded = str(reading["lora_namespan_exclude"] or "")
    missing = [part for part in EXCLUDED if part not in excluded]
    if missing:
        raise reading.refused("lora_namespan_exclude", f"lacks {' and '.join(missing)}: adapters of embeddings and "
                                                       "head are not predicted")
    trainer.lora(reading, trainer.LoraKeys("lora_rank", "lora_alpha", "lora_dropout"), targets=LANGUAGE,
                 by=("lora_enable", "lora_namespan_exclude"))
    parts = hub.parts(name)
    if parts is None:
        return
    frozen = [*(parts.projector if reading["freeze_merger"] else ())]
    trainable = [*(parts.towers if not reading["freeze_vision_tower"] else ())]
    if frozen:
        reading.put("frozen", frozen, "freeze_merger")
    if trainable:
        reading.put("trainable", trainable, "freeze_vision_tower")


def _of_parts(item: Any, now: Reading) -> Mapping[str, Any] | None:
    recipes = {"full": {"freeze_vision_tower": False}, "lora": {"lora_enable": True, "freeze_llm": True}}
    return recipes.get(item)


OWN: Mapping[str, Own] = {
    "recipe": _of_parts,
    "mixed_precision": own_keys.half,
    "image_size": own_keys.pixels("image_max_pixels"),
    "attn_implementation": own_keys.fixed({"flash_attention_2": {"disable_flash_attn2": False},
                                           "sdpa": {"disable_flash_attn2": True}}),
    "use_liger_kernel": own_keys.fixed({True: {"use_liger": True}, False: {"use_liger": False}}),
}
FORMAT = Format(
    "qwen_series", "Qwen-VL-Series-Finetune", ARGUMENTS,
    frozenset(("freeze_merger", "disable_flash_attn2", "vision_lora", "lora_namespan_exclude")),
    rules, hf.RENAMED, shares=("transformers", "older"), own=OWN)
