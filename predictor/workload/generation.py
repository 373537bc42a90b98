"""Calls of transformers' ``generate``: one reply to a prompt, or one call for each turn of a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from predictor.common.errors import InputError
from predictor.workload.keys import Keys

TRACED_TOKENS = 6
"""Number of generated tokens that are traced: enough for two decode steps that are alike, the steps before them, and
the last one."""


@dataclass(frozen=True)
class Generation:
    """The settings of one call of ``generate`` that change its allocations, besides its shape.

    Attributes:
        tokens: number of generated tokens that are traced, at most :data:`TRACED_TOKENS`.
        cache: ``dynamic`` or ``static``.
        spare: tokens that a static cache has room for beyond the prompt; 0 for a dynamic cache.
        brings: number of new prompt tokens in a later turn of a conversation, the last ones of the shape's
            ``sequence``; 0 if the whole sequence is new.
        kept: true if the caller created the cache and keeps it after the call.
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
        role: author of the prompt.
        tokens: tokens of the prefill, for each sequence: the prompt, or the last generated token and the turn's own.
        images: number of images in each sequence.
        new_tokens: number of tokens that are generated.
        past: number of tokens whose keys and values the cache holds before the call.
    """

    role: str
    tokens: int
    images: int
    new_tokens: int
    past: int = 0

    @property
    def seen(self) -> int:
        """Number of tokens that the first forward attends to."""
        return self.past + self.tokens

    @property
    def cached(self) -> int:
        """Number of tokens in the cache afterwards. The last generated token never passes through the model."""
        return self.seen + self.new_tokens - 1


def turns(workload: Keys) -> tuple[Turn, ...]:
    """The calls of ``generate`` of a workload whose ``sequence_length`` and ``images_per_sample`` are known."""
    if workload.conversation is None:
        tokens, images = workload.sequence_length, workload.images_per_sample
        return (Turn("user", cast(int, tokens), cast(int, images), workload.max_new_tokens),)
    calls: list[Turn] = []
    for turn in workload.conversation:
        last_token = int(bool(calls))  # the last generated token of the previous reply is not yet in the cache
        calls.append(Turn(turn["role"], turn["tokens"] + last_token, turn["images"], turn["new_tokens"],
                          calls[-1].cached if calls else 0))
    return tuple(calls)


def check_positions(turns: tuple[Turn, ...], positions: int | None, max_cache_len: int | None, name: str) -> None:
    """Checks that the cache is not longer than the model's position embeddings.

    Raises:
        InputError: the cache is longer.
    """
    longest = max(turns[-1].cached, max_cache_len or 0)
    if positions is not None and longest > positions:
        what = f"max_cache_len {longest:,}" if longest == max_cache_len else f"a cache of {longest:,} tokens"
        raise InputError(f"{what} is longer than the {positions:,} positions that {name} knows: give fewer tokens")
