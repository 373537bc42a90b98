"""Renders a calibration profile as tables and sentences for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, nan
from typing import TYPE_CHECKING

from predictor.profile.calibration import Profile
from predictor.report.layout import table, wrapped
from predictor.report.units import size_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LONGEST_NAME = 32
"""Characters of a profile's name that is not folded; a longer one would leave the other columns no room."""
STACK = ("torch", "transformers", "deepspeed", "cuda", "cudnn")
"""Software whose versions an overview lists."""
SORTS = {False: "a buffer of its own", True: "in a predicted buffer"}
"""Location of a workspace, by ``OperatorWorkspace.grows``."""


def overview(profiles: Mapping[str, Profile]) -> Table:
    """A table with a row for each profile."""
    rows = table("profile", "measured on", "product", "software", "date", "jobs")
    rows.columns[0].no_wrap = all(len(name) <= LONGEST_NAME for name in profiles)
    for name, profile in profiles.items():
        jobs = profile.provenance.get("jobs", {})
        rows.add_row(name, profile.measured_on, profile.device.product, software(profile),
                     str(profile.provenance.get("date", "")), str(sum(jobs.values())))
    return rows


def software(profile: Profile) -> str:
    """The versions of the software that the profile was measured with."""
    return ", ".join(f"{name} {profile.software[name]}" for name in STACK if name in profile.software)


def report(console: Console, profile: Profile) -> None:
    """Prints what the profile changes in a prediction."""
    console.print(_coefficients(profile))
    console.print()
    console.print(_workspaces(profile))
    console.print()
    for line in (*_left_out(profile), _runtime(profile), _rounding(profile)):
        for part in wrapped(console, line, indent=0):
            console.print(part)


def intervals(profile: Profile, inside: Mapping[str, float] | None = None) -> Table:
    """A table of the differences between held-out jobs and their predictions.

    Args:
        inside: by counter, the fraction of jobs inside the interval that the other jobs give; under ``all``, the
            fraction of jobs inside all of their intervals.
    """
    heads = ["inside (cross-checked)"] if inside else []
    rows = table("held-out jobs", "measured less predicted", "level", "jobs", *heads)
    for counter, interval in profile.residuals.items():
        checked = [f"{inside[counter]:.1%}" if isfinite(inside.get(counter, nan)) else ""] if inside else []
        rows.add_row(counter, f"{interval.low:+.6%} to {interval.high:+.6%}", f"{interval.level:.0%}",
                     str(interval.samples), *checked)
    if inside and isfinite(inside.get("all", nan)):
        rows.add_row("all of these", "", "", "", f"{inside['all']:.1%}")
    if not profile.residuals:
        rows.add_row("none measured: it has no intervals", "", "", "", *([""] if inside else []))
    return rows


def _coefficients(profile: Profile) -> Table:
    rows = table("factor", "coefficient", "±", "points", "used", "")
    for name, coefficient in profile.coefficients.items():
        error = "" if coefficient.standard_error is None else f"{coefficient.standard_error:.6f}"
        rows.add_row(name, f"{coefficient.value:.6f}", error, str(coefficient.samples),
                     "yes" if coefficient.applied else "no", coefficient.note)
    return rows


def _workspaces(profile: Profile) -> Table:
    rows = table("bytes beyond prediction", "where", "fixed", "±", "for each byte of the result", "±", "calls")
    for workspace in profile.workspaces:
        rows.add_row(workspace.operator, SORTS[workspace.grows], f"{workspace.fixed_bytes:,.0f}",
                     f"{workspace.fixed_standard_error:,.0f}", f"{workspace.bytes_per_result_byte:.6f}",
                     f"{workspace.ratio_standard_error:.6f}", str(workspace.samples))
    if not profile.workspaces:
        kept = "none kept" if profile.provenance.get("workspaces_left_out") else \
            "none: every operator allocates what is predicted"
        rows.add_row(kept, "", "", "", "", "", "")
    return rows


def _left_out(profile: Profile) -> list[str]:
    """Sentences about operators that allocated more than predicted but have no workspace, one for each reason."""
    of_reason: dict[str, list[str]] = {}
    for name, why in profile.provenance.get("workspaces_left_out", {}).items():
        of_reason.setdefault(why, []).append(name)
    return [f"Left out: {', '.join(names)}: {why}." for why, names in of_reason.items()]


def _runtime(profile: Profile) -> str:
    runtime = profile.runtime
    if runtime.measured_on == "assumed":
        return "Outside PyTorch: not measured; predictions assume a range for the GPU and the engine."
    nccl = "" if runtime.has_communicators else "; NCCL was not measured, and predictions assume a range for it"
    if runtime.nccl_bytes or runtime.nccl_bytes_per_rank:
        nccl = f", {size_text(runtime.nccl_bytes)} and {size_text(runtime.nccl_bytes_per_rank)} a rank for NCCL"
    zero = f", {size_text(runtime.zero_bytes)} more under ZeRO-1 and ZeRO-2" if runtime.zero_bytes else ""
    return f"Outside PyTorch ({runtime.measured_on}): {size_text(runtime.fixed_bytes)}{zero}{nccl}."


def _rounding(profile: Profile) -> str:
    divisions = profile.allocator.roundup_power2_divisions
    rounds = f"The allocator rounds up to powers of 2 in {divisions} steps." if divisions else \
        "The allocator rounds as the workload's settings say."
    step = profile.allocator.address_step_bytes
    return rounds + (f" The driver's addresses go down in steps of {size_text(step)}." if step else "")
