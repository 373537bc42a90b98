"""The keys of ``lora``, under the names of peft's ``LoraConfig``.

Defaults are peft's (0.21), except for the layers: adapters go to all linear layers of the language model, without the
head, and the projector trains in full. LLaVA's own scripts do the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from predictor.common.suggestions import quoted
from predictor.common.value_types import (
    Choice,
    Flag,
    FrozenMap,
    Invalid,
    Number,
    Schema,
    Table,
    Text,
    Whole,
    check_few,
    one_or_several,
)

ALL_LINEAR = "all-linear"


class Names:
    """Value type for module names, as in peft: a list of names or of ends of module paths.

    With ``pattern``, a text is a regular expression for the whole path, or ``all-linear``.
    """

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
            raise Invalid(f"must be a list of names of layers, not {quoted(value)}")
        check_few(names)
        return tuple(dict.fromkeys(Text().check(name) for name in names))

    def from_text(self, text: str) -> tuple[str, ...] | str:
        """Reads names separated by commas; with ``pattern``, any other text is a regular expression."""
        plain = re.fullmatch(r"[\w.]+(,[\w.]+)*", text)
        return self.check(tuple(text.split(",")) if plain or not self.pattern else text)

    def schema(self) -> Schema:
        return one_or_several(Text().schema())


class Share(Number):
    """Value type of a number of at least 0 and below 1."""

    def check(self, value: Any) -> float:
        number = super().check(value)
        if number >= 1:
            raise Invalid(f"must be below 1, not {quoted(value)}")
        return number

    def schema(self) -> Schema:
        return super().schema() | {"exclusiveMaximum": 1}


class LoraTable(Table):
    """Value type of the ``lora`` key; ``none`` and false mean no adapters."""

    def check(self, value: Any) -> Any:  # a FrozenMap, or None, which Table.check does not return
        if value is False or (isinstance(value, str) and value.lower() in ("none", "false")):
            return None
        if not isinstance(value, Mapping):
            raise Invalid(f"must be a mapping such as r: 16, not {quoted(value)}; known keys are "
                          f"{', '.join(self.kinds)}")
        return super().check(value)

    def schema(self) -> Schema:
        return {"anyOf": [super().schema(), {"enum": [False, "none"]}]}


DEFAULTS = FrozenMap({
    "r": 8, "lora_alpha": 8.0, "target_modules": None, "lora_dropout": 0.0, "modules_to_save": None,
    "use_rslora": False, "use_dora": False, "bias": "none", "autocast_adapter_dtype": True})
"""``target_parameters``, for adapters of a module's own parameters such as experts, is there only where it is given."""
VALUE_TYPE = LoraTable({
    "r": Whole(1, 65_536), "lora_alpha": Number(), "target_modules": Names(pattern=True),
    "target_parameters": Names(pattern=False), "lora_dropout": Share(), "modules_to_save": Names(pattern=False),
    "use_rslora": Flag(), "use_dora": Flag(),
    "bias": Choice(("none", "all", "lora_only")), "autocast_adapter_dtype": Flag()}, DEFAULTS)
