"""Strategies for values: those that a value type accepts, those that nobody expects, and damaged texts and documents."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from predictor.common import value_types
from predictor.readers import value_types as readers_types
from predictor.workload import lora_keys

DIGITS = "9" * 5000
"""More digits than Python makes a number of (4,300)."""
RAW = {"RAW_DIGITS": DIGITS, "RAW_FRACTION": "0." + DIGITS, "RAW_EXPONENT": "1e" + DIGITS, "RAW_POSITIVE": "1e400", "RAW_NEGATIVE": "-1e400",
       **{f"RAW_LISTS_{depth}": "[" * depth + "]" * depth for depth in (21, 101, 400, 950, 3_000, 100_000)},
       **{f"RAW_MAPPINGS_{depth}": '{"a":' * depth + "1" + "}" * depth for depth in (21, 101, 400, 950, 3_000, 100_000)}}
"""Words that stand for text which Python cannot write, or not as a value: :func:`with_raw` puts the text in their place."""
DEEP = tuple(name for name in RAW if name.startswith(("RAW_L", "RAW_M")))
"""Of those, lists and mappings that are nested deeply: more than our own limits, more than Python's, and hundreds of thousands of characters."""
DEEP_TEXTS = tuple(RAW[name] for name in DEEP if not name.endswith("_100000"))
"""The same as texts, for keys whose text is JSON."""
DEEPEST_TEXTS = tuple(RAW[name] for name in DEEP if name.endswith("_3000"))
"""Of those, the ones at which Python's own parser stops."""
WORST_NUMBERS = (DIGITS, "RAW_DIGITS", math.inf, math.nan, 10**400, "\u0663", "\u00b2")
"""Of both, those at which ``int`` and ``float`` themselves stop, each in its way, or do not where one thinks so."""
WHOLE = (0, 1, 2, 3, 4, 7, 8, 16, 64, 512, 1024, 2048, 4096)
ODD_NUMBERS = (0, -1, -2**63, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**400, -10**400, 0.5, -0.5, -0.0, 1e-300, 1e308, 1e30, math.inf, -math.inf, math.nan, True, False,
               "RAW_DIGITS", "RAW_FRACTION", "RAW_EXPONENT", "RAW_POSITIVE", "RAW_NEGATIVE")
"""Values of a number's place that nobody expects there."""
ODD_DIGITS = (DIGITS, "-" + DIGITS, "0." + DIGITS, "1e" + DIGITS, "0" * 5000 + "1", "\u0663", "8\u0663", "\u00b2", "\u2460", "\u096a", "\U0001d7d8", "1e400", "-1e400", "1e5", "0x10", "0b1", "1_000", "1,000", "-1", "+1", "-0", "00",
              "1.", ".5", "1.0", "1/2", "NaN", "nan", "inf", "-inf", ".inf", "Infinity", "1 ", " 1", "1\xa0", "1\n", "auto", "", "true", "8x", "x8", "8 8", "1e-400", "1e308", "9" * 20, "9" * 310)
"""Texts of a number's place that nobody expects there: digits of other scripts among them, for which ``isdigit`` or ``isdecimal`` is true."""
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


def with_raw(text: str) -> str:
    """A text of JSON, YAML or a command line with what :data:`RAW` has in place of its words, their quotation marks included."""
    if "RAW_" not in text:
        return text
    for name, raw in RAW.items():
        text = re.sub(rf"""(["']?)\b{name}\b\1""", lambda match, raw=raw: raw, text)
    return text


def as_json(document: Any, **how: Any) -> str:
    """A document as JSON, with :func:`with_raw`."""
    return with_raw(json.dumps(document, default=str, **how))


@lru_cache
def numbers() -> st.SearchStrategy[Any]:
    """What stands in a number's place and is no usual number: every grammar takes it from here."""
    return st.sampled_from((*WORST_NUMBERS * 6, *ODD_NUMBERS, *ODD_DIGITS))


@lru_cache
def deep() -> st.SearchStrategy[Any]:
    """Values that are nested deeply, and texts of them."""
    return st.one_of(st.sampled_from(DEEP_TEXTS), st.sampled_from(DEEPEST_TEXTS), st.sampled_from(DEEP), st.sampled_from(DEEP).map(lambda inner: {"a": inner}))


@lru_cache
def odd_scalars() -> st.SearchStrategy[Any]:
    """Single values that nobody expects."""
    return st.one_of(st.sampled_from(ODD_TEXTS), numbers(), numbers(), st.booleans(), st.none(), st.integers(-4, 9000),
                     st.sampled_from(PLACES), st.text(max_size=6))


