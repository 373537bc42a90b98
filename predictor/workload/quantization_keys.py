"""The keys of ``quantization``, under the names of transformers' ``BitsAndBytesConfig``.

Names and defaults are those of release 5.17, with one exception: in training the head and the projector, which the
recipe trains, are not quantized.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.common.value_types import Choice, Flag, FrozenMap, Invalid, NotYetSupported, Number, Table
from predictor.workload.lora_keys import Names

SKIPPED = ("model.multi_modal_projector", "model.connector", "model.visual.merger",
           "model.visual.deepstack_merger_list", "lm_head")
"""Modules that are not quantized in training: the projectors of transformers' models, and the head."""
_DTYPES = {"bfloat16": "bf16", "float32": "fp32", "torch.bfloat16": "bf16", "torch.float32": "fp32"}
_FP16 = dict.fromkeys(("fp16", "float16", "torch.float16"), "use bf16")
FOUR_BITS = FrozenMap({"load_in_4bit": True, "bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": False,
                       "bnb_4bit_compute_dtype": "fp32", "llm_int8_skip_modules": None})
EIGHT_BITS = FrozenMap({"load_in_8bit": True, "llm_int8_threshold": 6.0, "llm_int8_skip_modules": None})
"""Defaults of layers of 8 bits, as :data:`FOUR_BITS` of 4 bits. Skip modules None: transformers chooses."""


class _Settings(Table):
    """Value type of ``quantization``: settings for 4 or for 8 bits, not for both."""

    def check(self, value: Any) -> FrozenMap:
        settings = {key: item for key, item in super().check(value).items() if item is not None}
        four, eight = (settings.pop(f"load_in_{bits}bit", None) for bits in (4, 8))
        if four and eight:
            raise Invalid("has load_in_4bit and load_in_8bit: leave one of them out")
        if four is False and not eight:
            raise Invalid("load_in_4bit must be true: leave quantization out for weights in bf16")
        defaults, other_prefix, width = (EIGHT_BITS, "bnb_4bit_", 8) if eight else (FOUR_BITS, "llm_int8_threshold", 4)
        for key in settings:
            if key.startswith(other_prefix):
                raise Invalid(f"has {key}, which layers of {width} bits have not: leave it out")
        return FrozenMap({**defaults, **settings})

    def usual(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        ours = EIGHT_BITS if "load_in_8bit" in value else FOUR_BITS
        return {"prepare": "peft", **ours, "load_in_4bit": None, "load_in_8bit": None, "llm_int8_skip_modules": SKIPPED}


VALUE_TYPE = _Settings({
    "load_in_4bit": Flag(), "load_in_8bit": Flag(),
    "bnb_4bit_quant_type": Choice(("fp4", "nf4")), "bnb_4bit_use_double_quant": Flag(),
    "bnb_4bit_compute_dtype": Choice(("bf16", "fp32"), _FP16, _DTYPES),
    "bnb_4bit_quant_storage": Choice(("uint8",), dict.fromkeys(("bfloat16", "float16", "float32"), "use uint8")),
    "llm_int8_threshold": Number(),
    "llm_int8_has_fp16_weight": NotYetSupported("leave it out"),
    "llm_int8_enable_fp32_cpu_offload": NotYetSupported("leave it out"),
    "llm_int8_skip_modules": Names(pattern=False), "prepare": Choice(("peft", "trl"))}, {})
HELP = ("transformers' BitsAndBytesConfig: load_in_4bit=true, bnb_4bit_quant_type=nf4, bnb_4bit_use_double_quant=true, "
        "bnb_4bit_compute_dtype=bf16 (fp32); load_in_8bit=true, llm_int8_threshold=0 (6); llm_int8_skip_modules; in "
        "training prepare=peft: prepare_model_for_kbit_training makes the other weights fp32; trl: they stay, what "
        "trains becomes bf16")
