"""One case of a regression report as JSON's types: an entry of ``cases`` in ``report.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibrate.regression.baselines import BASELINES, Estimate
from calibrate.regression.compare import Comparison


def case(comparison: Comparison, estimates: Mapping[str, Estimate]) -> dict[str, Any]:
    """One comparison, with other methods' estimates; null for methods without one."""
    case = comparison.case
    entry: dict[str, Any] = {
        "id": case.id, "name": case.name, "file": case.file, "line": case.line, "group": case.group, **case.labels,
        "rank": case.workload.rank, "workload": case.workload.resolved(), "software": case.software, "date": case.date,
        "completion": case.completion, "survived": case.survived, "measured_moment": case.moment,
        "measured_step": case.step, "predicted_moment": comparison.moment, "predicted_step": comparison.step,
        "predicted_module": comparison.module, "predicted_operator": comparison.operator,
        "moment_hit": comparison.moment_hit, "capacity_bytes": comparison.capacity_bytes,
        "verdict": comparison.verdict, "verdict_hit": comparison.verdict_hit,
        "estimate_bytes": comparison.estimate_bytes, "runtime_bytes": comparison.runtime_bytes,
        "factors": comparison.factors, "modules": comparison.modules, "profile": comparison.profile}
    entry |= {f"{key}_bytes": estimates[key].bytes if key in estimates else None for key in BASELINES}
    for counter, peak in comparison.peaks.items():
        entry |= {f"measured_{counter}_bytes": peak.measured_bytes, f"predicted_{counter}_bytes": peak.predicted_bytes,
                  f"predicted_{counter}_bytes_low": peak.low_bytes, f"predicted_{counter}_bytes_high": peak.high_bytes,
                  f"{counter}_error": peak.error, f"{counter}_inside": peak.inside}
    return entry
