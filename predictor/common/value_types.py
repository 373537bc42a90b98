"""The kinds of value that a workload key can take: how each is checked and read from text.

A kind has ``check(value)``, which gives the normalised value or raises :class:`Invalid`, and
``from_text(text)`` for the command line. Messages do not name the key: whoever knows where the
value came from (a file, an option, a call) puts that in front.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from predictor.common.suggestions import nearest, show


class Invalid(Exception):
    """What is wrong with one value and what to write instead, on one line."""


class FrozenMap(Mapping[str, Any]):
    """A mapping that cannot change and can be hashed; nested mappings and lists are frozen too."""

    __slots__ = ("_items", "_key")

    def __init__(self, items: Mapping[str, Any], depth: int = 0) -> None:
        for key in items:
            if not isinstance(key, str):
                raise Invalid(f"has the key {show(key)}, which is not text")
        self._items = {key: freeze(value, depth + 1) for key, value in items.items()}
        # canonical text, so that the order of keys does not matter
        self._key = json.dumps(thaw(self), sort_keys=True, default=str)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, FrozenMap) else thaw(self) == other

    def __repr__(self) -> str:
        return f"FrozenMap({self._items!r})"


def freeze(value: Any, depth: int = 0) -> Any:
    """``value`` with mappings and lists made immutable; :class:`Invalid` if a key is no text."""
    if depth > 20:
        raise Invalid("is nested too deeply")
    if isinstance(value, Mapping):
        return value if isinstance(value, FrozenMap) else FrozenMap(value, depth)
    return tuple(freeze(item, depth + 1) for item in value) if isinstance(value, (list, tuple)) else value


def thaw(value: Any) -> Any:
    """The plain dictionaries and lists behind :func:`freeze`, ready for JSON."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    return [thaw(item) for item in value] if isinstance(value, (list, tuple)) else value


def _digits(text: str) -> str:
    """The text; ValueError where it is a number to Python's own source alone (``1_0``)."""
    if "_" in text:
        raise ValueError
    return text


@dataclass(frozen=True)
class Whole:
    """A whole number in ``low … high``."""

    low: int
    high: int
    metavar: str = "N"

    def check(self, value: Any) -> int:
        if isinstance(value, bool) or not hasattr(type(value), "__index__"):
            raise Invalid(f"must be a whole number, not {show(value)}")
        number = operator.index(value)
        if number < self.low:
            raise Invalid(f"must be at least {self.low:,}, not {show(number)}")
        if number > self.high:
            raise Invalid(f"must be at most {self.high:,}, not {show(number)}")
        return number

    def from_text(self, text: str) -> int:
        try:
            return self.check(int(_digits(text)))
        except ValueError:
            raise Invalid(f"must be a whole number, not {show(text)}") from None


