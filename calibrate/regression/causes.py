"""Explains the worst predictions by factor and operator, or gives the command that records what is needed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from calibrate.regression.cases import Case, Cause
from calibrate.regression.compare import Comparison, compare
from calibrate.regression.histories import attribution
from predictor.common.errors import InputError
from predictor.common.value_types import thaw
from predictor.workload.keys import KEYS

FAR = 0.02
"""Relative errors above this are always explained."""
PROFILE = "profile"
"""``Cause.why`` of bytes that the profile adds to a factor."""


@dataclass(frozen=True)
class Explained:
    """One case whose error is large, or among the largest.

    Attributes:
        comparison: with the predicted factors at its peak.
        causes: buffers that count differently at the measured requested peak, and bytes that the profile adds to a
            factor (``why`` is :data:`PROFILE`; ``measured_bytes`` are then those predicted without it). The largest
            difference comes first. Empty if nothing was recorded.
        source: source of the buffers: ``record``, ``snapshot``, or ``none``.
        found_bytes: predicted less measured requested bytes of all causes together.
        left_bytes: predicted less measured requested bytes that no cause explains; None if not measured.
        by_allocator_bytes: difference of allocated bytes less that of requested bytes: the part that comes from the
            allocator's blocks, not from tensors. None if either is unknown.
        note: the explanation in one line, or how to find it.
        command: command that records the job's memory history; None if its recorded history explains most.
    """

    comparison: Comparison
    causes: tuple[Cause, ...]
    source: str
    found_bytes: int
    left_bytes: int | None
    by_allocator_bytes: int | None
    note: str
    command: str | None


def explain(comparisons: Sequence[Comparison], least: int = 3) -> list[Explained]:
    """Explains all cases with errors above :data:`FAR`, and at least the ``least`` worst with any error, in order."""
    ordered = sorted(comparisons, key=lambda comparison: -comparison.worst_error)
    return [_explained(comparison) for place, comparison in enumerate(ordered)
            if comparison.worst_error > FAR or place < least and comparison.worst_error > 0]


def _explained(comparison: Comparison) -> Explained:
    causes, source, failed = _causes(comparison.case)
    causes = tuple(sorted([*causes, *_of_profile(comparison)], key=lambda cause: -abs(cause.difference_bytes)))
    gaps = {counter: None if peak.measured_bytes is None or peak.predicted_bytes is None else
            peak.predicted_bytes - peak.measured_bytes for counter, peak in comparison.peaks.items()}
    requested, allocated = gaps["requested"], gaps["allocated"]
    explained = sum(cause.difference_bytes for cause in causes)
    left = None if requested is None else requested - explained
    blocks = None if allocated is None or requested is None else allocated - requested
    unexplained = source == "none" or abs(left or 0) > abs(explained)
    note = _note(comparison, gaps, causes, left if unexplained else 0, failed)
    return Explained(comparison, causes, source, explained, left, blocks, note,
                     measure_command(comparison.case) if unexplained or source != "snapshot" else None)


def _of_profile(comparison: Comparison) -> list[Cause]:
    """Factors whose bytes differ with and without the profile, each at its own predicted peak."""
    if comparison.profile is None:
        return []
    bare = compare(comparison.case, "none").factors
    return [Cause(PROFILE, "", comparison.moment, 0, bare.get(factor, 0), comparison.factors.get(factor, 0), factor)
            for factor in dict.fromkeys((*bare, *comparison.factors))
            if factor != "allocator" and bare.get(factor, 0) != comparison.factors.get(factor, 0)]


class _Known(NamedTuple):
    """Causes, their source, and the reason why a snapshot could not be used."""

    causes: Iterable[Cause]
    source: str
    failed: str = ""


def _causes(case: Case) -> _Known:
    if case.causes:
        return _Known(case.causes, "record")
    try:
        attributed = attribution(case)
    except InputError as error:
        return _Known((), "none", str(error))
    if attributed is None:
        return _Known((), "none")
    sums: dict[tuple, list[int]] = {}
    for item in attributed.at_peak().items:
        total = sums.setdefault((item.why.value, item.operator, item.moment.value,
                                 item.factor and item.factor.value), [0, 0, 0])
        for place, value in enumerate((1, item.measured_bytes, item.predicted_bytes)):
            total[place] += value
    return _Known([Cause(why, operator, moment, count, measured, predicted, factor)
                   for (why, operator, moment, factor), (count, measured, predicted) in sums.items()], "snapshot")


def _note(comparison: Comparison, gaps: dict[str, int | None], causes: Sequence[Cause], left: int | None,
          failed: str) -> str:
    requested = gaps["requested"]
    if requested is None:
        return "no peaks were measured"
    parts = [f"{requested:+,} bytes requested" + (f": most by {description(causes[0])}" if causes else "")] \
        if requested or causes else []
    for counter, holders in (("allocated", "the blocks that hold them"), ("reserved", "the segments that hold those")):
        difference = gaps[counter]
        if difference is not None and abs(difference - requested) > abs(requested):
            parts.append(f"{difference:+,} bytes {counter}: {holders}")
    if left and causes:
        why = f"the peak is predicted in {comparison.moment}" if comparison.moment_hit is False else \
            "this release predicts otherwise than the one that measured"
        parts.append(f"{left:+,} of the requested bytes are of no such cause: {why}")
    if failed or left and not causes:
        parts.append(failed or "which buffers it is needs a memory history")
    return "; ".join(parts)


def description(cause: Cause) -> str:
    """A cause in words: ``aten::div in backward (device only, -4 bytes)``."""
    if cause.why == PROFILE:
        return f"{cause.factor} as the profile has them ({cause.difference_bytes:+,} bytes)"
    how = ", ".join(filter(None, (cause.why.replace("_", " "), cause.factor, f"{cause.difference_bytes:+,} bytes")))
    return f"{cause.operator} in {cause.moment} ({how})"


def measure_command(case: Case) -> str:
    """The command that measures this job again with its memory history."""
    words = ["peakcast", "measure", case.workload.model]
    zero = case.workload.engine == "deepspeed"
    implied = {"model", "profile", "versions", *(("engine",) if zero else ()),
               *(("zero_stage",) if case.workload.deepspeed else ())}
    for name, value in case.workload.resolved().items():
        if name not in implied and value != thaw(KEYS[name].metadata["default"]):
            words += _option(name, value)
    words += ["--device", "emulated" if case.measured_on == "emulated" else "cuda"]
    if case.completion != "immediate":
        words += ["--events", case.completion]
    return shlex.join([*words, "--snapshot", f"{case.id}.pickle", "-o", f"{case.id}.json", "--json"])


def _option(name: str, value) -> list[str]:
    option = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [option if value else option.replace("--", "--no-", 1)]
    if isinstance(value, dict):
        return [option, json.dumps(value, separators=(",", ":"))]
    if isinstance(value, (list, tuple)):
        return [word for item in value for word in (option, str(item))]
    return [option, str(value)]
