"""A workload, or a change of one, as the words of a command line that predicts it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from predictor.common.value_types import Flag, Table, thaw
from predictor.workload.keys import KEYS
from predictor.workload.workload import Workload


def command_line(workload: Workload, command: str = "predict") -> str:
    """``peakcast predict llava-1.5-7b --sequence-length 1024 …``, with every key that is not a default.

    Typed into a shell, it describes the same workload.
    """
    given = {name: value for name, value in workload.resolved().items()
             if name not in workload.filled_in and value is not None and name != "model"}
    words = [word for name, value in given.items() for word in _words(name, value)]
    return shlex.join(["peakcast", command, workload.model, *words])


def change_words(workload: Workload, keys: Mapping[str, Any]) -> str:
    """The words to type for changed keys of a workload; empty if they cannot be typed, as a DeepSpeed config cannot.

    The allocator's settings are given as the variable that the training itself needs.

    Args:
        keys: key -> new value; None where it is no longer given.
    """
    if keys.get("deepspeed") is not None:
        return ""
    changed = {name: value for name, value in keys.items() if value not in (None, getattr(workload, name))}
    variable = changed.pop("allocator_conf", None)
    added = [f"PYTORCH_CUDA_ALLOC_CONF={shlex.quote(variable)}"] if variable else []
    added += [shlex.quote(word) for name, value in changed.items() for word in _words(name, value)]
    dropped = [_option(name) for name, value in keys.items() if value is None and name not in workload.filled_in]
    return " ".join(added) + (f", without {' and '.join(dropped)}" if dropped else "")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _words(name: str, value: Any) -> Iterator[str]:
    kind = KEYS[name].metadata["kind"]
    if isinstance(kind, Flag):
        yield _option(name) if value else _option(f"no_{name}")
        return
    for item in value if isinstance(value, (list, tuple)) else [value]:
        for text in _texts(kind, thaw(item)) if isinstance(item, Mapping) else [str(item)]:
            yield from (_option(name), text)


def _texts(kind: Any, value: dict[str, Any]) -> list[str]:
    """A mapping as ``KEY=VALUE`` for each entry that is not a default, or as JSON where an entry is no single value."""
    said = {key: item for key, item in value.items() if not isinstance(kind, Table) or kind.defaults.get(key) != item}
    if not isinstance(kind, Table) or not said or any(isinstance(item, (dict, list)) for item in said.values()):
        return [json.dumps(value)]
    return [f"{key}={json.dumps(item) if isinstance(item, bool) else item}" for key, item in said.items()]
