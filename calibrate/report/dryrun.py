"""Prints the result of a dry run."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from calibrate.dryrun.dryrun import CodePoint, DryRun, FailedAllocation
from calibrate.dryrun.hooks.factors import UNATTRIBUTED
from calibrate.dryrun.progress import Phase, Progress
from calibrate.report.measurement import COUNTERS
from predictor.report.layout import print_wrapped, table, wrapped
from predictor.report.table import factor_table
from predictor.report.units import gib, size_text

if TYPE_CHECKING:
    from rich.console import Console

MOST_FRAMES = 4
"""Lines of code that are shown of a stack beside the user's own; ``--json`` has more."""


def report(console: Console, result: DryRun) -> None:
    """Prints the whole output of ``peakcast dryrun``."""
    for line in wrapped(console, headline(result), indent=0):
        console.print(line, style="bold red" if result.out_of_memory else "bold")
    rank = f", rank {result.rank} of {result.world_size}" if result.world_size > 1 else ""
    steps = f"{result.optimizer_steps} optimizer step{'' if result.optimizer_steps == 1 else 's'}"
    console.print(f"emulated {result.gpu}{rank} · {steps}{', then stopped' if result.stopped else ''}", style="dim")
    console.print()
    if result.out_of_memory:
        failure(console, result.out_of_memory[0], result)
    else:
        peaks(console, result)
    if result.peak:
        place(console, f"Peak of {size_text(result.peak.requested_bytes)} requested", result.peak,
              frames=0 if result.out_of_memory else MOST_FRAMES)
    if result.factors:
        console.print(factor_table(result, console.width))
        console.print()
    for note in notes(result):
        for line in wrapped(console, note, indent=0):
            console.print(line)


def peaks(console: Console, result: DryRun) -> None:
    """Prints the peaks of PyTorch's three counters."""
    rows = table("peak", "GiB", "")
    rows.columns[1].justify = "right"
    for name, meaning in COUNTERS.items():
        rows.add_row(name, gib(getattr(result, f"peak_{name}_bytes")), meaning)
    console.print(rows)
    console.print()


def notes(result: DryRun) -> list[str]:
    """Sentences on what the numbers include."""
    lines = []
    if result.factors.get(UNATTRIBUTED):
        lines.append("Unattributed: tensors of the script or a library that belong to no model, optimizer or pass.")
    lines.append("Emulated GPU: no CUDA context, NCCL buffers or private workspaces of cuDNN are in these numbers.")
    if result.processes > 1:
        which = f"rank {result.rank}" if result.world_size > 1 else "the one"
        lines.append(f"{result.processes} processes used a GPU each; this is {which} with the highest peak.")
    return lines


def headline(result: DryRun) -> str:
    """Result of the run in one line."""
    capacity = size_text(result.capacity_bytes)
    if result.out_of_memory:
        caught = "" if result.exit_code else f" {len(result.out_of_memory)} time(s), and the script went on"
        return f"Out of GPU memory{caught}: the device has {capacity}."
    peak = (f"peak {size_text(result.peak_allocated_bytes)} allocated, {size_text(result.peak_reserved_bytes)} "
            f"reserved of {capacity}")
    if result.exit_code:
        return f"{ending(result)}; until then, {peak}."
    free = size_text(result.capacity_bytes - result.peak_reserved_bytes)
    return f"Fits the emulated GPU: {peak}; {free} stay free for what is outside PyTorch."


def ending(result: DryRun) -> str:
    """The failure of the script: its signal, or its exit code and exception."""
    if result.exit_code < 0:
        return f"The script was killed by {signal.Signals(-result.exit_code).name}"
    why = f" ({result.exception})" if result.exception else ""
    return f"The script ended with exit code {result.exit_code}{why}"


def progress_text(progress: Progress) -> str:
    """The state of a running dry run in a few words."""
    if progress.phase is Phase.STARTING:
        return "the script starts"
    if progress.phase is Phase.IMPORTED:
        return "PyTorch is imported; the GPU is not in use yet"
    at = "preparing, before the first backward"
    if progress.phase is Phase.STEPPING:
        at = f"step {progress.step}{f' of {progress.steps}' if progress.steps else ''}"
    return f"{at}; peak so far {size_text(progress.peak_bytes)}" if progress.peak_bytes else at


def failure(console: Console, failed: FailedAllocation, result: DryRun) -> None:
    """Prints the first failed allocation: where it was, who held the memory, and what would have been enough.

    The peaks until then stand in one line.
    """
    place(console, f"Out of memory while asking for {size_text(failed.tried_to_allocate_bytes)}", failed.where)
    rows = table("at the failed allocation", "size", "")
    rows.columns[1].justify = "right"
    for name, size, meaning in (
            ("asked for", failed.tried_to_allocate_bytes, "a segment, for the tensor and the allocator's rounding"),
            ("allocated", failed.allocated_bytes, "in use"),
            ("idle", failed.reserved_bytes - failed.allocated_bytes, "in PyTorch's cache, in no piece large enough"),
            ("free", failed.free_bytes, "on the device")):
        rows.add_row(name, size_text(size), meaning)
    console.print(rows)
    print_wrapped(console, enough(failed, result))
    until_then = (f"{gib(getattr(result, f'peak_{name}_bytes'))} {name}" for name in COUNTERS)
    print_wrapped(console, f"Peaks until then (GiB): {', '.join(until_then)}.")
    console.print()


def enough(failed: FailedAllocation, result: DryRun) -> str:
    """How much memory would have served the failed allocation, and whether expandable segments would have."""
    had = size_text(failed.reserved_bytes + failed.free_bytes)
    least = f"As it is it needs {size_text(failed.enough_bytes)} for PyTorch, which had {had}."
    found = result.with_expandable_segments
    if found is None:
        return f"{least} With expandable segments: not known, {result.not_played}."
    if found.survives:
        return (f"{least} With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True the same allocations succeed, with "
                f"{size_text(found.reserved_bytes)} reserved.")
    need = size_text(found.reserved_bytes)
    return f"{least} With expandable segments the same allocations fail, too, and need {need}."


def at(event: str, where: CodePoint) -> str:
    """An event with its moment in the run, its operator and its line of code."""
    step = f" of step {where.step}" if where.step else ""
    code = f": {where.operator}" if where.operator else ""
    code += f" in {where.module}" if where.module else ""
    moment = {"other": "between the passes"}.get(where.moment, where.moment)
    return f"{event} in {moment}{step}{code}{f', at {where.line}' if where.line else ''}"


def place(console: Console, event: str, where: CodePoint, frames: int = MOST_FRAMES) -> None:
    """Prints an event, its moment in the run, and the innermost lines of code that led to it.

    A file of an installed package is named from its package on.
    """
    for line in wrapped(console, at(event, where), indent=0):
        console.print(line)
    for frame in [frame for frame in where.frames if frame != where.line][:frames]:
        in_package = replace(frame, file=frame.file.replace("\\", "/").rpartition("/site-packages/")[2])
        console.print(f"    {in_package}", style="dim")
    console.print()
