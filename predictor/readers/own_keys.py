"""Functions for the tables ``Format.own``, which several formats share: a workload's value as keys of a format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.common.value_types import thaw
from predictor.readers.reading import Own, Reading
from predictor.workload.keys import image_sizes

Keys = Mapping[str, Any]


def fixed(names: Mapping[Any, Keys]) -> Own:
    """The keys for each of a few values; None for any other value."""
    return lambda item, now: names.get(item)


def half(item: str, now: Reading) -> Keys:
    """The Trainer's keys for the autocast dtype."""
    return {"bf16": item == "bf16", "fp16": item == "fp16"}


def pixels(name: str, variable: str = "", *, square: bool = True) -> Own:
    """The key with the largest number of pixels, or with the side of square pictures.

    Args:
        variable: environment variable with the same meaning, which is changed if it is what the user has.
        square: true if the key counts pixels, false if it is the side.
    """
    def write(item: Any, now: Reading) -> Keys | None:
        sizes = image_sizes(item)
        if not square and any(height != width for height, width in sizes):
            return None
        by_variable = variable and now.values.get(name) is None and variable in now.input.environment
        most = max(height * width for height, width in sizes)
        return {variable if by_variable else name: most if square else sizes[0][0]}
    return write


def parts_or_adapters(method: str, towers: str, projector: str, language: str) -> Own:
    """The keys for a recipe: adapters, or what trains without them."""
    recipes: dict[str, Keys] = {
        "lora": {method: "lora"},
        "full": {method: "full", towers: False},
        "finetune": {method: "full", towers: True, language: False},
        "pretrain": {method: "full", towers: True, projector: False, language: True}}
    return fixed(recipes)


def quantized(item: Any, now: Reading, keys: Keys, quant_type: str, twice: str) -> Keys | None:
    """The keys of weights of 4 bits, with bitsandbytes' names of settings under the format's names.

    Args:
        keys: what turns the format's quantization on.
        quant_type, twice: the format's keys for ``bnb_4bit_quant_type`` and ``bnb_4bit_use_double_quant``.
    """
    if not item or not item.get("load_in_4bit"):
        return None
    names = {"bnb_4bit_quant_type": quant_type, "bnb_4bit_use_double_quant": twice}
    return {**keys, **{names[key]: thaw(value) for key, value in item.items() if key in names}}
