"""Rules for the values in a profile's file. A file that breaks one is rejected with a message that names the key."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from predictor.allocator.constants import DRIVER_PAGE
from predictor.common.errors import InputError
from predictor.common.suggestions import nearest, quoted
from predictor.events.events import Factor
from predictor.profile.calibration import Profile
from predictor.profile.job_traits import COUNTERS, TRAITS

MEASURED = ("device", "emulated", "assumed")
"""Where a profile can have been measured, best first."""
QUANTITIES = ("tokens", "sequence_length", "images", "data_parallel_size")
"""Quantities of a workload that are compared with a profile's calibrated range; tokens and images of a micro-batch."""

LARGEST_BYTES = 1 << 40
LARGEST_RATIO = 1 << 20
"""Upper limit of workspace bytes for each byte of a result."""
LARGEST_ROUNDING = 1 << 20
LARGEST_STEP = 1 << 30
ANY = sys.float_info.max


class Rule(NamedTuple):
    """The smallest and largest value that a key can have. NaN is never between two numbers."""

    key: str
    value: Any
    least: float
    most: float


def check(profile: Profile, name: str) -> None:
    """Rejects a profile with impossible values.

    Args:
        name: name of its file, for the message.

    Raises:
        InputError: names the first key that is wrong.
    """
    _check_names(profile, name)
    for rule in _numbers(profile):
        if rule.value is not None and not rule.least <= rule.value <= rule.most:  # isfinite fails on huge integers
            raise InputError(f"{name}: {rule.key} is {quoted(rule.value)}, which makes no sense: calibrate again")
    _check_intervals(profile, name)
    _check_workspaces(profile, name)
    divisions = profile.allocator.roundup_power2_divisions
    if divisions & (divisions - 1):
        raise InputError(f"{name}: allocator.roundup_power2_divisions is {divisions}: it must be 0 or a power of 2")
    if profile.allocator.address_step_bytes % DRIVER_PAGE:
        raise InputError(f"{name}: allocator.address_step_bytes is {profile.allocator.address_step_bytes}: it must be "
                         f"a multiple of {DRIVER_PAGE}")
    _check_provenance(profile.provenance, name)


def _check_names(profile: Profile, name: str) -> None:
    """Checks the keys of its mappings, and the names of where it was measured."""
    for label, mapping, known in (("factor", profile.coefficients, [factor.value for factor in Factor]),
                                  ("counter", profile.residuals, COUNTERS),
                                  ("quantity", profile.calibrated, QUANTITIES),
                                  ("kind of job", profile.covered, TRAITS)):
        for key in mapping:
            if key not in known:
                raise InputError(f"{name}: {quoted(key)} is no {label}: they are {', '.join(known)}"
                                 f"{nearest(key, known)}")
    for key, value in (("measured_on", profile.measured_on), ("runtime.measured_on", profile.runtime.measured_on)):
        if value not in MEASURED:
            raise InputError(f"{name}: {key} is {quoted(value)}: it must be one of {', '.join(MEASURED)}")


def _check_workspaces(profile: Profile, name: str) -> None:
    """Rejects two workspaces of one operator with the same ``grows``."""
    seen: set[tuple[str, bool]] = set()
    for workspace in profile.workspaces:
        if (identity := (workspace.operator, workspace.grows)) in seen:
            raise InputError(f"{name}: workspaces has {quoted(workspace.operator)} twice with grows "
                             f"{str(workspace.grows).lower()}: leave one of them out")
        seen.add(identity)


def _numbers(profile: Profile) -> Iterator[Rule]:
    yield Rule("device.capacity_bytes", profile.device.capacity_bytes, 1, LARGEST_BYTES)
    for factor, coefficient in profile.coefficients.items():
        yield Rule(f"coefficients.{factor}", coefficient.value, 0.1, 10)
        yield Rule(f"coefficients.{factor}.standard_error", coefficient.standard_error, 0, ANY)
        yield Rule(f"coefficients.{factor}.samples", coefficient.samples, 0, ANY)
    for workspace in profile.workspaces:
        key, ratio = f"workspaces: {quoted(workspace.operator)[1:-1]}", workspace.bytes_per_result_byte
        yield Rule(f"{key}: fixed_bytes", workspace.fixed_bytes, -LARGEST_BYTES, LARGEST_BYTES)
        yield Rule(f"{key}: fixed_standard_error", workspace.fixed_standard_error, 0, ANY)
        yield Rule(f"{key}: bytes_per_result_byte", ratio, -LARGEST_RATIO, LARGEST_RATIO)
        yield Rule(f"{key}: ratio_standard_error", workspace.ratio_standard_error, 0, ANY)
        yield Rule(f"{key}: samples", workspace.samples, 0, ANY)
        yield Rule(f"{key}: least_result_bytes", workspace.least_result_bytes, 0, LARGEST_BYTES)
    yield Rule("allocator.roundup_power2_divisions", profile.allocator.roundup_power2_divisions, 0, LARGEST_ROUNDING)
    yield Rule("allocator.samples", profile.allocator.samples, 0, ANY)
    yield Rule("allocator.address_step_bytes", profile.allocator.address_step_bytes, 0, LARGEST_STEP)
    for key in ("fixed_bytes", "nccl_bytes", "nccl_bytes_per_rank", "zero_bytes", "standard_error"):
        yield Rule(f"runtime.{key}", getattr(profile.runtime, key), 0, LARGEST_BYTES)
    for counter, interval in profile.residuals.items():
        yield Rule(f"residuals.{counter}.low", interval.low, -1, 10)
        yield Rule(f"residuals.{counter}.high", interval.high, -1, 10)
        yield Rule(f"residuals.{counter}.level", interval.level, 0, 1)
        yield Rule(f"residuals.{counter}.samples", interval.samples, 1, ANY)
    for quantity, bounds in profile.calibrated.items():
        for bound in bounds:
            yield Rule(f"calibrated.{quantity}", bound, 0, ANY)


def _check_intervals(profile: Profile, name: str) -> None:
    for counter, interval in profile.residuals.items():
        if interval.low > interval.high:
            raise InputError(f"{name}: residuals.{counter} goes from {interval.low} down to {interval.high}: low must "
                             "not be above high")
        if not interval.level > 0:
            raise InputError(f"{name}: residuals.{counter}.level is {interval.level}: it must be above 0")
    for quantity, bounds in profile.calibrated.items():
        if len(bounds) != 2 or not bounds[0] <= bounds[1]:
            raise InputError(f"{name}: calibrated.{quantity} must be a lower and an upper bound")


def _check_provenance(provenance: Mapping[str, Any], name: str) -> None:
    """Checks the entries of ``provenance`` that reports read."""
    for key, value_type, label in (("jobs", int, "whole numbers"), ("workspaces_left_out", str, "texts")):
        entries = provenance.get(key, {})
        if not isinstance(entries, Mapping) or not all(isinstance(value, value_type) for value in entries.values()):
            raise InputError(f"{name}: provenance.{key} must be a mapping to {label}")
