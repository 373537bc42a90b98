"""Converts frozen dataclasses to JSON types and back. A field's name is its key; values are checked on reading."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

from predictor.common import numbers
from predictor.common.errors import InputError
from predictor.common.suggestions import nearest, quoted

NAMES = {dict: "a mapping", list: "a list", int: "a whole number", str: "text", bool: "true or false"}
"""Names of JSON types in messages."""


def to_plain(value: Any) -> Any:
    """Converts dataclasses, enums and tuples to JSON types. A field's name is its key."""
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def from_plain(annotation: Any, value: Any, where: str) -> Any:
    """The inverse of :func:`to_plain`: checks JSON types against a type annotation and converts them to it.

    Args:
        annotation: a dataclass, an enum, or a type such as ``tuple[int, ...]``, ``Mapping[str, X]`` or ``X | None``.
        value: the data from JSON.
        where: the place of the value, put in front of messages.

    Raises:
        InputError: a key is missing or unknown, or a value has another type.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return from_plain(next(option for option in arguments if option is not type(None)), value, where)
    if is_dataclass(annotation):
        return _dataclass(annotation, _checked(dict, value, where), where)
    if origin is tuple:
        items = _checked(list, value, where)
        return tuple(from_plain(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(items))
    if origin is not None:  # Mapping
        mapping = _checked(dict, value, where)
        return {key: from_plain(arguments[1], item, f"{where}.{key}") for key, item in mapping.items()}
    if issubclass(annotation, Enum):
        try:
            return annotation(value)
        except ValueError:
            names = ", ".join(member.value for member in annotation)
            raise InputError(f"{where}: must be one of {names}, not {quoted(value)}") from None
    if annotation is float:
        return _float(_checked((int, float), value, where), where)
    return _checked(annotation, value, where)


def _float(value: int | float, where: str) -> float:
    if isinstance(value, int) and numbers.finite(value) is None:  # an integer with hundreds of digits
        raise InputError(f"{where}: must be a number below 1e308, not {quoted(value)}")
    return float(value)


def _dataclass(cls: Any, document: dict[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(cls)
    for key in document:
        if key not in hints:
            raise InputError(f"{where}: unknown key {quoted(key)}{nearest(key, hints)}")
    for field in fields(cls):
        if field.name not in document and field.default is field.default_factory is MISSING:
            raise InputError(f"{where}: the key {quoted(field.name)} is missing")
    return cls(**{key: from_plain(hints[key], value, f"{where}: {key}") for key, value in document.items()})


def _checked(json_type: Any, value: Any, where: str) -> Any:
    """The value, if it has the type. True and false are no numbers."""
    if not isinstance(value, json_type) or (isinstance(value, bool) and json_type is not bool):
        raise InputError(f"{where}: must be {NAMES.get(json_type, 'a number')}, not {quoted(value)}")
    return value
