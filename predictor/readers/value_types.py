"""Value types of frameworks' configurations, besides those of a workload's own keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from predictor.common.suggestions import quoted
from predictor.common.value_types import Flag, Invalid, Text, freeze

FLAG, TEXT = Flag(), Text()


class Any_:
    """Value type that accepts anything but mappings with other keys than text, and what is nested too deeply.

    The workload's own key checks the value later.
    """

    def check(self, value: Any) -> Any:
        freeze(value)  # raises Invalid
        return value

    from_text = check


class Words:
    """Value type of a list of words: a list or text with commas in YAML, several words on a command line."""

    def check(self, value: Any) -> tuple[str, ...]:
        words = value.replace(",", " ").split() if isinstance(value, str) else value
        if not isinstance(words, (list, tuple)):
            raise Invalid(f"must be a list of names, not {quoted(value)}")
        return tuple(TEXT.check(word) for word in words)

    from_text = check


class Mapped:
    """Value type of a mapping, or its JSON text, as on Hugging Face's command lines."""

    def check(self, value: Any) -> Mapping[str, Any]:
        if isinstance(value, str):
            return self.from_text(value)
        if not isinstance(value, Mapping):
            raise Invalid(f"must be a mapping of keys to values, not {quoted(value)}")
        freeze(value)  # raises Invalid unless all keys are text
        return value

    def from_text(self, text: str) -> Mapping[str, Any]:
        try:
            return self.check({} if text.strip() == "" else json.loads(text))
        except (ValueError, RecursionError):
            raise Invalid(f"must be a JSON object, not {quoted(text)}") from None


@dataclass(frozen=True)
class FlagOr(Flag):
    """Value type of true or false, or one of a few words."""

    words: tuple[str, ...] = field(default=(), kw_only=True)

    def check(self, value: Any) -> Any:
        return value if value in self.words and isinstance(value, str) else super().check(value)


class ConfigFile:
    """Value type of a configuration file: a path, a mapping, or its JSON text."""

    def check(self, value: Any) -> Any:
        return TEXT.check(value) if isinstance(value, str) and not value.lstrip().startswith("{") else \
            Mapped().check(value)

    from_text = check
