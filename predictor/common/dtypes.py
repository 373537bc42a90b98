"""The dtypes of weights, by our names and by PyTorch's."""

from __future__ import annotations

TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SHORT_NAMES = {name: short for short, name in TORCH_NAMES.items()}
