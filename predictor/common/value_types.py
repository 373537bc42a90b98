"""The value types of workload keys. Each one checks a value and reads it from text.

A value type has ``check(value)``, which returns the normalised value or raises :class:`Invalid`, ``from_text(text)``
for the command line, and ``schema()``, a JSON Schema of the values that ``check`` takes, for editors. Messages do not
name the key: the caller, who knows the source of the value (a file, an option, a call), puts the key in front.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from predictor.common import numbers
from predictor.common.suggestions import nearest, quoted


class Invalid(Exception):
    """A wrong value. The message is one line: what is wrong, and what to write instead."""


class FrozenMap(Mapping[str, Any]):
    """An immutable, hashable mapping. Nested mappings and lists are immutable, too."""

    __slots__ = ("_items", "_key")

    def __init__(self, items: Mapping[str, Any], depth: int = 0) -> None:
        for key in items:
            if not isinstance(key, str):
                raise Invalid(f"has the key {quoted(key)}, which is not text")
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
    """``value`` with its mappings and lists made immutable.

    Raises:
        Invalid: a key is not text, or the nesting is deeper than 20 levels.
    """
    if depth > 20:
        raise Invalid("is nested too deeply")
    if isinstance(value, Mapping):
        return value if isinstance(value, FrozenMap) else FrozenMap(value, depth)
    return tuple(freeze(item, depth + 1) for item in value) if isinstance(value, (list, tuple)) else value


def thaw(value: Any) -> Any:
    """The inverse of :func:`freeze`: plain dictionaries and lists, ready for JSON."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    return [thaw(item) for item in value] if isinstance(value, (list, tuple)) else value


def flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every value of nested mappings with its dotted key."""
    for key, item in document.items():
        if isinstance(item, Mapping):
            yield from flat(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


Schema = dict[str, Any]
"""A JSON Schema (draft 2020-12)."""


def or_null(schema: Schema) -> Schema:
    """The schema of a value that may also be null, which means that it is not given."""
    return {"anyOf": [schema, {"type": "null"}]}


def one_or_several(schema: Schema) -> Schema:
    """The schema of one value, or of a list of such values."""
    return {"anyOf": [schema, {"type": "array", "items": schema}]}


def _digits(text: str) -> str:
    """The text of a number. ValueError if it has underscores, which only Python accepts (``1_0``)."""
    if "_" in text:
        raise ValueError
    return text


@dataclass(frozen=True)
class Whole:
    """A whole number from ``low`` to ``high``, both included."""

    low: int
    high: int
    metavar: str = "N"

    def check(self, value: Any) -> int:
        if isinstance(value, bool) or not hasattr(type(value), "__index__"):
            raise Invalid(f"must be a whole number, not {quoted(value)}")
        number = operator.index(value)
        if number < self.low:
            raise Invalid(f"must be at least {self.low:,}, not {quoted(number)}")
        if number > self.high:
            raise Invalid(f"must be at most {self.high:,}, not {quoted(number)}")
        return number

    def from_text(self, text: str) -> int:
        try:
            return self.check(int(_digits(text)))
        except ValueError:
            raise Invalid(f"must be a whole number, not {quoted(text)}") from None

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Number:
    """A finite number, 0 or more."""

    metavar: str = "X"

    def check(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Invalid(f"must be a number, not {quoted(value)}")
        number = numbers.finite(value)
        if number is None or number < 0:
            raise Invalid(f"must be a finite number of at least 0, not {quoted(value)}")
        return number

    def from_text(self, text: str) -> float:
        try:
            return self.check(float(_digits(text)))
        except ValueError:
            raise Invalid(f"must be a number, not {quoted(text)}") from None

    def schema(self) -> Schema:
        return {"type": "number", "minimum": 0}


@dataclass(frozen=True)
class Flag:
    """True or false."""

    metavar: str | None = None

    def check(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise Invalid(f"must be true or false, not {quoted(value)}")
        return value

    def from_text(self, text: str) -> bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return self.check(words.get(text.lower(), text))

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Text:
    """Text that is not empty."""

    metavar: str = "TEXT"

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise Invalid(f"must be text that is not empty, not {quoted(value)}")
        if not value.isprintable():
            raise Invalid(f"holds a character that cannot be printed: {quoted(value)}")
        return value

    from_text = check

    def schema(self) -> Schema:
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True)
class Choice:
    """One of a few names.

    ``later`` maps names that are not supported yet to the advice for the message. ``spellings`` maps other spellings to
    the names.
    """

    names: tuple[Any, ...]
    later: Mapping[Any, str] = field(default_factory=dict)
    spellings: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def metavar(self) -> str:
        return "{" + ",".join(map(str, self.names)) + "}"

    def check(self, value: Any) -> Any:
        # a number must not match a bool, nor 2.0 the name 2
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            name = self.spellings.get(value, value)
            if name in self.names:
                return name
            if name in self.later:
                raise Invalid(f"{quoted(name)} is not supported yet: {self.later[name]}")
        names = ", ".join(map(str, self.names))
        raise Invalid(f"must be one of {names}, not {quoted(value)}{nearest(value, map(str, self.names))}")

    def from_text(self, text: str) -> Any:
        by_text = {str(name): name for name in (*self.names, *self.later)}
        return self.check(by_text.get(text, text))

    def schema(self) -> Schema:
        return {"enum": [*self.names, *(other for other, name in self.spellings.items() if name in self.names)]}


MOST_LISTED = 1_000
"""Limit on the values of a list. Each may be compared with each parameter of a model."""


def check_few(values: Sequence[Any]) -> None:
    """Checks that a list has at most :data:`MOST_LISTED` values."""
    if len(values) > MOST_LISTED:
        raise Invalid(f"lists {len(values):,} values, more than {MOST_LISTED:,}")


@dataclass(frozen=True)
class Patterns:
    """Module path patterns: one pattern, or a list of patterns."""

    metavar: str = "PATTERN"
    repeated = True

    def check(self, value: Any) -> tuple[str, ...]:
        patterns = (value,) if isinstance(value, str) else value
        if not isinstance(patterns, (list, tuple)):
            raise Invalid(f"must be a module path pattern or a list of them, not {quoted(value)}")
        check_few(patterns)
        return tuple(Text().check(pattern) for pattern in patterns)

    def from_text(self, text: str) -> tuple[str, ...]:
        return self.check(text)

    def schema(self) -> Schema:
        return one_or_several(Text().schema())


@dataclass(frozen=True)
class Size:
    """A number of bytes: a whole number, or a text with a unit such as ``80GiB``."""

    low: int = 1 << 20
    high: int = 1 << 50
    metavar: str = "SIZE"

    UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
             "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}

    def check(self, value: Any) -> int:
        if isinstance(value, str):
            match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-z]*)\s*", value)
            if not match or match[2].upper() not in self.UNITS:
                raise Invalid(f"must be a size such as 80GiB, not {quoted(value)}")
            number, unit = match[1], self.UNITS[match[2].upper()]
            value = int(number) * unit if number.isdigit() else int(float(number) * unit)
        try:
            return Whole(self.low, self.high).check(value)
        except Invalid as error:
            raise Invalid(f"{error}: write a unit, such as 80GiB") from None

    from_text = check

    def schema(self) -> Schema:
        text = {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*([KMGTkmgt]?[Ii]?[Bb])?\s*$"}
        return {"anyOf": [Whole(self.low, self.high).schema(), text]}


@dataclass(frozen=True)
class RankOrWorst:
    """The number of a rank, or ``worst``: the rank with the highest peak."""

    metavar: str = "RANK"

    def check(self, value: Any) -> str | int:
        if value == "worst" and isinstance(value, str):
            return value
        try:
            return Whole(0, 65_535).check(value)
        except Invalid as error:
            raise Invalid(f'must be "worst" or the number of a rank: {error}') from None

    def from_text(self, text: str) -> str | int:
        rank = numbers.whole(text)
        return self.check(text if rank is None else rank)

    def schema(self) -> Schema:
        return {"anyOf": [{"const": "worst"}, Whole(0, 65_535).schema()]}


@dataclass(frozen=True)
class Table:
    """A mapping with known keys. Absent keys get their default. ``kinds`` has the value type of each key."""

    kinds: Mapping[str, Any]
    defaults: Mapping[str, Any]
    metavar: str = "KEY=VALUE"
    repeated = True

    def check(self, value: Any) -> FrozenMap:
        if not isinstance(value, Mapping):
            raise Invalid(f"must be a mapping of {', '.join(self.kinds)}, not {quoted(value)}")
        result = dict(self.defaults)
        for key, item in value.items():
            if key not in self.kinds:
                raise Invalid(f"has no key {quoted(key)}{nearest(key, self.kinds)}: known are {', '.join(self.kinds)}")
            if item is not None:
                result[key] = self._read(key, self.kinds[key].check, item)
        return FrozenMap(result)

    def usual(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """The entries that may be left out of ``value`` because they are the defaults."""
        return self.defaults

    @staticmethod
    def _read(key: str, read: Callable[[Any], Any], item: Any) -> Any:
        try:
            return read(item)
        except Invalid as error:
            raise Invalid(f"{key} {error}") from None

    def from_text(self, text: str) -> FrozenMap:
        """The whole mapping: the entries of :meth:`said`, checked, with the defaults."""
        return self.check(self.said(text))

    def said(self, text: str) -> dict[str, Any]:
        """The entries of one option: ``key=value``, or a JSON object as on Hugging Face's command lines."""
        if text.lstrip().startswith("{"):
            try:
                return json.loads(text)
            except (ValueError, RecursionError):
                raise Invalid(f"must be KEY=VALUE or a JSON object, not {quoted(text)}") from None
        key, equals, item = text.partition("=")
        if not equals:
            raise Invalid(f"must be KEY=VALUE with a key of {', '.join(self.kinds)}, not {quoted(text)}")
        return {key: self._read(key, self.kinds[key].from_text, item) if key in self.kinds else item}

    def schema(self) -> Schema:
        return {"type": "object", "additionalProperties": False,
                "properties": {key: or_null(kind.schema()) for key, kind in self.kinds.items()}}


@dataclass(frozen=True)
class NotYetSupported:
    """A key of a feature that is not supported yet: only its ``off`` values are accepted."""

    instead: str
    off: tuple[Any, ...] = (False, "none", "false")
    metavar: str = "…"

    def check(self, value: Any) -> Any:
        if any(value is off or (isinstance(value, str) and value.lower() == off) for off in self.off):
            return None
        raise Invalid(f"is not supported yet: {self.instead}")

    from_text = check

    def schema(self) -> Schema:
        return {"enum": list(self.off)}
