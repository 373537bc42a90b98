"""Change the emulated H100 in known ways, calibrate it, and compare the fitted profile with the changes.

    pip install -e '.[test]'
    python scripts/check.py recovery            # about 20 minutes on two cores; no GPU is needed

The injected changes are cuDNN workspaces, memory of the CUDA context and of libraries, and another rounding of the
allocator (calibrate/emulator/injection.py). The fit sees only the measured jobs of a campaign. Full models and deeper
ones, which were not fitted, are then predicted three times: for the unchanged device, for the changed device without a
profile, and for the changed device with the fitted profile. The numbers go to profiles/evidence/recovery.json.
"""

from __future__ import annotations

import json
import os
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

from calibrate.attribution import JobAllocations, attribute, from_run, from_snapshot
from calibrate.campaign import design
from calibrate.campaign.measured_job import row_of
from calibrate.campaign.rows import Row, opened
from calibrate.campaign.run import Limits, run
from calibrate.checks.directories import EVIDENCE
from calibrate.checks.outcome import Outcome
from calibrate.emulator import Injection
from calibrate.fit import coverage, cross_validate, fit_profile
from calibrate.fit.job_prediction import predict_peaks, residuals, run_of
from calibrate.fit.jobs import MeasuredJob, read
from calibrate.measure import measure as measuring
from calibrate.measure.device_choice import MeasuringDevice
from calibrate.records.record import MeasuredOn
from predictor import snapshot
from predictor.common.json_dataclasses import to_plain
from predictor.events import timeline
from predictor.events.events import FACTORS, Factor
from predictor.profile.calibration import Profile

GPU = "h100-80gb"
# The workspace of attention's backward is larger than the loss's tensors, so that peaks move there.
INJECTED = Injection(
    attention_forward_fixed_bytes=3_000_000, attention_forward_bytes_per_element=Fraction(2),
    attention_backward_fixed_bytes=50_000_000, attention_backward_bytes_per_element=Fraction(321, 2),
    convolution_fixed_bytes=20_000_000, convolution_bytes_per_element=Fraction(3),
    context_bytes=480_000_000, cublas_bytes=72_000_000, cudnn_bytes=91_000_000, roundup_power2_divisions=4)
FORWARD, BACKWARD = "aten::_scaled_dot_product_cudnn_attention", "aten::_scaled_dot_product_cudnn_attention_backward"
BYTES_PER_ELEMENT = 2
"""Bytes of an element of a call's result (bf16). Injected workspaces are sized by the number of those elements."""
GROWS = {FORWARD: False, BACKWARD: True, "aten::convolution": False}
"""Operator -> whether its workspace is part of a request that is predicted with another size. The backward of attention
requests its whole workspace at once."""
WHERE = MeasuringDevice(GPU, MeasuredOn.EMULATED, inject=INJECTED)
ENGINE = {"zero_stage": 2, "data_parallel_size": 8, "rank": 7}


def _job(model: str, shape: tuple[int, int, int], role: str, group: str, **keys) -> design.Job:
    batch, sequence, images = shape
    return design.Job({"model": model, "per_device_train_batch_size": batch, "sequence_length": sequence,
                       "images_per_sample": images, **keys}, role, group)


def campaign(jobs: list[design.Job], path: str, console: Console) -> list[Row]:
    """Measures jobs on the changed device, with a progress bar. Rows are kept in the file ``path``."""
    with opened(path) as store, Progress(console=console) as progress:
        task = progress.add_task("Campaign", total=len(jobs), completed=len(store.rows))
        run(jobs, partial(row_of, where=WHERE), store, Limits(os.cpu_count() or 1),
            lambda _: progress.advance(task))
        return store.rows


def validation_jobs() -> Iterator[design.Job]:
    """Jobs of full models, and of deeper ones at other shapes."""
    for keys in design.FULL_MODEL_JOBS[:4]:
        yield design.Job(keys, "validation", "whole models")
    yield _job("llava-1.5-13b-3-4", (6, 1024, 1), "validation", "deeper", **ENGINE, gradient_checkpointing=False)
    yield _job("llava-1.5-7b-3-3", (3, 1333, 1), "validation", "deeper", **ENGINE, gradient_checkpointing=False)


@dataclass(frozen=True, eq=False)
class Validation:
    """A measured job, with its bytes by factor at the measured peak."""

    row: Row
    job: MeasuredJob
    factors: Mapping[Factor, int]


def validate(job: design.Job, inject: Injection | None) -> Validation:
    """Measures a job that was not fitted, with its memory history."""
    workload = design.workload(job.keys, gpu=GPU, profile="none")
    with tempfile.TemporaryDirectory() as directory:
        file = str(Path(directory) / "history.pickle")
        record = measuring.measure(workload, device=MeasuredOn.EMULATED, snapshot=file, inject=inject)
        history = from_snapshot(snapshot.read(file))
    named = replace(record, workload={**record.workload, "model": job.keys["model"]}, snapshot=None)
    row = Row(job.id, job.role, job.group, dict(job.keys), named)
    measured = read([row])[0]
    return Validation(row, measured, _factors(measured, history))


