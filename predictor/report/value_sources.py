"""Renders the sources of a workload's values: the files and options that set them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from predictor.workload.value_sources import DEFAULT, OVERRIDDEN, Source, Value

if TYPE_CHECKING:
    from rich.console import Console

SECTION = "deepspeed."


def report(console: Console, source: Source | None) -> None:
    """Prints the values that were read as a table, then the framework's defaults, then keys without effect on memory.

    Prints nothing without a source.
    """
    if source is None:
        return
    from predictor.report.layout import table, wrapped

    for line in wrapped(console, f"Read from {source.file}, as {source.framework}:", indent=0):
        console.print(line)
    rows = table("key", "value", "said by")
    lines: dict[str, list[str]] = {}
    for entry in source.values:
        notes = ["overridden by an option"] * (entry.origin == OVERRIDDEN) + [entry.because] * bool(entry.because)
        because = f" ({', '.join(notes)})" if notes else ""
        if entry.origin != DEFAULT and not entry.key.startswith(SECTION):
            rows.add_row(entry.key, word(entry.value), f"{', '.join(entry.names)}{because}")
        else:
            heading = f"Default of {entry.where}" if entry.origin == DEFAULT else entry.where
            lines.setdefault(heading, []).append(f"{_short(entry)} {word(entry.value)}{because}")
    console.print(rows)
    for heading, parts in (*lines.items(), ("Without effect on memory", source.without_effect)):
        for line in wrapped(console, f"{heading}: {', '.join(parts)}", indent=0) if parts else ():
            console.print(line)
    console.print()


def _short(entry: Value) -> str:
    return entry.key.removeprefix(SECTION).removeprefix("zero_optimization.")


def word(value: object, limit: int = 60) -> str:
    """A value as text of at most ``limit`` characters."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        text = " ".join(f"{key}={word(item)}" for key, item in value.items())
    elif isinstance(value, (int, float)):
        return f"{value:g}" if isinstance(value, float) else f"{value:,}"
    else:
        text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
