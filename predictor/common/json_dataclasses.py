"""Frozen dataclasses as JSON's types and back: a field's name is its key. What is read is checked."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

from predictor.common.errors import InputError
from predictor.common.suggestions import nearest, show

NAMES = {dict: "a mapping", list: "a list", int: "a whole number", str: "text", bool: "true or false"}
"""What JSON's types are called in messages."""


def to_plain(value: Any) -> Any:
    """Dataclasses, enums and tuples as JSON's types; a field's name is its key."""
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def from_plain(kind: Any, value: Any, where: str) -> Any:
    """The opposite of :func:`to_plain` for a type annotation; ``where`` is put in front of messages."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return from_plain(next(option for option in arguments if option is not type(None)), value, where)
    if is_dataclass(kind):
        return _dataclass(kind, _of(dict, value, where), where)
    if origin is tuple:
        items = _of(list, value, where)
        return tuple(from_plain(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(items))
    if origin is not None:  # Mapping
        mapping = _of(dict, value, where)
        return {key: from_plain(arguments[1], item, f"{where}.{key}") for key, item in mapping.items()}
    if issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise InputError(f"{where}: must be one of {', '.join(m.value for m in kind)}, not {show(value)}") from None
    return _float(_of((int, float), value, where), where) if kind is float else _of(kind, value, where)


def _float(value: int | float, where: str) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        raise InputError(f"{where}: must be a number below 1e308, not {show(value)}") from None


def _dataclass(kind: Any, document: dict[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(kind)
    for key in document:
        if key not in hints:
            raise InputError(f"{where}: unknown key {show(key)}{nearest(key, hints)}")
    for field in fields(kind):
        if field.name not in document and field.default is field.default_factory is MISSING:
            raise InputError(f"{where}: the key {show(field.name)} is missing")
    return kind(**{key: from_plain(hints[key], value, f"{where}: {key}") for key, value in document.items()})


def _of(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{where}: must be {NAMES.get(kind, 'a number')}, not {show(value)}")
    return value
