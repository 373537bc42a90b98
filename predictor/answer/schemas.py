"""JSON Schemas (draft 2020-12) of a workload file, with which editors complete it, and of the result of ``predict``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from predictor.answer.prediction import Bound, Prediction
from predictor.common.gpus import GPUS
from predictor.common.value_types import NotYetSupported, Schema, or_null, thaw
from predictor.course.course import Course
from predictor.model import models
from predictor.workload.keys import KEYS
from predictor.workload.value_sources import Source

DRAFT = "https://json-schema.org/draft/2020-12/schema"
ONLY_IN_PYTHON = {"layers", "modules_attributed", "layers_attributed", "candidates", "curve", "history", "frozen_bytes",
                  "passed_bytes"}
"""Attributes of a prediction that its JSON does not have."""
WHERE_ASKED = {"course", "loops", "is_fragile"}
"""Keys that only some options add."""
_PLAIN: dict[Any, Schema] = {int: {"type": "integer"}, float: {"type": "number"}, str: {"type": "string"},
                             bool: {"type": "boolean"}, type(None): {"type": "null"}, Any: {},
                             Source: {"type": "object"}, Course: {"type": "object"}}


def workload() -> Schema:
    """The schema of a workload file: the content of ``--workload``.

    It takes every file that :class:`predictor.workload.workload.Workload` takes. It also takes files with keys that
    contradict each other.
    """
    keys = {name: _key(name) for name, entry in KEYS.items()
            if not isinstance(entry.metadata["kind"], NotYetSupported)}
    later = {name: entry.metadata["kind"].schema() | {"description": entry.metadata["help"], "deprecated": True}
             for name, entry in KEYS.items() if name not in keys}
    return {"$schema": DRAFT, "title": "peakcast workload", "type": "object", "properties": keys | later,
            "required": ["model"], "additionalProperties": False}


def _key(name: str) -> Schema:
    about = KEYS[name].metadata
    schema = about["kind"].schema()
    if name == "model":
        return _completed(models.known_names(), schema) | {"description": about["help"]}
    if name == "gpu":
        schema = _completed(GPUS, schema)
    return or_null(schema) | {"description": about["help"], "default": thaw(about["default"])}


def _completed(names: Iterable[str], schema: Schema) -> Schema:
    """A schema of which an editor completes some values."""
    return {"anyOf": [{"enum": list(names)}, schema]}


def result() -> Schema:
    """The schema of ``peakcast predict --json``: of :meth:`predictor.answer.prediction.Prediction.to_json`."""
    types, about = get_type_hints(Prediction), described(Prediction)
    definitions: dict[str, Schema] = {}
    keys: dict[str, Schema] = {}
    for name in (field.name for field in fields(Prediction) if field.name not in ONLY_IN_PYTHON):
        if Bound in (types[name], *get_args(types[name])):
            size = _of(int if types[name] is Bound else int | None, definitions)
            keys |= {f"peak_{name}_bytes": size} | {
                f"peak_{name}_bytes_{end}": _of(int | None, definitions) for end in ("low", "high")}
        else:
            keys[name] = _of(types[name], definitions) | ({"description": about[name]} if name in about else {})
    return {"$schema": DRAFT, "title": "peakcast prediction", "type": "object", "properties": keys,
            "required": [name for name in keys if name not in WHERE_ASKED], "$defs": definitions}


def described(cls: type) -> dict[str, str]:
    """The attributes that the docstring of a class describes, with their descriptions."""
    text = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w[\w, ]*): (.+(?:\n     +.+)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()) for names, words in entries for name in names.split(", ")}


def _of(hint: Any, definitions: dict[str, Schema]) -> Schema:
    """The schema of a type, where dataclasses go to ``definitions``."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if origin in (Union, UnionType):
        return {"anyOf": [_of(each, definitions) for each in inner]}
    if origin is tuple and Ellipsis not in inner:
        items = [_of(each, definitions) for each in inner]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin in (tuple, list):
        return {"type": "array", "items": _of(inner[0], definitions)}
    if origin in (Mapping, dict):
        key, value = inner
        names = {"propertyNames": _of(key, definitions)} if isinstance(key, type) and issubclass(key, Enum) else {}
        return {"type": "object", "additionalProperties": _of(value, definitions)} | names
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    if hint.__name__ not in definitions:
        definitions[hint.__name__] = _of_dataclass(hint, definitions)
    return {"$ref": f"#/$defs/{hint.__name__}"}


def _of_dataclass(cls: Any, definitions: dict[str, Schema]) -> Schema:
    types, about = get_type_hints(cls), described(cls)
    names = [field.name for field in fields(cls)]
    keys = {name: _of(types[name], definitions) | ({"description": about[name]} if name in about else {})
            for name in names}
    return {"type": "object", "required": names, "properties": keys}
