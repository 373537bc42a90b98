"""What each operator holds beyond the prediction, as a line of what its calls' largest results are predicted to take.

What makes a predicted buffer larger and what is a buffer of its own are two sorts, fitted apart: each to all calls of
the operator, 0 in those where this sort was not found. So an operator has both if most of its calls do; where some
calls have one and some the other, it has the one of the majority, as with any other extra that some calls lack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrate.campaign.rows import Workspace
from calibrate.fit import regression
from predictor.profile.profile import OperatorWorkspace

LEAST_BYTES = 512
"""The allocator's smallest step (kMinBlockSize, c10/core/CachingDeviceAllocator.h, torch 2.11): less does not show."""
SIGNIFICANT = 3.0
"""Standard errors that an estimate must be away from 0."""
STEP = 0.01
"""Part of a workspace that counts as a unit of error; at least ``LEAST_BYTES``. Of the fitted workspace, not of the
measured one: calls in which nothing was found would else outweigh all others."""
SPREAD = 1.05
"""Largest over smallest result that separate a part by its size from a fixed one."""
FAR = 1e12
GROWN = ", in a predicted buffer"
"""Behind the name of an operator that is left out: its extras that make predicted buffers larger."""
ALLOCATED_BY = {
    "aten::_scaled_dot_product_cudnn_attention": "run_cudnn_SDP_fprop, ATen/native/cudnn/MHA.cpp",
    "aten::_scaled_dot_product_cudnn_attention_backward": "run_cudnn_SDP_bprop, ATen/native/cudnn/MHA.cpp",
    "aten::convolution": "run_conv_plan, ATen/native/cudnn/Conv_v8.cpp",
    "aten::convolution_backward": "run_conv_plan, ATen/native/cudnn/Conv_v8.cpp",
}
"""Where PyTorch asks a library for the size of a workspace and allocates it, as far as known."""


@dataclass(frozen=True)
class Workspaces:
    """What was kept, and of each other operator why not (with :data:`GROWN` or not)."""

    kept: tuple[OperatorWorkspace, ...]
    left_out: Mapping[str, str]


def fit_workspaces(extras: Iterable[tuple[Sequence[Workspace], Mapping[str, Counter]]]) -> Workspaces:
    """Workspaces from the extra bytes of jobs.

    Args:
        extras: of each job; with all the calls that are predicted of it: operator -> bytes of the result -> how
            many. Those in which nothing was found count as 0.
    """
    extras = list(extras)
    sorts = {(extra.operator, extra.grows) for found, _ in extras for extra in found}
    samples: dict[tuple[str, bool], Counter] = {sort: Counter() for sort in sorts}
    for found, calls in extras:
        of_sort: dict[tuple[str, bool], list[Workspace]] = {}
        for extra in found:
            of_sort.setdefault((extra.operator, extra.grows), []).append(extra)
        for operator, grows in sorts:
            samples[operator, grows] += _samples(of_sort.get((operator, grows), ()), calls.get(operator, Counter()))
    kept, left_out = [], {}
    for operator, grows in sorted(samples):
        result = _fit(operator, samples[operator, grows])
        if isinstance(result, OperatorWorkspace):
            kept.append(replace(result, grows=grows))
        elif result:
            left_out[operator + GROWN * grows] = result
    return Workspaces(tuple(kept), left_out)


def _samples(found: Sequence[Workspace], calls: Counter) -> Counter:
    """(bytes of the result, extra bytes) -> how many calls of an operator in one job, from one sort of its extras.

    Where there are more extra buffers than calls, a call is taken to hold its share of all of them at once.

    Args:
        calls: all that are predicted, by bytes of their results.
    """
    total: Counter = Counter()
    for extra in found:
        total[extra.result_bytes] += extra.count
    result, shared, with_extra = Counter(), Counter(), Counter()
    for extra in found:
        if 0 < calls[extra.result_bytes] < total[extra.result_bytes]:
            shared[extra.result_bytes] += extra.bytes * extra.count
        else:
            result[extra.result_bytes, extra.bytes] += extra.count
    for call, size in shared.items():
        result[call, round(size / calls[call])] += calls[call]
    for (call, _), count in result.items():
        with_extra[call] += count
    for call, count in (calls - with_extra).items():
        without = min(count, calls.total() - with_extra.total())
        if without > 0:
            result[call, 0] += without
    return result


