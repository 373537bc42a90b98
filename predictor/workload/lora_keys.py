"""The keys of ``lora``.

Defaults are peft's (0.21, ``LoraConfig``), but for the layers: all linear layers of the language model, without the
head, as LLaVA's own scripts take them. The projector trains in full beside the adapters, as there too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from predictor.common.suggestions import show
from predictor.common.value_types import Choice, Flag, FrozenMap, Invalid, Number, Table, Text, Whole

ALL_LINEAR = "all-linear"


class Names:
    """Layers by name: a list of names or ends of paths; with ``pattern``, one text is a regular expression of the
    whole path, or ``all-linear``. As peft has it."""

    def __init__(self, *, pattern: bool) -> None:
        self.pattern = pattern

    def check(self, value: Any) -> tuple[str, ...] | str:
        if isinstance(value, str) and self.pattern:
            try:
                re.compile(Text().check(value))
            except re.error as error:
                raise Invalid(f"is no regular expression: {error}") from None
            except (RecursionError, OverflowError):
                raise Invalid("is no regular expression that can be read: its groups or counts are too many") from None
            return value.lower() if value.lower() == ALL_LINEAR else value
        names = (value,) if isinstance(value, str) else value
        if not isinstance(names, (list, tuple)) or not names:
            raise Invalid(f"must be a list of names of layers, not {show(value)}")
        return tuple(dict.fromkeys(Text().check(name) for name in names))

    def from_text(self, text: str) -> tuple[str, ...] | str:
        """Names with commas between; with ``pattern``, anything else is a regular expression."""
        plain = re.fullmatch(r"[\w.]+(,[\w.]+)*", text)
        return self.check(tuple(text.split(",")) if plain or not self.pattern else text)


class Share(Number):
    """A number of at least 0 and below 1."""

    def check(self, value: Any) -> float:
        number = super().check(value)
        if number >= 1:
            raise Invalid(f"must be below 1, not {show(value)}")
        return number


class LoraTable(Table):
    """The ``lora`` key; ``none`` and false mean that it was not given."""

    def check(self, value: Any) -> FrozenMap | None:
        if value is False or (isinstance(value, str) and value.lower() in ("none", "false")):
            return None
        if not isinstance(value, Mapping):
            raise Invalid(f"must be a mapping such as r: 16, not {show(value)}; known keys are {', '.join(self.kinds)}")
        return super().check(value)


DEFAULTS = FrozenMap({
    "r": 8, "lora_alpha": 8.0, "target_modules": None, "lora_dropout": 0.0, "modules_to_save": None,
    "use_rslora": False, "use_dora": False, "bias": "none", "autocast_adapter_dtype": True})
KIND = LoraTable({
    "r": Whole(1, 65_536), "lora_alpha": Number(), "target_modules": Names(pattern=True), "lora_dropout": Share(),
    "modules_to_save": Names(pattern=False), "use_rslora": Flag(), "use_dora": Flag(),
    "bias": Choice(("none", "all", "lora_only")), "autocast_adapter_dtype": Flag()}, DEFAULTS)
