"""Renders a replayed memory history beside the numbers in the recording, and the same history with other settings."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from predictor.report.layout import table, wrapped
from predictor.report.units import size_text
from predictor.snapshot.replay import Replay, Totals
from predictor.snapshot.what_if import WhatIf

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


def what_if_report(console: Console, result: WhatIf, recorded: Replay, name: str) -> None:
    """Prints the result of ``peakcast replay`` with other settings or another capacity than the recorded ones.

    Args:
        recorded: the replay with the recorded settings.
    """
    for number, line in enumerate(what_if_sentences(result, recorded)):
        for part in wrapped(console, line, indent=0):
            console.print(part, style="bold" if not number else "")
    begun = result.start.reserved_bytes
    held = f"began with {size_text(begun)} reserved, which keep the recorded settings" if begun else "began empty"
    for line in wrapped(console, f"{name} · device {result.device} · recorded with "
                        f"{result.recorded_settings or 'default settings'} · {held}", indent=0):
        console.print(line)
    console.print()
    rows = table("", "played" if _as_recorded(result) else f"with {result.settings or 'default settings'}", "recorded")
    rows.columns[1].justify = rows.columns[2].justify = "right"
    for counter in ("requested", "allocated", "active", "reserved"):
        key = f"peak_{counter}_bytes"
        _row(rows, f"peak {counter}", getattr(result, key), getattr(recorded, key))
    for counter in ("requested", "allocated", "active", "reserved"):
        key = f"{counter}_bytes"
        _row(rows, f"{counter} at the end", getattr(result.end, key), getattr(recorded.end, key))
    rows.add_row("segments", f"{len(result.segments):,}", f"{len(recorded.segments):,}")
    console.print(rows)
    console.print()
    _segments(console, "Segments in order", result.segments)
    _segments(console, "Recorded", recorded.segments)


def what_if_sentences(result: WhatIf, recorded: Replay) -> list[str]:
    """What other settings or another capacity change, in sentences: the first is the answer."""
    settings = result.settings or "the default settings"
    if _as_recorded(result) and result.limit_bytes is not None:
        settings = f"{size_text(result.limit_bytes)} for PyTorch and the recorded settings"
    if result.failure is not None and not result.failure.is_recorded:
        answer = f"With {settings} the job runs out of memory: {_failure(result)}."
    else:
        saved = recorded.peak_reserved_bytes - result.peak_reserved_bytes
        change = f"saves {size_text(saved)}" if saved > 0 else f"takes {size_text(-saved)} more" if saved else \
            "nothing changes"
        answer = (f"With {settings} the job reserves {size_text(result.peak_reserved_bytes)} instead of the recorded "
                  f"{size_text(recorded.peak_reserved_bytes)}: {change}. {_allocated(result, recorded)}")
    return [answer, *_survival(result, recorded), *_doubts(result, recorded)]


def _as_recorded(result: WhatIf) -> bool:
    """Whether only the capacity may be another than in the recording."""
    return result.settings == result.recorded_settings


def _failure(result: WhatIf) -> str:
    failure = result.failure
    assert failure is not None
    return (f"at entry {failure.entry:,} it asks for {size_text(failure.requested_bytes)} while "
            f"{size_text(failure.allocated_bytes)} are allocated and {size_text(failure.reserved_bytes)} reserved of "
            f"{size_text(result.limit_bytes or 0)} that PyTorch can have")


def _allocated(result: WhatIf, recorded: Replay) -> str:
    more = result.peak_allocated_bytes - recorded.peak_allocated_bytes
    change = f"{size_text(abs(more))} {'more' if more > 0 else 'less'}" if more else "unchanged"
    return f"The allocated peak is {size_text(result.peak_allocated_bytes)}, {change}."


def _survival(result: WhatIf, recorded: Replay) -> list[str]:
    """Sentences about the out-of-memory errors in the recording, and about the memory that PyTorch could have."""
    failures, avoided = recorded.recorded.out_of_memory, result.failures_avoided
    sentences = []
    if failures and avoided == failures:
        sentences.append(f"Of {failures:,} recorded out-of-memory error{'s' * (failures > 1)} none happens. What the "
                         "job would have done next is not recorded.")
    elif failures and result.failure is not None and result.failure.is_recorded:
        sentences.append(f"It still runs out of memory ({failures - avoided:,} of {failures:,} times): "
                         f"{_failure(result)}.")
    elif not failures and result.limit_bytes is not None and result.failure is None:
        free = f"{size_text(result.limit_bytes - result.peak_reserved_bytes)} of them stay free"
        sentences.append(f"It survives with {size_text(result.limit_bytes)} for PyTorch; {free}" + (
            " for the CUDA context, NCCL and libraries, which a recording does not contain."
            if result.outside_bytes is None else "."))
    if result.outside_bytes is not None:
        sentences.append(f"PyTorch gets {size_text(result.limit_bytes or 0)}: the {size_text(result.total_bytes or 0)} "
                         f"of the device in the snapshot, less {size_text(result.outside_bytes)} assumed for the CUDA "
                         "context, NCCL and libraries. --capacity-bytes gives it another size.")
    return sentences


def _doubts(result: WhatIf, recorded: Replay) -> list[str]:
    """Sentences about what the answer assumes."""
    sentences = []
    if result.perhaps_refused:
        times = "once" if result.perhaps_refused == 1 else f"{result.perhaps_refused:,} times"
        sentences.append(f"The recording gave memory back {times} right before it needed more than ever: this counts "
                         "as a call of empty_cache(). If the device had refused memory, give its size with "
                         "--capacity-bytes.")
    if recorded.agrees is False:
        sentences.append("With the recorded settings the simulation does not make every recorded decision (peakcast "
                         "replay without --allocator-conf and --capacity-bytes names the first difference): the "
                         "numbers may be off.")
    return sentences


def what_if_document(result: WhatIf, recorded: Replay, path: str) -> dict[str, Any]:
    """The same as JSON data: the keys of :func:`document`, and ``what_if``."""
    peaks = {f"peak_{counter}_bytes": getattr(result, f"peak_{counter}_bytes")
             for counter in ("requested", "allocated", "active", "reserved")}
    own = {"allocator_conf": result.settings, "capacity_bytes": result.total_bytes, "segments": list(result.segments),
           "start": _plain(result.start), "end": _plain(result.end), "agrees": None, "first_divergence": None}
    failure = None if result.failure is None else asdict(result.failure)
    return document(recorded, path) | peaks | own | {"what_if": {
        "recorded_allocator_conf": result.recorded_settings, "limit_bytes": result.limit_bytes,
        "assumed_outside_bytes": result.outside_bytes, "recorded_peak_allocated_bytes": recorded.peak_allocated_bytes,
        "recorded_peak_reserved_bytes": recorded.peak_reserved_bytes,
        "saved_allocated_bytes": recorded.peak_allocated_bytes - result.peak_allocated_bytes,
        "saved_reserved_bytes": recorded.peak_reserved_bytes - result.peak_reserved_bytes,
        "perhaps_refused": result.perhaps_refused, "failures_avoided": result.failures_avoided,
        "out_of_memory": failure, "recording_agrees": recorded.agrees}}


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
