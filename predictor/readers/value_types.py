"""Kinds of value that configurations have beside those of our own keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from predictor.common.suggestions import show
from predictor.common.value_types import Flag, Invalid, Text, freeze

FLAG, TEXT = Flag(), Text()


class Any_:
    """Any value: a workload's own key checks it."""

    def check(self, given: Any) -> Any:
        return given

    from_text = check


class Words:
    """A list of words: in YAML a list, or text with commas; on a command line several words."""

    def check(self, given: Any) -> tuple[str, ...]:
        words = given.replace(",", " ").split() if isinstance(given, str) else given
        if not isinstance(words, (list, tuple)):
            raise Invalid(f"must be a list of names, not {show(given)}")
        return tuple(TEXT.check(word) for word in words)

    from_text = check


class Mapped:
    """A mapping, or its JSON as Hugging Face's command lines take it."""

    def check(self, given: Any) -> Mapping[str, Any]:
        if isinstance(given, str):
            return self.from_text(given)
        if not isinstance(given, Mapping):
            raise Invalid(f"must be a mapping of keys to values, not {show(given)}")
        freeze(given)  # keys are text
        return given

    def from_text(self, text: str) -> Mapping[str, Any]:
        try:
            return self.check({} if text.strip() == "" else json.loads(text))
        except (ValueError, RecursionError):
            raise Invalid(f"must be a JSON object, not {show(text)}") from None


@dataclass(frozen=True)
class FlagOr(Flag):
    """True or false, or one of a few words."""

    words: tuple[str, ...] = field(default=(), kw_only=True)

    def check(self, given: Any) -> Any:
        return given if given in self.words and isinstance(given, str) else super().check(given)


class ConfigFile:
    """A path, or a mapping, or the JSON of one."""

    def check(self, given: Any) -> Any:
        return TEXT.check(given) if isinstance(given, str) and not given.lstrip().startswith("{") else \
            Mapped().check(given)

    from_text = check
