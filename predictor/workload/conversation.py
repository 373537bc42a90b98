"""What is generated: one reply to a prompt, or the turns of a conversation, each a call of ``generate``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from predictor.common.errors import InputError
from predictor.common.files import parse_json, read_mapping
from predictor.common.suggestions import nearest, show
from predictor.common.value_types import Choice, FrozenMap, Invalid, Text, Whole

if TYPE_CHECKING:
    from predictor.workload.workload import Workload

TRACED_TOKENS = 6
"""Of a reply, so many tokens are traced: two decode steps that are alike, what comes before them, and the last one."""
MOST_TOKENS = 1 << 22
MOST_TURNS = 100
KEYS = {"tokens": Whole(1, MOST_TOKENS), "new_tokens": Whole(1, MOST_TOKENS), "images": Whole(0, 4_096),
        "role": Choice(("user", "tool"))}
"""Of a turn: tokens that it adds, images included; tokens of the reply; images; whose words they are."""


@dataclass(frozen=True)
class Generation:
    """What decides the events of one call of ``generate`` beside its shape.

    Attributes:
        tokens: how many new ones are traced, at most :data:`TRACED_TOKENS`.
        cache: ``dynamic`` or ``static``.
        spare: tokens that a static cache has room for beyond the prompt; 0 for a dynamic one.
        brings: of a later turn of a conversation, tokens that it adds to the cache, whose last ones they are of a
            shape's ``sequence``; 0 where all of the sequence is new.
        kept: whether the caller made the cache and keeps it.
    """

    tokens: int
    cache: str = "dynamic"
    spare: int = 0
    brings: int = 0
    kept: bool = False


@dataclass(frozen=True)
class Turn:
    """One call of ``generate``.

    Attributes:
        role: whose words come in.
        tokens: of each sequence that the model sees at once: the prompt, or the turn's after the last generated one.
        images: of each sequence.
        new_tokens: that are generated.
        past: tokens whose keys and values the cache holds before.
    """

    role: str
    tokens: int
    images: int
    new_tokens: int
    past: int = 0

    @property
    def seen(self) -> int:
        """Tokens that the first forward attends to."""
        return self.past + self.tokens

    @property
    def cached(self) -> int:
        """Tokens in the cache afterwards: the last one that is generated is never seen."""
        return self.seen + self.new_tokens - 1


def turns(workload: Workload) -> tuple[Turn, ...]:
    """The calls of ``generate`` of a workload whose ``images_per_sample`` is settled."""
    if workload.conversation is None:
        return (Turn("user", workload.sequence_length, workload.images_per_sample, workload.max_new_tokens),)
    found: list[Turn] = []
    for said in workload.conversation:
        again = int(bool(found))  # the last token of the reply before
        found.append(Turn(said["role"], said["tokens"] + again, said["images"], said["new_tokens"],
                          found[-1].cached if found else 0))
    return tuple(found)


class Conversation:
    """Path of a YAML or JSON file with ``turns``, or its content: a list of mappings."""

    metavar = "FILE"

    def check(self, value: Any) -> tuple[FrozenMap, ...]:
        if isinstance(value, str):
            value = read_mapping(Text().check(value), "the conversation")
        if isinstance(value, Mapping):
            if "turns" not in value:
                raise Invalid('has no key "turns": give turns: [{tokens: 600, new_tokens: 64}], for example')
            if set(value) != {"turns"}:
                raise Invalid(f'must have one key, "turns", not {show(", ".join(map(str, value)), 80)}')
            value = value["turns"]
        if not isinstance(value, (list, tuple)) or not value:
            raise Invalid("must be a list of turns such as {tokens: 600, images: 1, new_tokens: 64}, not "
                          f"{show(value)}")
        if len(value) > MOST_TURNS:
            raise Invalid(f"has {len(value)} turns: at most {MOST_TURNS} are predicted")
        return tuple(self._turn(number, turn) for number, turn in enumerate(value, 1))

    def from_text(self, text: str) -> Any:
        """A path, or JSON written out."""
        return parse_json(text, "conversation") if text.lstrip()[:1] in ("{", "[") else text

    @staticmethod
    def _turn(number: int, turn: Any) -> FrozenMap:
        if not isinstance(turn, Mapping):
            raise Invalid(f"has a turn {number} that is no mapping: {show(turn)}")
        found = {"role": "user", "images": 0}
        for key, value in turn.items():
            if key not in KEYS:
                raise Invalid(f"turn {number} has an unknown key {show(key)}{nearest(str(key), KEYS)}: known are "
                              f"{', '.join(KEYS)}")
            try:
                found[key] = KEYS[key].check(value)
            except Invalid as error:
                raise Invalid(f"turn {number}: {key} {error}") from None
        for key in ("tokens", "new_tokens"):
            if key not in found:
                raise Invalid(f"turn {number} has no {key}: say how many there are")
        return FrozenMap(found)


def check_positions(turns: tuple[Turn, ...], positions: int | None, max_cache_len: int | None, name: str) -> None:
    """That the model knows as many positions as the cache is long.

    Raises:
        InputError: it does not.
    """
    longest = max(turns[-1].cached, max_cache_len or 0)
    if positions is not None and longest > positions:
        what = f"max_cache_len {longest:,}" if longest == max_cache_len else f"a cache of {longest:,} tokens"
        raise InputError(f"{what} is longer than the {positions:,} positions that {name} knows: give fewer tokens")
