"""Strategies for values: those that a value type accepts, those that nobody expects, and damaged texts and documents."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from predictor.common import value_types
from predictor.readers import value_types as readers_types
from predictor.workload import lora_keys

WHOLE = (0, 1, 2, 3, 4, 7, 8, 16, 64, 512, 1024, 2048, 4096)
ODD_NUMBERS = (-1, -2**63, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**400, 0.5, -0.0, 1e-300, 1e308, math.inf, -math.inf, math.nan)
ODD_TEXTS = (
    "", " ", "\t", "\n", "a\nb", "\xa0", "\u3000", "a\x0b", "\x85x", "\r", "\0", "\x1b[31m", "\u202e", "\ufeff", "ü", "日本", "\U0001f600", "²", "٣", "1_000", "0x10", "1e5", "1e400",
    "9" * 5000, "-1", "+1", "1.", ".5", "NaN", "inf", "auto", "none", "None", "null", "true", "True", "no", "on", "~", "~nobody-there/x", "$X",
    "${X}", "${X:-8}", "$(x)", "`x`", "$((1/0))", "{", "}", "[", "{}", "[]", '{"a": 1}', "a=b", "=", "a,b", ",", "*", "**", "[a", "(", ".", "..",
    "/", "/dev/zero", "/dev/stdin", "/proc/self/mem", "../x", "x" * 300, "a/" * 3000, "-", "--", "---", "-x", "--model", "!!python/object:os.system",
    "&a", "*a", "<<", "#", "'", '"', "\\", "%s", "{0}", "{model}", "file.py:f", "a b", "(" * 500, "a{99999999999}", "(a+)+b", "16-mixed", "bfloat16", "half", "cpu", "cuda:0")
"""Texts that some parser somewhere treats in a special way."""
LONG_WORD = b"((" + b"a" * 100_000 + b"))\n"
PLACES = ("x.json", "x.yaml", "y.json", "ds.json", "here.txt", "none.json", ".")
"""Names of files that an input may have beside it."""


def seldom(draw: st.DrawFn, of: int) -> bool:
    """True in about one of ``of`` cases. Hypothesis prefers small numbers, so those stand for what is usual."""
    return draw(st.integers(0, of - 1)) == of - 1


@lru_cache
def odd_scalars() -> st.SearchStrategy[Any]:
    """Single values that nobody expects."""
    return st.one_of(st.sampled_from(ODD_TEXTS), st.sampled_from(ODD_NUMBERS), st.booleans(), st.none(), st.integers(-4, 9000),
                     st.sampled_from(PLACES), st.text(max_size=6))


@lru_cache
def odd() -> st.SearchStrategy[Any]:
    """Values that nobody expects, lists and mappings among them."""
    scalars = odd_scalars()
    return st.one_of(scalars, scalars, scalars, st.lists(scalars, max_size=3), st.sampled_from((
        [], {}, [[]], [None], {"": None}, {"a": {"a": {"a": {}}}}, [[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]], {"enabled": "auto"}, {"enabled": True})),
        st.dictionaries(st.sampled_from(("a", "enabled", "stage", "device", "r", "min", "")), scalars, max_size=2))


def good(kind: Any) -> st.SearchStrategy[Any]:
    """Values that a value type accepts; values of any kind for types that accept anything."""
    for types, made in _GOOD:
        if isinstance(kind, types):
            return made(kind)
    return st.one_of(st.booleans(), st.sampled_from(WHOLE), st.sampled_from(("auto", "x", "bf16", "0.1")))


def _whole(kind: Any) -> st.SearchStrategy[Any]:
    low, high = kind.low, kind.high
    usual = [number for number in WHOLE if low <= number <= high] or [low]
    return st.one_of(st.sampled_from(usual), st.sampled_from(usual), st.sampled_from((low, high)), st.integers(low, high))


def _choice(kind: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([*kind.names, *kind.names, *kind.later, *kind.spellings])


def _table(kind: Any) -> st.SearchStrategy[Any]:
    return st.lists(st.sampled_from(sorted(kind.kinds)), max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: good(kind.kinds[name]) for name in names}))


_TEXTS = ("gpt2", "llava-1.5-7b", "q_proj", "x", "a,b", "*layers*", "auto", "all-linear", "ds.json", "bf16")
_GOOD: tuple[tuple[Any, Callable[[Any], st.SearchStrategy[Any]]], ...] = (
    (lora_keys.Names, lambda kind: st.sampled_from((".*proj", ["q_proj", "v_proj"], "all-linear", "(", "a{99999999999}", "(" * 500))),
    (value_types.Whole, _whole),
    (value_types.Choice, _choice),
    (readers_types.FlagOr, lambda kind: st.one_of(st.booleans(), st.sampled_from([*kind.words, True]))),
    (value_types.Flag, lambda kind: st.booleans()),
    (value_types.Number, lambda kind: st.sampled_from((0, 0.0, 1.0, 0.05, 1e-8, 1, 25, 1e6))),
    (value_types.Table, _table),
    (value_types.Size, lambda kind: st.sampled_from(("80GiB", "24GB", 1 << 34, "1.5 TiB", "10MiB"))),
    (value_types.RankOrWorst, lambda kind: st.sampled_from(("worst", 0, 1, 7))),
    ((value_types.Patterns, readers_types.Words), lambda kind: st.sampled_from(("q_proj,v_proj", ["q_proj"], "*vision*", [], "all"))),
    (readers_types.Mapped, lambda kind: st.sampled_from(({}, {"use_reentrant": False}, '{"use_reentrant": true}', {"min_lr": 1}))),
    (readers_types.ConfigFile, lambda kind: st.sampled_from(("ds.json", "x.json", {"zero_optimization": {"stage": 2}}, '{"bf16": {"enabled": true}}'))),
    (value_types.NotYetSupported, lambda kind: st.sampled_from((False, "none", True))),
    (value_types.Text, lambda kind: st.sampled_from(_TEXTS)),
)
"""Value types -> a strategy for the values that each accepts. The first that fits is taken."""


def value(kind: Any) -> st.SearchStrategy[Any]:
    """A value of a key: mostly one that its type accepts."""
    return mostly(good(kind))


def mostly(right: st.SearchStrategy[Any], wrong: st.SearchStrategy[Any] | None = None, of: int = 30) -> st.SearchStrategy[Any]:
    """Values of one strategy, and in one of ``of`` cases of another (:func:`odd`)."""
    other = odd() if wrong is None else wrong
    return st.integers(1, of).flatmap(lambda chance: right if chance < of else other)


@st.composite
def damaged(draw: st.DrawFn, text: bytes) -> bytes:
    """A text, in six of seven cases as it is, else with some of it taken out, doubled, replaced or cut off."""
    how = draw(st.integers(-36, 5))
    if how < 0 or not text:
        return text
    start = draw(st.integers(0, len(text) - 1))
    end = min(len(text), start + draw(st.sampled_from((1, 1, 2, 5, 40))))
    piece = text[start:end]
    if how == 0:
        return text[:start]
    put = {1: b"", 2: piece * 2, 3: bytes([draw(st.integers(0, 255))])}.get(how)
    if put is None:
        put = draw(st.sampled_from(ODD_TEXTS)).encode("utf-8", "surrogatepass")
    return text[:start] + put + text[end if how != 5 else start:]


@st.composite
def lengthened(draw: st.DrawFn, text: bytes) -> bytes:
    """A text, in one of thirty cases with a line, a letter or a bracket of it repeated many times."""
    if not seldom(draw, 30):
        return text
    pieces = [*(line + b"\n" for line in text.splitlines()), b"a", b"(", b"[", b"[", b"[", b'{"a":', b'{"a":', b"$(", b"${A:-", b"a ", b'"', b"'", b"\\", b"#", b"- ", b"a.", b"<<", b"/*", b"((a", LONG_WORD, LONG_WORD]
    piece = draw(st.sampled_from(pieces))
    many = piece * min(draw(st.sampled_from((300, 5_000, 100_000))), 2_000_000 // max(len(piece), 1))
    return draw(st.sampled_from((many + text, text + many, text + many + b"\n" + text, b"((" + many + b"))\n" + text)))


@st.composite
def changed(draw: st.DrawFn, document: Any, most: int = 3) -> Any:
    """A JSON document in which up to ``most`` values, anywhere in it, are replaced, doubled or taken out."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(0, most))):
        node: Any = document
        for _ in range(draw(st.integers(0, 8))):
            inner = [key for key in _keys(node) if isinstance(node[key], (dict, list)) and node[key]]
            if not inner:
                break
            node = node[draw(st.sampled_from(inner))]
        keys = _keys(node)
        if not keys:
            continue
        key, how = draw(st.sampled_from(keys)), draw(st.integers(0, 7))
        if how == 0:
            del node[key]
        elif how == 1 and isinstance(node, dict):
            node[draw(st.sampled_from(ODD_TEXTS))] = node[key]
        elif how == 1:
            node.append(node[key])
        else:
            node[key] = copy.deepcopy(draw(near(node[key]) if how < 4 else odd()))  # some of those are shared
    return document


def near(value: Any) -> st.SearchStrategy[Any]:
    """Values like a value: of its type, and near it."""
    if isinstance(value, bool) or value is None:
        return st.sampled_from((True, False, None, 0, 1))
    if isinstance(value, int):
        return st.sampled_from((value + 1, value - 1, -value, 0, value * 1000, value // 3 + 0.5 if abs(value) < 2**53 else 0.5, str(value), float(value % 2**53)))
    if isinstance(value, float):
        return st.sampled_from((0.0, -value, value * 1e9, math.nan, math.inf, int(value) if math.isfinite(value) else 0, str(value)))
    if isinstance(value, str):
        return st.sampled_from((value.upper(), value[:-1], value * 2, value + " ", "", [value]))
    if isinstance(value, list):
        return st.sampled_from(([], value * 2, value[:-1], value[::-1], [value], {"a": value}))
    return st.sampled_from(({}, [value], [*value], None))


def _keys(node: Any) -> Sequence[Any]:
    return sorted(node, key=str) if isinstance(node, Mapping) else range(len(node)) if isinstance(node, list) else ()
