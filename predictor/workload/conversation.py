"""Value type of the key ``conversation``: turns that share one cache of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.common.files import parse_json, read_mapping
from predictor.common.suggestions import nearest, quoted
from predictor.common.value_types import Choice, FrozenMap, Invalid, Schema, Table, Text, Whole

MOST_TOKENS = 1 << 22
MOST_TURNS = 100
KEYS: dict[str, Any] = {"tokens": Whole(1, MOST_TOKENS), "new_tokens": Whole(1, MOST_TOKENS), "images": Whole(0, 4_096),
        "role": Choice(("user", "tool"))}
"""Keys of a turn: the tokens that it adds (image tokens included), the tokens of the reply, images, and the author."""


class Conversation:
    """Value type of ``conversation``: the path of a YAML or JSON file with ``turns``, or a list of turns."""

    metavar = "FILE"

    def check(self, value: Any) -> tuple[FrozenMap, ...]:
        if isinstance(value, str):
            value = read_mapping(Text().check(value), "the conversation")
        if isinstance(value, Mapping):
            if "turns" not in value:
                raise Invalid('has no key "turns": give turns: [{tokens: 600, new_tokens: 64}], for example')
            if set(value) != {"turns"}:
                raise Invalid(f'must have one key, "turns", not {quoted(", ".join(map(str, value)), 80)}')
            value = value["turns"]
        if not isinstance(value, (list, tuple)) or not value:
            raise Invalid("must be a list of turns such as {tokens: 600, images: 1, new_tokens: 64}, not "
                          f"{quoted(value)}")
        if len(value) > MOST_TURNS:
            raise Invalid(f"has {len(value)} turns: at most {MOST_TURNS} are predicted")
        return tuple(self._turn(number, turn) for number, turn in enumerate(value, 1))

    def from_text(self, text: str) -> Any:
        """Reads a path, or JSON text."""
        return parse_json(text, "conversation") if text.lstrip()[:1] in ("{", "[") else text

    def schema(self) -> Schema:
        turn = Table(KEYS, {}).schema() | {"required": ["tokens", "new_tokens"]}
        turns = {"type": "array", "items": turn, "minItems": 1, "maxItems": MOST_TURNS}
        whole = {"type": "object", "properties": {"turns": turns}, "required": ["turns"], "additionalProperties": False}
        return {"anyOf": [Text().schema(), turns, whole]}

    @staticmethod
    def _turn(number: int, turn: Any) -> FrozenMap:
        if not isinstance(turn, Mapping):
            raise Invalid(f"has a turn {number} that is no mapping: {quoted(turn)}")
        checked: dict[str, Any] = {"role": "user", "images": 0}
        for key, value in turn.items():
            if key not in KEYS:
                raise Invalid(f"turn {number} has an unknown key {quoted(key)}{nearest(str(key), KEYS)}: known are "
                              f"{', '.join(KEYS)}")
            try:
                checked[key] = KEYS[key].check(value)
            except Invalid as error:
                raise Invalid(f"turn {number}: {key} {error}") from None
        for key in ("tokens", "new_tokens"):
            if key not in checked:
                raise Invalid(f"turn {number} has no {key}: say how many there are")
        return FrozenMap(checked)
