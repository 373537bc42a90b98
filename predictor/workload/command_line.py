"""A workload as the command line that predicts it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from predictor.common.value_types import Flag, thaw
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


def _words(name: str, value: Any) -> Iterator[str]:
    option = name.replace("_", "-")
    if isinstance(KEYS[name].metadata["kind"], Flag):
        yield f"--{option}" if value else f"--no-{option}"
        return
    for item in value if isinstance(value, (list, tuple)) else [value]:
        yield from (f"--{option}", json.dumps(thaw(item)) if isinstance(item, Mapping) else str(item))