def _factors(job: MeasuredJob, history: JobAllocations) -> dict[Factor, int]:
    """Bytes at the measured peak by factor. Bytes that were not predicted count as temporaries."""
    foreseen = from_run(run_of(job.workload, None))
    attribution = attribute(history, foreseen)
    result = dict.fromkeys(FACTORS, 0)
    for row in np.flatnonzero(history.alive(history.peak_at)).tolist():
        partner = int(attribution.partner[row])
        size, expected = int(history.bytes[row]), int(foreseen.bytes[partner]) if partner >= 0 else 0
        result[Factor.TEMPORARIES] += size - expected  # also a workspace that enlarges a predicted allocation
        if partner >= 0:
            factor = foreseen.factor_of(partner)
            assert factor is not None  # every predicted allocation has one
            result[factor] += expected
    result[Factor.ALLOCATOR] = job.allocated_bytes - job.requested_bytes
    return result


def factor_errors(validation: Validation, profile: Profile | None) -> dict[str, float]:
    """Predicted less measured bytes of each factor at the peak, as a fraction of the measured allocated peak."""
    job = validation.job
    run, prediction = run_of(job.workload, profile), predict_peaks(job, profile)
    peak = timeline.by_factor(run.events, run.row_bytes, [int(run.live.argmax())])
    by_factor = {factor: int(size) for factor, [size] in peak.items()}
    by_factor[Factor.ALLOCATOR] = prediction.allocated_bytes - prediction.requested_bytes
    return {factor.value: (by_factor[factor] - validation.factors[factor]) / job.allocated_bytes for factor in FACTORS}


def recovered(profile: Profile, rows: list[Row]) -> list[dict]:
    """Injected and fitted values side by side; ``error`` is relative to the injected value."""
    lines = [
        _line("runtime bytes", INJECTED.context_bytes + INJECTED.cublas_bytes + INJECTED.cudnn_bytes,
              profile.runtime.fixed_bytes, profile.runtime.standard_error),
        _line("rounding divisions", INJECTED.roundup_power2_divisions, profile.allocator.roundup_power2_divisions)]
    names = {FORWARD: "attention_forward", BACKWARD: "attention_backward", "aten::convolution": "convolution"}
    fitted = {(entry.operator, entry.grows): entry for entry in profile.workspaces}
    for operator, name in names.items():
        workspace = fitted[operator, GROWS[operator]]
        lines += [
            _line(f"{name} fixed bytes", getattr(INJECTED, f"{name}_fixed_bytes"), workspace.fixed_bytes,
                  workspace.fixed_standard_error),
            _line(f"{name} bytes per element", float(getattr(INJECTED, f"{name}_bytes_per_element")),
                  workspace.bytes_per_result_byte * BYTES_PER_ELEMENT,
                  workspace.ratio_standard_error * BYTES_PER_ELEMENT)]
        calls = {(extra.result_bytes, extra.bytes) for row in rows for extra in row.workspaces
                 if (extra.operator, extra.grows) == (operator, workspace.grows)}
        call, true = max(calls, key=lambda pair: abs(_at(workspace, pair[0]) / pair[1] - 1))
        lines.append(_line(f"{name}, bytes of the worst of {len(calls)} calls", true, _at(workspace, call)))
    return lines


def _at(workspace, call: int) -> float:
    return workspace.fixed_bytes + workspace.bytes_per_result_byte * call


def _line(name: str, injected: float, fitted: float, error: float | None = None) -> dict:
    return {"what": name, "injected": injected, "recovered": fitted, "standard_error": error,
            "error": fitted / injected - 1}


def options(parser: ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=Path, default=EVIDENCE / "recovery.json", metavar="FILE",
                        help="default: profiles/evidence/recovery.json")
    parser.add_argument("--measurements", metavar="FILE",
                        help="keep the campaign's rows in this file, so that an interrupted check goes on")


@dataclass(frozen=True, eq=False)
class Measured:
    """Rows of the campaign on the changed device, and the validation jobs on the unchanged and the changed device."""

    rows: list[Row]
    plain: list[Validation]
    changed: list[Validation]


def jobs(args: Namespace) -> list[design.Job]:
    """The jobs of this check: first those that the campaign fits or holds out, then this check's validation jobs.

    The validation jobs of the campaign itself are left out.
    """
    return [*(job for job in design.campaign(communicators=False) if job.role != "validation"), *validation_jobs()]


