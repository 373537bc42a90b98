"""A regression report as JSON. Keys are stable: keys may be added, and no key changes its meaning.

    peakcast_version, command, profile      profile: the option; null: the profile that predict chooses
    groups[]        by, value, cases, errors{counter}, moments, moment_hits, verdicts, xmem: fields of
                    calibrate.regression.statistics; groups[0] is of all cases
    cases[]         id, name, file, line, group, labels of the group, rank, workload, software, date, completion,
                    survived, measured_moment, predicted_moment, moment_hit, capacity_bytes, verdict, verdict_hit,
                    estimate_bytes, runtime_bytes, factors{}, modules{}, profile, METHOD_bytes of each method, and for
                    each counter measured_COUNTER_bytes, predicted_COUNTER_bytes, …_low, …_high, COUNTER_error,
                    COUNTER_inside
    methods[]       key, name, source, counts, does_not_count, errors of allocated peaks, why_not{case}: other methods
                    (errors: null if it has no estimate of any case); empty without --baselines
    paper           jobs[]: case, recipe, per_device_train_batch_size, sequence_length, buckets, data_parallel_size,
                    and of the highest rank measured_allocated_bytes, METHOD_bytes; errors{method} over these jobs
    explained[]     case, causes[], source, found_bytes, left_bytes, by_allocator_bytes, note, command
    history         case, measured{factor}, predicted{factor}: requested bytes at both peaks, without a profile, of a
                    case with a memory history; null without one
    skipped[]       file, line, name, why
    real_gpus       what other people measured on real GPUs says of the predictions, in one sentence
    gates[]         name, where, limits, cases, broken[]

Counters are requested, allocated, reserved and device; errors are fractions of the measured peak, below 0 where the
prediction is too low; METHOD is ``peakcast`` (in ``paper`` only) or a key of ``baselines.BASELINES``; everything that
ends in ``bytes`` is in bytes. Unknown values are null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calibrate.regression.baselines import BASELINES
from calibrate.regression.baselines.grid import Grid
from calibrate.regression.case_document import case
from calibrate.regression.cases import Case
from calibrate.regression.gates import Result
from calibrate.regression.report import Report
from predictor.common.json_dataclasses import to_plain
from predictor.version import VERSION


def document(report: Report, gates: Sequence[Result] = (), *, command: str = "", profile: str | None = None
             ) -> dict[str, Any]:
    """The whole report as JSON's types."""
    return to_plain({
        "peakcast_version": VERSION, "command": command, "profile": profile, "groups": report.groups,
        "cases": [case(comparison, report.estimates.get(comparison.case.id, {})) for comparison in report.comparisons],
        "methods": methods(report.grid), "paper": paper(report.paper),
        "history": report.history and {"case": report.history.case.id, "measured": report.history.measured,
                                       "predicted": report.history.predicted},
        "explained": [{"case": entry.comparison.case.id, "causes": entry.causes, "source": entry.source,
                       "found_bytes": entry.found_bytes, "left_bytes": entry.left_bytes,
                       "by_allocator_bytes": entry.by_allocator_bytes, "note": entry.note, "command": entry.command}
                      for entry in report.explained],
        "skipped": report.skipped, "real_gpus": report.real_gpus,
        "gates": [{"name": result.gate.name, "where": result.gate.where, "limits": result.gate.limits,
                   "cases": result.cases, "broken": result.broken} for result in gates]})


def methods(grid: Grid) -> list[dict[str, Any]]:
    """Other methods, with their errors over all cases."""
    errors = grid.errors
    return [{"key": key, "name": BASELINES[key].name, "source": BASELINES[key].source, "counts": BASELINES[key].counts,
             "does_not_count": BASELINES[key].does_not_count, "errors": errors[key],
             "why_not": {row.case.id: row.estimates[key].why_not for row in grid.rows if row.bytes(key) is None}}
            for key in grid.methods[1:]]


def paper(grid: Grid) -> dict[str, Any]:
    """The jobs of the paper's grid."""
    keys = ("recipe", "per_device_train_batch_size", "sequence_length", "data_parallel_size")
    return {"jobs": [{"case": row.case.id, **{key: getattr(row.case.workload, key) for key in keys},
                      "buckets": buckets(row.case), "measured_allocated_bytes": row.measured_bytes,
                      **{f"{method}_bytes": row.bytes(method) for method in grid.methods}} for row in grid.rows],
            "errors": grid.errors if grid.rows else {}}


def buckets(case: Case) -> str:
    """ZeRO's communication buckets: ``hidden²`` (Hugging Face's "auto"), or their elements and whether they overlap."""
    deepspeed: Mapping[str, Any] = case.workload.deepspeed or {}
    zero = deepspeed.get("zero_optimization", {})
    size = zero.get("reduce_bucket_size")
    return f"{size:.0e}".replace("e+0", "e") + " overlap" * bool(zero.get("overlap_comm")) if size else "hidden²"
