"""What no configuration of a model may have that is neither refused nor built: numbers that would be built for ever, or of nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COUNTED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size", "patch_size")
MOST = 10_000_000
INFINITE = "time_step_limit"


def impossible(path: str) -> str:
    """The first such number in a configuration, with its key; empty if there is none."""
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    return next(_wrong(json.loads(file.read_text("utf-8-sig")), ""), "")


def _wrong(item: Any, key: str) -> Iterator[str]:
    if isinstance(item, (dict, list)):
        for name, inner in item.items() if isinstance(item, dict) else ((key, inner) for inner in item):
            yield from _wrong(inner, name)
    elif isinstance(item, float) and not math.isfinite(item) and key != INFINITE or type(item) in (int, float) and key in COUNTED and not 1 <= item <= MOST:
        yield f"{key} is {item}"