def _fit(operator: str, samples: Mapping[tuple[int, int], int]) -> OperatorWorkspace | str:
    """The workspace of an operator, or why it has none ("" if it is too small to say)."""
    if max(abs(size) for _, size in samples) <= LEAST_BYTES:
        return ""
    call, size = np.array(list(samples), dtype=float).T
    placed = call > 0
    if not placed.any():
        return (f"up to {int(np.abs(size).max()):,} bytes in calls of which nothing is predicted: a line of the "
                "result's bytes cannot place them")
    call, size = call[placed], size[placed]
    shares = _shares(samples)[placed]
    both = call.max() > SPREAD * call.min() and len(np.unique(call)) > 2
    columns = np.stack([np.ones_like(call), call] if both else [np.ones_like(call)], axis=1)
    units = np.full(len(size), max(LEAST_BYTES, STEP * float(np.median(np.abs(size)))))
    for _ in range(2):
        estimate, agree = _line(columns, size, units, shares)
        units = np.maximum(LEAST_BYTES, STEP * np.abs(columns @ estimate.values))
    values, errors = estimate.values, estimate.standard_errors
    source = f"{len(size)} different calls with results of {call.min():,.0f} to {call.max():,.0f} bytes"
    if not both:
        source += ": too alike to separate a part that grows with the result"
    elif not _matters(values[1] * np.ptp(call), errors[1] * np.ptp(call)):
        columns, source = columns[:, :1], source + ": no part that grows with the result"
        estimate, agree = _line(columns, size, units, shares)
        values, errors = estimate.values, estimate.standard_errors
    elif not _matters(values[0], errors[0]):
        source += ": no fixed part"
        estimate, agree = _line(columns[:, 1:], size, units, shares)
        values, errors = np.array([0, *estimate.values]), np.array([0, *estimate.standard_errors])
    values, errors = np.append(values, 0.0), np.append(errors, 0.0)  # a ratio of 0 where there is none
    middle = float(np.median(values[0] + values[1] * call))
    if not _matters(middle, errors[0] + errors[1] * float(np.median(call))):
        return f"{middle:,.0f} bytes a call in the middle, which is not clearly more than {LEAST_BYTES}"
    if not agree.all():
        source += f"; {(~agree).sum()} of them do not lie on the line"
    if operator in ALLOCATED_BY:
        source = f"{ALLOCATED_BY[operator]}; {source}"
    return OperatorWorkspace(operator, float(values[0]), float(errors[0]), float(values[1]), float(errors[1]),
                             len(size), source)


def _line(columns: np.ndarray, size: np.ndarray, units: np.ndarray,
          shares: np.ndarray) -> tuple[regression.Estimate, np.ndarray]:
    """The fit to those calls that lie on the line that most calls lie near, and which these are."""
    agree = regression.majority(columns, size, units, shares)
    far = np.full(columns.shape[1], FAR)
    return regression.fit(columns[agree], size[agree], (units / np.sqrt(shares))[agree], -far, far), agree


def _shares(samples: Mapping[tuple[int, int], int]) -> np.ndarray:
    """Of each sample: how many of the calls of its size it stands for, so that each size of call counts once."""
    total: Counter = Counter()
    for (call, _), count in samples.items():
        total[call] += count
    return np.array([count / total[call] for (call, _), count in samples.items()])


def _matters(size: float, error: float) -> bool:
    return abs(size) > max(LEAST_BYTES, SIGNIFICANT * error)
