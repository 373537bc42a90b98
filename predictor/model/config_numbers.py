"""Checks the numbers of a model's configuration, before torch and transformers are imported to build it.

Building a model takes time and memory for each of its layers, also on the meta device. A model without layers or of
size zero can often be built, but its answer means nothing.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from typing import Any

from predictor.common.errors import InputError
from predictor.common.suggestions import quoted

LARGEST_INTEGER = (1 << 63) - 1
UNLIMITED = ("time_step_limit",)
"""Keys that may be infinite (transformers, configuration_mamba2.py)."""

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
           "num_decoder_layers", "depth", "depths")
_SIZES = ("hidden_size", "hidden_sizes", "hidden_dim", "n_embd", "d_model", "dim", "embed_dim", "intermediate_size",
          "moe_intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size", "d_ff", "d_kv",
          "out_hidden_size", "embedding_size", "word_embed_proj_dim", "image_size", "patch_size",
          "temporal_patch_size", "spatial_merge_size", "num_channels", "num_mel_bins")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "encoder_attention_heads",
          "decoder_attention_heads", "num_key_value_heads", "num_kv_heads")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "n_shared_experts",
            "num_experts_per_tok")
LIMITS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(_LAYERS, (1, 1_000)), **dict.fromkeys(_SIZES, (1, 1 << 20)), **dict.fromkeys(_HEADS, (1, 1 << 14)),
    **dict.fromkeys(_EXPERTS, (0, 1 << 14)), "head_dim": (0, 1 << 20),
    "shared_expert_intermediate_size": (0, 1 << 20), "vocab_size": (1, 10_000_000)}
"""Key of a configuration, or of a section of it -> smallest and largest value. The value may be a list of such numbers,
or null. All other numbers only have to be finite: many keys use 0 or -1 for "none"."""
LONGEST_KEY = 100
ONE_LETTER = 0.955
"""Similarity of a key to one of these, above which it is no other key. The most similar key of a model in transformers
5.17 is ``patch_sizes``, with 0.952."""


def check(document: dict[str, Any], name: str) -> None:
    """Rejects a configuration with numbers of which no model is made.

    Args:
        name: the configuration's file, for messages.

    Raises:
        InputError: a number is not finite, or beyond its key's limits; its key is a slip of one letter, which
            transformers would ignore; or heads do not share the heads of keys and values evenly.
    """
    _check_keys(document, name)
    for where, key, value in _values(document):
        if key in LIMITS and value is not None:
            low, high = LIMITS[key]
            if type(value) is not int or not low <= value <= high:
                raise InputError(f"{name}: {where} is {quoted(value, 60)}: give a whole number from {low:,} to "
                                 f"{high:,}")
        elif isinstance(value, float) and (math.isnan(value) or math.isinf(value) and key not in UNLIMITED):
            raise InputError(f"{name}: {where} is {value}: give a finite number")
        elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise InputError(f"{name}: {where} is {quoted(value, 60)}: give a number that fits into 64 bits")
    _check_heads(document, name)


def _check_heads(document: dict[str, Any], name: str) -> None:
    """Rejects heads that attention cannot share out, which the meta device, on which models are traced, lets pass."""
    for section in _sections(document):
        heads, shared = section.get("num_attention_heads"), section.get("num_key_value_heads")
        if type(heads) is int and type(shared) is int and heads % shared:
            raise InputError(f"{name}: num_attention_heads is {heads} and num_key_value_heads is {shared}: give a "
                             "multiple of num_key_value_heads")


def _sections(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    waiting = [document]
    while waiting:
        yield (section := waiting.pop())
        waiting += [value for value in section.values() if isinstance(value, dict)]


def _check_keys(document: dict[str, Any], name: str) -> None:
    for section in _sections(document):
        for key in (key for key, value in section.items() if type(value) is int and key not in LIMITS):
            meant = difflib.get_close_matches(key[:LONGEST_KEY], LIMITS, n=1, cutoff=ONE_LETTER)
            if meant and meant[0] not in section:
                raise InputError(f"{name}: {quoted(key)} is no key that models have (did you mean \"{meant[0]}\"?)")


def _values(document: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yields the place, the key and the value of each item of a configuration, those of its sections and lists, too."""
    waiting: list[tuple[str, str, Any]] = [("", "", document)]
    while waiting:
        where, key, value = waiting.pop()
        if isinstance(value, dict):
            prefix = f"{where}." if where else ""
            waiting += [(prefix + str(name), name, item) for name, item in reversed(value.items())]
        elif isinstance(value, list):
            waiting += [(f"{where}[{number}]", key, item) for number, item in enumerate(value)][::-1]
        else:
            yield where, key, value
