"""Names of the dtypes of weights: peakcast's short names and PyTorch's names."""

from __future__ import annotations

TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SHORT_NAMES = {name: short for short, name in TORCH_NAMES.items()}