@lru_cache
def odd() -> st.SearchStrategy[Any]:
    """Values that nobody expects, lists and mappings among them."""
    scalars = odd_scalars()
    return st.one_of(scalars, scalars, scalars, scalars, deep(), st.lists(scalars, max_size=3), st.sampled_from((
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
    (readers_types.Mapped, lambda kind: st.sampled_from(({}, {"use_reentrant": False}, '{"use_reentrant": true}', {"min_lr": 1}, {"max_pixels": 262144}, {"every_n_layers": 2},
                                                         {"MAX_PIXELS": 1003520, "image_max_token_num": 1024}, {"dtype": "bfloat16"}, {"bnb_4bit_quant_type": "fp4"}))),
    (readers_types.ConfigFile, lambda kind: st.sampled_from(("ds.json", "x.json", {"zero_optimization": {"stage": 2}}, '{"bf16": {"enabled": true}}', {
        "split_batches": False, "gradient_accumulation_kwargs": {"num_steps": 0, "sync_each_batch": False}}, {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "version": 2},
        {"fsdp_version": 1, "sharding_strategy": "SHARD_GRAD_OP", "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}))),
    (value_types.NotYetSupported, lambda kind: st.sampled_from((False, "none", True))),
    (value_types.Text, lambda kind: st.sampled_from(_TEXTS)),
)
"""Value types -> a strategy for the values that each accepts. The first that fits is taken."""


def bad(kind: Any) -> st.SearchStrategy[Any]:
    """Values that a value type should refuse, or read with care: numbers where it has numbers, and nesting where it has mappings."""
    if isinstance(kind, NUMERIC):
        return st.one_of(numbers(), numbers(), odd())
    if isinstance(kind, NESTED):
        return st.one_of(deep(), good(kind).flatmap(spoiled), odd())
    return odd()


NUMERIC = (value_types.Whole, value_types.Number, value_types.Choice, value_types.Size, value_types.RankOrWorst)
NESTED = (value_types.Table, readers_types.Mapped, readers_types.ConfigFile, readers_types.Any_)


def value(kind: Any) -> st.SearchStrategy[Any]:
    """A value of a key: mostly one that its type accepts."""
    return mostly(good(kind), bad(kind), 4 if isinstance(kind, NESTED) else 20 if isinstance(kind, NUMERIC) else 30)


def weight(kind: Any) -> int:
    """How often a key of a type is taken, compared with one that is read without a look at its value."""
    return 8 if isinstance(kind, NESTED[:-1]) else 3 if kind is not None else 1


def mostly(right: st.SearchStrategy[Any], wrong: st.SearchStrategy[Any] | None = None, of: int = 30) -> st.SearchStrategy[Any]:
    """Values of one strategy, and in one of ``of`` cases of another (:func:`odd`)."""
    other = odd() if wrong is None else wrong
    return st.integers(1, of).flatmap(lambda chance: right if chance < of else other)


@st.composite
def spoiled(draw: st.DrawFn, document: Any) -> Any:
    """A document with one thing wrong: one of its values, anywhere in it, is odd, missing, doubled, or nested deeply; or it has one key too many."""
    document = copy.deepcopy(document)
    places = list(_places(document))
    if not places:
        return draw(odd())
    of_numbers = [(node, key) for node, key in places if _is_number(node[key])]
    spoil(draw, *draw(st.sampled_from(of_numbers if of_numbers and not seldom(draw, 3) else places)))
    return document


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) or isinstance(value, str) and value.isascii() and value.isdecimal()


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every value of nested mappings and lists, as its container and its key."""
    for key in _keys(node):
        yield node, key
        yield from _places(node[key])


def seldom_spoiled(document: Any) -> st.SearchStrategy[Any]:
    """A document as it is, in two of three cases with one thing wrong, and seldom with two."""
    return st.integers(0, 11).flatmap(lambda chance: st.just(document) if chance < 4 else spoiled(document) if chance < 11 else spoiled(document).flatmap(
        lambda once: spoiled(once) if isinstance(once, (dict, list)) else st.just(once)))


@st.composite
def damaged(draw: st.DrawFn, text: bytes) -> bytes:
    """A text, in about eight of nine cases as it is, else with some of it taken out, doubled, replaced or cut off."""
    how = draw(st.integers(0, 53)) - 48  # Hypothesis prefers small numbers
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
    """A text, in one of thirty cases with a line, a word, a letter or a bracket of it repeated many times."""
    if not seldom(draw, 30):
        return text
    pieces = [*(line + b"\n" for line in text.splitlines()), *(word + b" " for word in text.split()[:100]), b"if ", b"! ", b"{ ", b"a", b"(", b"[", b"[", b"[", b'{"a":', b'{"a":', b"$(", b"${A:-", b"a ", b'"', b"'", b"\\", b"#", b"- ", b"a.", b"<<", b"/*", b"((a", LONG_WORD, LONG_WORD]
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
        spoil(draw, node, draw(st.sampled_from(keys)))
    return document


def spoil(draw: st.DrawFn, node: Any, key: Any) -> None:
    """Makes one value of a mapping or list odd, missing, doubled, or nested deeply."""
    before, how = node[key], draw(st.integers(0, 11))
    if how < 6 if _is_number(before) else 4 <= how < 6:
        made = numbers()
    elif how < 8:
        made = near(before)
    elif how == 9:
        made = deep()
    else:
        made = odd()
    if how == 11:
        del node[key]
    elif how == 10 and isinstance(node, dict):
        node[draw(st.sampled_from(ODD_TEXTS))] = before
    elif how == 10:
        node.append(before)
    else:
        node[key] = copy.deepcopy(draw(made))  # some of those are shared


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