def measure(jobs: list[design.Job], args: Namespace) -> Measured:
    """Runs the campaign, then the validation jobs on both devices."""
    messages = Console(stderr=True)
    own = [job for job in jobs if job.role != "validation"]
    with tempfile.TemporaryDirectory() as directory:
        rows = campaign(own, args.measurements or str(Path(directory) / "rows.jsonl"), messages)
    for row in rows:
        if row.failed:
            messages.print(f"failed: {row.job}: {row.failed}")
    validation = [job for job in jobs if job.role == "validation"]
    plain = [validate(job, None) for job in track(validation, "Validation, plain", console=messages)]
    changed = [validate(job, INJECTED) for job in track(validation, "Validation, injected", console=messages)]
    return Measured(rows, plain, changed)


def table(measured: Measured, args: Namespace) -> Outcome:
    """Recovered values, errors of validation jobs with and without the profile, and cross-validation by group."""
    rows, today = measured.rows, date.today().isoformat()
    profile = fit_profile(rows, measured_on="emulated",
                          provenance={"date": today, "command": "python scripts/check.py recovery"})
    lines, groups, covered = recovered(profile, rows), cross_validate(rows, profile), coverage(rows, profile)
    cases = {"without injection": (measured.plain, None), "injected, no profile": (measured.changed, None),
             "injected, with the profile": (measured.changed, profile)}
    by_counter = {name: _means([residuals(validation.job, predict_peaks(validation.job, using))
                                for validation in among])
                  for name, (among, using) in cases.items()}
    by_factor = {name: _means([factor_errors(validation, using) for validation in among])
                 for name, (among, using) in cases.items()}
    error = max(abs(line["error"]) for line in lines if "worst" not in line["what"])
    within, worse = error <= 0.01, [(group.group, group.worse) for group in groups if group.worse]
    document = {
        "date": today, "gpu": GPU, "injected": INJECTED.stated(),
        "jobs": {**{role: [row.job for row in rows if row.role == role and not row.failed]
                    for role in ("fit", "holdout")},
                 "validation": [validation.row.job for validation in measured.plain]},
        "recovered": lines, "within_one_percent": within, "validation_error_by_counter": by_counter,
        "validation_error_by_factor": by_factor, "cross_validation": to_plain(groups), "worse": worse,
        "coverage": to_plain(covered),
        "profile": to_plain(profile)}
    tables = (
        _recovered(lines), _validated("Error of validation jobs by counter", by_counter),
        _validated("Error of validation jobs by factor, of the allocated peak", by_factor), _coefficients(profile),
        _cross_validated(groups),
        *(f"left out: {operator}: {why}" for operator, why in profile.provenance["workspaces_left_out"].items()),
        *(f"{counter}: {intervals.rate:.1%} of {intervals.jobs} held-out jobs inside a {intervals.level:.0%} interval"
          for counter, intervals in covered.items()),
        f"recovered within 1 %: {'yes' if within else 'NO'}; groups that get worse: {worse or 'none'}")
    return Outcome({"error of what was injected": error, "groups that get worse": len(worse)},
                   {args.output: json.dumps(document, indent=1) + "\n"}, tables)


def _means(errors: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean and worst absolute error of each key that all dictionaries have."""
    keys = [key for key in errors[0] if all(key in entry for entry in errors)]
    return {key: {"mean": float(np.mean([abs(entry[key]) for entry in errors])),
                  "worst": float(max(abs(entry[key]) for entry in errors))} for key in keys}


def _recovered(lines: list[dict]) -> Table:
    table = Table("what", "injected", "recovered", "standard error", "difference", title="Recovery")
    for line in lines:
        error = "" if line["standard_error"] is None else f"{line['standard_error']:,.4g}"
        table.add_row(line["what"], f"{line['injected']:,.10g}", f"{line['recovered']:,.10g}", error,
                      f"{line['error']:+.4%}")
    return table


def _validated(title: str, cases: dict) -> Table:
    table = Table("", *cases, title=f"{title}: mean (worst)")
    for key in dict.fromkeys(key for case in cases.values() for key in case):
        table.add_row(key, *(f"{case[key]['mean']:.4%} ({case[key]['worst']:.4%})" if key in case else ""
                             for case in cases.values()))
    return table


def _coefficients(profile: Profile) -> Table:
    table = Table("factor", "coefficient", "standard error", "points", "fitted", "applied", "why", title="Coefficients")
    for factor, fitted in profile.coefficients.items():
        error = "" if fitted.standard_error is None else f"{fitted.standard_error:.6f}"
        table.add_row(factor, f"{fitted.value:.6f}", error, str(fitted.samples), str(fitted.fitted),
                      str(fitted.applied), fitted.note)
    return table


def _cross_validated(groups: list) -> Table:
    counters = ("requested", "allocated", "reserved")
    table = Table("group left out", "jobs", *(f"{c} {w}" for c in counters for w in ("before", "after")),
                  title="Cross-validation")
    for group in groups:
        table.add_row(group.group, str(group.jobs), *(f"{errors[c]:.4%}" for c in counters
                                                      for errors in (group.without, group.fitted)))
    return table
