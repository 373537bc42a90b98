"""Says a change of a workload in the words that a user types: peakcast's options, and the allocator's variable."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from predictor.common.value_types import thaw
from predictor.workload.keys import KEYS
from predictor.workload.workload import Workload

NOT_TYPED = {"deepspeed"}
"""Keys whose value is a file."""


def option_words(workload: Workload, keys: Mapping[str, Any]) -> str:
    """The words for changed keys of a workload; empty if they cannot be typed, as a DeepSpeed config cannot.

    Args:
        keys: key -> new value; None where it is no longer given.
    """
    if any(keys[name] is not None for name in NOT_TYPED & keys.keys()):
        return ""
    added = [word for name, value in keys.items() if value not in (None, getattr(workload, name))
             for word in _words(name, value)]
    dropped = [_option(name) for name, value in keys.items() if value is None and name not in workload.filled_in]
    return " ".join(added) + (f", without {' and '.join(dropped)}" if dropped else "")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _words(name: str, value: Any) -> Iterator[str]:
    if name == "allocator_conf":
        yield f"PYTORCH_CUDA_ALLOC_CONF={shlex.quote(value)}"
    elif isinstance(value, bool):
        yield _option(name) if value else _option(f"no_{name}")
    elif isinstance(value, Mapping):
        usual = KEYS[name].metadata["kind"].usual(value)
        for key, item in thaw(value).items():
            if key not in usual or item != usual[key]:
                yield from (_option(name), f"{key}={str(item).lower() if isinstance(item, bool) else item}")
    else:
        yield from (_option(name), shlex.quote(str(value)))
