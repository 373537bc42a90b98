"""Where the values of a workload came from, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from predictor.source import DEFAULT, OVERRIDDEN, Source

if TYPE_CHECKING:
    from rich.console import Console


def report(console: Console, source: Source | None) -> None:
    """What was read, what the framework fills in, and what has no effect; nothing without a source."""
    if source is None:
        return
    from predictor.report.table import table, wrapped

    rows = table(f"read as {source.framework}", "value", "from")
    for entry in source.values:
        where = entry.where if entry.origin != DEFAULT else f"default of {entry.where}"
        rows.add_row(entry.key, word(entry.value), f"{where}; overridden" if entry.origin == OVERRIDDEN else where)
    console.print(rows)
    if source.without_effect:
        for line in wrapped(console, f"Without effect on memory: {', '.join(source.without_effect)}", indent=0):
            console.print(line)
    console.print()


def word(value: object, limit: int = 60) -> str:
    """A value, short."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        text = " ".join(f"{key}={word(item)}" for key, item in value.items())
    else:
        text = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
