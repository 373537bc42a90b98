"""Why the worst predictions are off: by factor and operator where the record knows, else how to find out."""

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
"""Errors beyond this are explained, however many there are."""
PROFILE = "profile"
"""``Cause.why`` of bytes that a factor has with the profile and would not have without."""


@dataclass(frozen=True)
class Explained:
    """One case that is far off, or among the worst.

    Attributes:
        comparison: with the predicted factors at its peak.
        causes: the largest difference first: buffers that do not count the same on both sides of the measured peak of
            requested bytes, and what the profile adds to a factor (``why`` is :data:`PROFILE`; its ``measured_bytes``
            are those predicted without). Empty where nobody looked.
        source: where the buffers are from: ``record``, ``snapshot``, or ``none``.
        found_bytes: predicted less measured requested bytes of all causes together.
        left_bytes: predicted less measured requested bytes that no cause explains; None where nobody measured them.
        by_allocator_bytes: predicted less measured allocated bytes, less the same of requested: what the blocks do,
            not the tensors. None where one is not known.
        note: in one line: what it comes from, or how to find out.
        command: what would record its memory history; None where it has one that explains most of it.
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
    """All cases beyond :data:`FAR`, and at least the ``least`` worst that are off at all, the worst first."""
    ordered = sorted(comparisons, key=lambda one: -one.worst_error)
    return [_explained(one) for place, one in enumerate(ordered)
            if one.worst_error > FAR or place < least and one.worst_error > 0]


def _explained(one: Comparison) -> Explained:
    causes, source, failed = _causes(one.case)
    causes = tuple(sorted([*causes, *_of_profile(one)], key=lambda cause: -abs(cause.difference_bytes)))
    gaps = {counter: None if peak.measured_bytes is None or peak.predicted_bytes is None else
            peak.predicted_bytes - peak.measured_bytes for counter, peak in one.peaks.items()}
    found = sum(cause.difference_bytes for cause in causes)
    left = None if gaps["requested"] is None else gaps["requested"] - found
    blocks = None if None in (gaps["allocated"], gaps["requested"]) else gaps["allocated"] - gaps["requested"]
    open_ = source == "none" or abs(left or 0) > abs(found)
    return Explained(one, causes, source, found, left, blocks, _note(one, gaps, causes, left if open_ else 0, failed),
                     measure_command(one.case) if open_ or source != "snapshot" else None)


def _of_profile(one: Comparison) -> list[Cause]:
    """What each factor has with the profile and not without, where each of both peaks."""
    if one.profile is None:
        return []
    bare = compare(one.case, "none").factors
    return [Cause(PROFILE, "", one.moment, 0, bare.get(factor, 0), one.factors.get(factor, 0), factor)
            for factor in dict.fromkeys((*bare, *one.factors))
            if factor != "allocator" and bare.get(factor, 0) != one.factors.get(factor, 0)]


class _Known(NamedTuple):
    """Causes, where they are from, and why a snapshot could not be used."""

    causes: Iterable[Cause]
    source: str
    failed: str = ""


def _causes(case: Case) -> _Known:
    if case.causes:
        return _Known(case.causes, "record")
    try:
        found = attribution(case)
    except InputError as error:
        return _Known((), "none", str(error))
    if found is None:
        return _Known((), "none")
    sums: dict[tuple, list[int]] = {}
    for item in found.at_peak().items:
        total = sums.setdefault((item.why.value, item.operator, item.moment.value,
                                 item.factor and item.factor.value), [0, 0, 0])
        for place, value in enumerate((1, item.measured_bytes, item.predicted_bytes)):
            total[place] += value
    return _Known([Cause(why, operator, moment, *total, factor)
                   for (why, operator, moment, factor), total in sums.items()], "snapshot")


def _note(one: Comparison, gaps: dict[str, int | None], causes: Sequence[Cause], left: int | None,
          failed: str) -> str:
    requested = gaps["requested"]
    if requested is None:
        return "no peaks were measured"
    parts = [f"{requested:+,} bytes requested" + (f": most by {told(causes[0])}" if causes else "")] \
        if requested or causes else []
    for counter, what in (("allocated", "the blocks that hold them"), ("reserved", "the segments that hold those")):
        gap = gaps[counter]
        if gap is not None and abs(gap - requested) > abs(requested):
            parts.append(f"{gap:+,} bytes {counter}: {what}")
    if left and causes:
        why = f"the peak is predicted in {one.moment}" if one.moment_hit is False else \
            "this release predicts otherwise than the one that measured"
        parts.append(f"{left:+,} of the requested bytes are of no such cause: {why}")
    if failed or left and not causes:
        parts.append(failed or "which buffers it is needs a memory history")
    return "; ".join(parts)


def told(cause: Cause) -> str:
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
