"""A change of a workload in the words of a workload file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from predictor.common.value_types import thaw
from predictor.workload.workload import Workload


def file_words(workload: Workload, keys: Mapping[str, Any], file: str) -> str:
    """The entries to write into a workload file for changed keys, in one line of YAML or JSON.

    Empty if they are not entries of that file: a DeepSpeed config usually is a file of its own.

    Args:
        keys: key -> new value; None where it is no longer given.
        file: the name of the workload file, whose ending says its format.
    """
    if keys.get("deepspeed") is not None:
        return ""
    changed = {name: thaw(value) for name, value in keys.items() if value not in (None, getattr(workload, name))}
    written = json.dumps(changed) if file.lower().endswith(".json") else yaml.safe_dump(
        changed, default_flow_style=True, sort_keys=False, width=float("inf"))
    dropped = [name for name, value in keys.items() if value is None and name not in workload.filled_in]
    return written.strip()[1:-1] + (f", without {' and '.join(dropped)}" if dropped else "")