@dataclass(frozen=True)
class Number:
    """A finite number of at least zero."""

    metavar: str = "X"

    def check(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Invalid(f"must be a number, not {show(value)}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or number < 0:
            raise Invalid(f"must be a finite number of at least 0, not {show(value)}")
        return number

    def from_text(self, text: str) -> float:
        try:
            return self.check(float(_digits(text)))
        except ValueError:
            raise Invalid(f"must be a number, not {show(text)}") from None


@dataclass(frozen=True)
class Flag:
    """True or false."""

    metavar: str | None = None

    def check(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise Invalid(f"must be true or false, not {show(value)}")
        return value

    def from_text(self, text: str) -> bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return self.check(words.get(text.lower(), text))


@dataclass(frozen=True)
class Text:
    """Text that is not empty."""

    metavar: str = "TEXT"

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise Invalid(f"must be text that is not empty, not {show(value)}")
        if not value.isprintable():
            raise Invalid(f"holds a character that cannot be printed: {show(value)}")
        return value

    from_text = check


@dataclass(frozen=True)
class Choice:
    """One of a few names; ``later`` are known names that are refused, each with what to do instead."""

    names: tuple[Any, ...]
    later: Mapping[Any, str] = field(default_factory=dict)
    spellings: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def metavar(self) -> str:
        return "{" + ",".join(map(str, self.names)) + "}"

    def check(self, value: Any) -> Any:
        # a number must not match a bool, nor 2.0 the name 2
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            value = self.spellings.get(value, value)
            if value in self.names:
                return value
            if value in self.later:
                raise Invalid(f"{show(value)} is not supported yet: {self.later[value]}")
        names = ", ".join(map(str, self.names))
        raise Invalid(f"must be one of {names}, not {show(value)}{nearest(value, map(str, self.names))}")

    def from_text(self, text: str) -> Any:
        by_text = {str(name): name for name in (*self.names, *self.later)}
        return self.check(by_text.get(text, text))


@dataclass(frozen=True)
class Patterns:
    """Module path patterns: one text, or a list of them."""

    metavar: str = "PATTERN"
    repeated = True

    def check(self, value: Any) -> tuple[str, ...]:
        patterns = (value,) if isinstance(value, str) else value
        if not isinstance(patterns, (list, tuple)):
            raise Invalid(f"must be a module path pattern or a list of them, not {show(value)}")
        return tuple(Text().check(pattern) for pattern in patterns)

    def from_text(self, text: str) -> tuple[str, ...]:
        return self.check(text)


@dataclass(frozen=True)
class Size:
    """A number of bytes: a whole number, or text with a unit such as ``80GiB``."""

    low: int = 1 << 20
    high: int = 1 << 50
    metavar: str = "SIZE"

    UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
             "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}

    def check(self, value: Any) -> int:
        if isinstance(value, str):
            match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-z]*)\s*", value)
            if not match or match[2].upper() not in self.UNITS:
                raise Invalid(f"must be a size such as 80GiB, not {show(value)}")
            number, unit = match[1], self.UNITS[match[2].upper()]
            value = int(number) * unit if number.isdigit() else int(float(number) * unit)
        try:
            return Whole(self.low, self.high).check(value)
        except Invalid as error:
            raise Invalid(f"{error}: write a unit, such as 80GiB") from None

    from_text = check


@dataclass(frozen=True)
class RankOrWorst:
    """``worst``, or the number of a rank."""

    metavar: str = "RANK"

    def check(self, value: Any) -> str | int:
        if value == "worst" and isinstance(value, str):
            return value
        try:
            return Whole(0, 65_535).check(value)
        except Invalid as error:
            raise Invalid(f'must be "worst" or the number of a rank: {error}') from None

    def from_text(self, text: str) -> str | int:
        return self.check(int(text) if text.isdecimal() and len(text) < 20 else text)


@dataclass(frozen=True)
class Table:
    """A mapping with known keys; absent keys keep their default."""

    kinds: Mapping[str, Any]
    defaults: Mapping[str, Any]
    metavar: str = "KEY=VALUE"
    repeated = True

    def check(self, value: Any) -> FrozenMap:
        if not isinstance(value, Mapping):
            raise Invalid(f"must be a mapping of {', '.join(self.kinds)}, not {show(value)}")
        result = dict(self.defaults)
        for key, item in value.items():
            if key not in self.kinds:
                raise Invalid(f"has no key {show(key)}{nearest(key, self.kinds)}: known are {', '.join(self.kinds)}")
            if item is not None:
                result[key] = self._of(key, self.kinds[key].check, item)
        return FrozenMap(result)

    def usual(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """What need not be said of a value: the defaults of its kind."""
        return self.defaults

    @staticmethod
    def _of(key: str, read: Callable[[Any], Any], item: Any) -> Any:
        try:
            return read(item)
        except Invalid as error:
            raise Invalid(f"{key} {error}") from None

    def from_text(self, text: str) -> FrozenMap:
        """What :meth:`said` gives, checked, with the defaults."""
        return self.check(self.said(text))

    def said(self, text: str) -> dict[str, Any]:
        """What ``key=value`` says, or a JSON object as Hugging Face's command lines take it."""
        if text.lstrip().startswith("{"):
            try:
                return json.loads(text)
            except (ValueError, RecursionError):
                raise Invalid(f"must be KEY=VALUE or a JSON object, not {show(text)}") from None
        key, equals, item = text.partition("=")
        if not equals:
            raise Invalid(f"must be KEY=VALUE with a key of {', '.join(self.kinds)}, not {show(text)}")
        return {key: self._of(key, self.kinds[key].from_text, item) if key in self.kinds else item}


@dataclass(frozen=True)
class Later:
    """A key that has a place but no meaning yet: only its ``off`` values pass."""

    instead: str
    off: tuple[Any, ...] = (False, "none", "false")
    metavar: str = "…"

    def check(self, value: Any) -> Any:
        if any(value is off or (isinstance(value, str) and value.lower() == off) for off in self.off):
            return None
        raise Invalid(f"is not supported yet: {self.instead}")

    from_text = check
