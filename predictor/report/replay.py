"""Renders a replayed memory history beside the numbers in the recording."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from predictor.report.layout import table, wrapped
from predictor.report.units import size_text
from predictor.snapshot.replay import Replay, Totals

if TYPE_CHECKING:
    from rich.console import Console

MOST_RUNS = 12
"""Number of runs of equal segments that the report lists. The JSON has all segments."""


def report(console: Console, result: Replay, name: str) -> None:
    """Prints the result of ``peakcast replay``."""
    console.print(_verdict(result), style={True: "bold green", False: "bold red", None: "bold"}[result.agrees])
    begun = result.start.reserved_bytes
    held = f"began with {size_text(begun)} reserved" if begun else "began empty"
    failures = result.recorded.out_of_memory
    times = "" if not failures else f" · ran out of memory {failures:,} time{'s' if failures > 1 else ''}"
    about = f"{name} · device {result.device} · {result.settings or 'default settings'} · {held}{times}"
    for line in wrapped(console, about, indent=0):
        console.print(line)
    console.print()
    rows, recorded = table("", "simulated", "recorded"), result.recorded
    rows.columns[1].justify = rows.columns[2].justify = "right"
    _row(rows, "peak requested", result.peak_requested_bytes, recorded.peak_requested_bytes)
    _row(rows, "peak allocated", result.peak_allocated_bytes, None)
    _row(rows, "peak active", result.peak_active_bytes, None)
    _row(rows, "peak reserved", result.peak_reserved_bytes, recorded.peak_reserved_bytes)
    for counter in ("requested", "allocated", "active", "reserved"):
        key = f"{counter}_bytes"
        _row(rows, f"{counter} at the end", getattr(result.end, key), getattr(recorded.end, key))
    rows.add_row("segments", f"{len(result.segments):,}", f"{len(recorded.segments):,}")
    console.print(rows)
    console.print()
    _segments(console, "Segments in order", result.segments)
    if result.segments != recorded.segments:
        _segments(console, "Recorded", recorded.segments)


def document(result: Replay, path: str) -> dict[str, Any]:
    """The result of ``peakcast replay`` as JSON data."""
    return {
        "snapshot": path, "device": result.device, "allocator_conf": result.settings,
        "capacity_bytes": result.total_bytes, "events": result.events,
        "peak_requested_bytes": result.peak_requested_bytes, "peak_allocated_bytes": result.peak_allocated_bytes,
        "peak_active_bytes": result.peak_active_bytes, "peak_reserved_bytes": result.peak_reserved_bytes,
        "segments": list(result.segments), "start": _plain(result.start),
        "guessed_blocks": result.guesses, "end": _plain(result.end),
        "recorded": {
            "peak_requested_bytes": result.recorded.peak_requested_bytes,
            "peak_reserved_bytes": result.recorded.peak_reserved_bytes,
            "segments": list(result.recorded.segments), "end": _plain(result.recorded.end),
            "out_of_memory": result.recorded.out_of_memory},
        "agrees": result.agrees,
        "first_divergence": None if result.divergence is None else asdict(result.divergence),
    }


def _verdict(result: Replay) -> str:
    if result.agrees is None:
        return "Nothing was recorded for this device: there is nothing to compare."
    if result.divergence is None:
        return f"Simulation and recording agree in all of {result.events:,} events."
    entry, recorded, simulated = asdict(result.divergence).values()
    where = "at the end" if entry is None else f"first at entry {entry:,}"
    why = "" if not result.guesses else (
        f" The recording does not tell the exact size of {result.guesses:,} blocks that were there before it "
        "began, which may be the cause.")
    if result.is_expandable and result.total_bytes is None:
        why += (" Segments are expandable, and how far they reach depends on the device's memory, which the recording "
                "does not tell: give it with --capacity-bytes.")
    return f"Simulation and recording differ, {where}. Recorded: {recorded}. Simulated: {simulated}.{why}"


def _row(rows: Any, name: str, simulated: int, recorded: int | None) -> None:
    def text(size: int | None) -> str:
        return "" if size is None else f"{size_text(size)}  {size:>15,} B"

    rows.add_row(name, text(simulated), text(recorded))


def _segments(console: Console, head: str, segments: tuple[int, ...]) -> None:
    runs = [(size, len(list(equal))) for size, equal in groupby(segments)]
    listed = [size_text(size) + (f" × {count}" if count > 1 else "") for size, count in runs[:MOST_RUNS]]
    rest = sum(count for _, count in runs[MOST_RUNS:])
    text = ", ".join(run.replace(" ", "\xa0") for run in listed) or "none"
    more = f" and {rest:,} more (--json)" if rest else ""
    for line in wrapped(console, f"{head}: {text}{more}", indent=0):
        console.print(line)


def _plain(totals: Totals) -> dict[str, int]:
    return asdict(totals)
