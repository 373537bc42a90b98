"""Reads TRL's supervised fine-tuning: ``trl sft``, its YAML, and its scripts ``sft.py`` and ``sft_vlm.py`` (TRL 1.16).

Sources: trainer/base_config.py, sft_config.py, model_config.py and sft_trainer.py, scripts/sft.py and
examples/scripts/sft_vlm.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.common.suggestions import quoted
from predictor.common.value_types import Choice, Invalid, Number, Whole
from predictor.model import hub
from predictor.model.model_config import Modality
from predictor.readers import own_keys, trainer, weight_dtype
from predictor.readers import training_arguments as hf
from predictor.readers.fields import copied_to, for_rules, noted, refused
from predictor.readers.reading import Format, Own, Reading
from predictor.readers.value_types import FLAG, TEXT, Any_, Mapped, Words

RELEASE = "1.16"
VISION_SCRIPT = "sft_vlm"
"""The script that truncates no samples: it sets ``max_length`` to None."""
NONE = ("none", "null")


class Length(Whole):
    """Value type of ``max_length``: a number of tokens, or none."""

    def __init__(self) -> None:
        super().__init__(1, 1 << 22)

    def from_text(self, text: str) -> Any:
        return False if text.lower() in NONE else super().from_text(text)

    def check(self, value: Any) -> Any:
        return False if value is False else super().check(value)


_ADAPTERS = "what TRL does with adapters over quantized weights under autocast is not compared"
MODEL = {
    "model_name_or_path": for_rules(TEXT, option="model"),
    "dtype": for_rules(weight_dtype.DTYPE_OR_AUTO, "fp32", option="dtype"),
    "attn_implementation": for_rules(TEXT, option="attn_implementation"),
    "use_peft": for_rules(FLAG, False),
    "lora_r": for_rules(Whole(1, 65_536), 16, "lora.r"),
    "lora_alpha": for_rules(Number(), 32, "lora.lora_alpha"),
    "lora_dropout": for_rules(Number(), 0.05, "lora.lora_dropout"),
    "lora_target_modules": for_rules(Words(), option="lora.target_modules"),
    "lora_target_parameters": for_rules(Words()),
    "lora_modules_to_save": for_rules(Words()),
    "use_rslora": for_rules(FLAG, False),
    "use_dora": for_rules(FLAG, False),
    "load_in_4bit": refused(_ADAPTERS, value_type=FLAG),
    "load_in_8bit": refused(_ADAPTERS, value_type=FLAG),
}
"""``ModelConfig``."""
ARGUMENTS = hf.ARGUMENTS | hf.OLDER | MODEL | {
    "gradient_checkpointing": copied_to("gradient_checkpointing", FLAG, True),
    "bf16": for_rules(FLAG),
    "use_liger_kernel": refused("TRL applies Liger's kernels of layers without its loss, which is not predicted: "
                                "leave it out", value_type=FLAG),
    "max_length": for_rules(Length(), 1024, "sequence_length"),
    "packing": for_rules(FLAG, False),
    "packing_strategy": for_rules(Choice(("bfd", "bfd_split", "wrapped"), {}, {"bfd-requeue": "bfd_split"}), "bfd"),
    "padding_free": for_rules(FLAG, False),
    "completion_only_loss": for_rules(FLAG),
    "assistant_only_loss": for_rules(FLAG, False),
    "loss_type": for_rules(Choice(("nll", "chunked_nll"), {"dft": "its weights of tokens are not predicted"}), "nll"),
    "eval_packing": noted("the evaluation is predicted packed as the training is", FLAG, off=(None,)),
    "activation_offloading": refused("offloaded activations are not predicted", value_type=FLAG),
    "model_init_kwargs": for_rules(Mapped()),
    "router_aux_loss_coef": refused("losses of routers are not predicted", value_type=Number()),
    "chat_template_path": noted("tokens that the template's tokenizer adds: rows more of the embedding"),
    "pad_to_multiple_of": noted("padding to a multiple", Any_(), "auto", (None, "auto", "none")),
}
"""``SFTConfig``: defaults are those of TRL, and otherwise of transformers."""
INITIAL = ("dtype", "attn_implementation")
"""Keys of ``model_init_kwargs`` that are read."""


def rules(reading: Reading) -> None:
    """Sets the workload as ``trl sft`` trains it."""
    name = trainer.model(reading, "model_name_or_path")
    reading.decided_half = "fp16" if reading["fp16"] else None if reading["bf16"] is False else "bf16"
    initial = _initial(reading)
    _samples(reading, name)
    _trained(reading, name)
    trainer.attention(reading, initial.get("attn_implementation") or reading["attn_implementation"],
                      "attn_implementation", "model_init_kwargs")
    trainer.checkpointing(reading)
    config = hub.config(name)
    pictured = config is not None and config.kind is Modality.IMAGE_TEXT
    trainer.engine(reading, name, unused=True if pictured else None)
    if "dtype" not in reading.workload:
        weight_dtype.precision(reading, initial.get("dtype") or reading["dtype"], "dtype", "model_init_kwargs")
        if reading.half and reading.half not in reading.values:
            reading.record("mixed_precision", reading.half, because="on unless fp16 is")
    reading.put("loss", "trl_sft", "loss_type", because="SFTTrainer")
    trainer.together(reading)
    trainer.evaluation(reading, "eval_strategy", trainer.asks_for_evaluation(
        reading["eval_strategy"], reading["do_eval"], reading["eval_on_start"]))


def _initial(reading: Reading) -> Mapping[str, Any]:
    """What ``model_init_kwargs`` says; it has precedence over the arguments of the same names (scripts/sft.py).

    Raises:
        NotPredicted: it has other keys.
    """
    given = {{"torch_dtype": "dtype"}.get(key, key): item for key, item in (reading["model_init_kwargs"] or {}).items()}
    for key in given:
        if key not in INITIAL:
            raise reading.refused("model_init_kwargs", f"has {quoted(key)}: only {' and '.join(INITIAL)} are read")
    if "dtype" in given:
        try:
            given["dtype"] = weight_dtype.DTYPE_OR_AUTO.check(given["dtype"])
        except Invalid as error:
            raise reading.wrong("model_init_kwargs", f"dtype {error}") from None
    return given


def _samples(reading: Reading, name: str) -> None:
    """Sets ``sequence_length`` and ``padding``. Batches are as long as their longest sample, at most ``max_length``."""
    of_vision = _stem(reading) == VISION_SCRIPT
    length = reading["max_length"]
    if length and not of_vision:
        reading.put("sequence_length", length, "max_length", because="the longest that is possible")
    if of_vision and "max_length" in reading:
        reading.note("max_length: sft_vlm.py sets it to None")
    flattened = reading["padding_free"] or (reading["packing"] and reading["packing_strategy"] != "wrapped")
    if flattened:
        reading.put("padding", "packed", "packing", "padding_free", "packing_strategy")
    only = [key for key in ("completion_only_loss", "assistant_only_loss") if reading[key]]
    reading.note(f"{', '.join(only) or 'samples of a prompt and a completion'}: the loss is predicted for all tokens; "
                 "of fewer it needs less")


def _stem(reading: Reading) -> str:
    return reading.input.program.rpartition("/")[2].removesuffix(".py")


def _trained(reading: Reading, name: str) -> None:
    if not reading["use_peft"]:
        reading.put("recipe", "full", because="every parameter trains")
        return
    trainer.lora(reading, trainer.LoraKeys("lora_r", "lora_alpha", "lora_dropout", "lora_modules_to_save",
                                            "lora_target_parameters"),
                 targets=hf.targets(reading, name), by=("use_peft", "lora_target_modules"))
    if hub.parts(name):
        trainer.freeze_projector(reading, name, "use_peft")


def _length(item: int, now: Reading) -> Mapping[str, Any] | None:
    return None if _stem(now) == VISION_SCRIPT else {"max_length": item}


def _quantized(item: Any, now: Reading) -> Mapping[str, Any] | None:
    return own_keys.quantized(item, now, {"use_peft": True, "load_in_4bit": True}, "bnb_4bit_quant_type",
                              "use_bnb_nested_quant")


OWN: Mapping[str, Own] = {
    "recipe": own_keys.fixed({"lora": {"use_peft": True}, "full": {"use_peft": False}}),
    "mixed_precision": own_keys.half,
    "sequence_length": _length,
    "padding": own_keys.fixed({"packed": {"packing": True, "packing_strategy": "bfd"}}),
    "loss": own_keys.fixed({"trl_sft": {}}),
    "use_liger_kernel": own_keys.fixed({True: {"use_liger_kernel": True}, False: {}}),
    "quantization": _quantized,
}
FORMAT = Format(
    "trl", f"TRL {RELEASE} (transformers {hf.RELEASE})", ARGUMENTS, frozenset(), rules,
    hf.RENAMED | {"torch_dtype": "dtype", "max_seq_length": "max_length"}, shares=("transformers", "older"), own=OWN)
