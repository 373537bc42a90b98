"""Fits workspaces: the bytes that an operator takes beyond the prediction, linear in the bytes of its largest result.

Extra bytes come in two sorts: predicted buffers that are larger than predicted, and buffers of their own. Each sort is
fitted separately, to all calls of the operator, with 0 for calls without it. So an operator has both sorts if most of
its calls have both. Where some calls have one sort and some the other, the sort of the majority is fitted, as for any
extra that some calls lack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrate.campaign.rows import Workspace
from calibrate.fit import regression
from predictor.profile.calibration import OperatorWorkspace

LEAST_BYTES = 512
"""The allocator's smallest block (kMinBlockSize, c10/core/CachingDeviceAllocator.h, torch 2.11): less is invisible."""
FEW_BYTES = 64 << 10
"""Extra bytes of a call up to these are too few to change what a job needs: a segment of small blocks (kSmallBuffer)
holds 32 times as many."""
SIGNIFICANT = 3.0
"""An estimate must differ from 0 by more than this many standard errors."""
STEP = 0.01
"""Unit of error, as a part of the workspace; at least ``LEAST_BYTES``. The workspace is the fitted one: with the
measured one, calls without extra bytes would outweigh all others."""
SPREAD = 1.05
"""Results must differ by more than this ratio to separate a part that grows with them from a fixed part."""
FAR = 1e12
GROWN = ", in a predicted buffer"
"""Suffix of the name of an operator that is left out: its extra bytes that make predicted buffers larger."""
ALLOCATED_BY = {
    "aten::_scaled_dot_product_cudnn_attention": "run_cudnn_SDP_fprop, ATen/native/cudnn/MHA.cpp",
    "aten::_scaled_dot_product_cudnn_attention_backward": "run_cudnn_SDP_bprop, ATen/native/cudnn/MHA.cpp",
    "aten::convolution": "run_conv_plan, ATen/native/cudnn/Conv_v8.cpp",
    "aten::convolution_backward": "run_conv_plan, ATen/native/cudnn/Conv_v8.cpp",
}
"""Operator -> the function of PyTorch that asks a library for the size of the workspace and allocates it."""


@dataclass(frozen=True)
class Workspaces:
    """The fitted workspaces; and operator (with or without :data:`GROWN`) -> the reason why it has none."""

    kept: tuple[OperatorWorkspace, ...]
    left_out: Mapping[str, str]


def fit_workspaces(extras: Iterable[tuple[Sequence[Workspace], Mapping[str, Counter]]]) -> Workspaces:
    """Fits workspaces to the extra bytes of jobs.

    Args:
        extras: of each job its extra bytes, and all of its predicted calls: operator -> bytes of the result ->
            number of calls. Calls without extra bytes count as 0.
    """
    extras = list(extras)
    sorts = {(extra.operator, extra.grows) for job_extras, _ in extras for extra in job_extras}
    samples: dict[tuple[str, bool], Counter] = {sort: Counter() for sort in sorts}
    for job_extras, calls in extras:
        of_sort: dict[tuple[str, bool], list[Workspace]] = {}
        for extra in job_extras:
            of_sort.setdefault((extra.operator, extra.grows), []).append(extra)
        for operator, grows in sorts:
            samples[operator, grows] += _samples(of_sort.get((operator, grows), ()), calls.get(operator, Counter()))
    kept, left_out = [], {}
    for operator, grows in sorted(samples):
        result = _fit(operator, samples[operator, grows])
        jobs = sum(any((extra.operator, extra.grows) == (operator, grows) for extra in job) for job, _ in extras)
        if isinstance(result, OperatorWorkspace) and jobs == 1 < len(extras):
            result = f"in one of {len(extras)} jobs only: nothing tells what it is at another shape"
        if isinstance(result, OperatorWorkspace):
            kept.append(replace(result, grows=grows))
        elif result:
            left_out[operator + GROWN * grows] = result
    return Workspaces(tuple(kept), left_out)


def _samples(extras: Sequence[Workspace], calls: Counter) -> Counter:
    """(Bytes of the result, extra bytes) -> number of calls of one operator in one job, for one sort of extra bytes.

    If a job has more extra buffers than calls, each call holds its share of all of them at once.

    Args:
        calls: number of all predicted calls, by bytes of their results.
    """
    total: Counter = Counter()
    for extra in extras:
        total[extra.result_bytes] += extra.count
    result: Counter = Counter()
    shared: Counter = Counter()
    with_extra: Counter = Counter()
    for extra in extras:
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
    """The workspace of an operator, or the reason why it has none ("": too small to report)."""
    if max(abs(size) for _, size in samples) <= FEW_BYTES:
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
    values, errors = np.append(values, 0.0), np.append(errors, 0.0)  # the ratio is 0 if it was not fitted
    middle = float(np.median(values[0] + values[1] * call))
    if not _matters(middle, errors[0] + errors[1] * float(np.median(call))):
        return f"{middle:,.0f} bytes a call in the middle, which is not clearly more than {LEAST_BYTES}"
    if not agree.all():
        source += f"; {(~agree).sum()} of them do not lie on the line"
    if operator in ALLOCATED_BY:
        source = f"{ALLOCATED_BY[operator]}; {source}"
    return OperatorWorkspace(operator, float(values[0]), float(errors[0]), float(values[1]), float(errors[1]),
                             len(size), source, least_result_bytes=int(call.min()) if values[0] else 0)


def _line(columns: np.ndarray, size: np.ndarray, units: np.ndarray,
          shares: np.ndarray) -> tuple[regression.Estimate, np.ndarray]:
    """The line on which most calls lie, fitted to those calls; and ``bool[rows]``: which calls these are."""
    agree = regression.majority(columns, size, units, shares)
    far = np.full(columns.shape[1], FAR)
    return regression.fit(columns[agree], size[agree], (units / np.sqrt(shares))[agree], -far, far), agree


def _shares(samples: Mapping[tuple[int, int], int]) -> np.ndarray:
    """The part that each sample has of the calls with its size, so that each size of call has a total weight of 1."""
    total: Counter = Counter()
    for (call, _), count in samples.items():
        total[call] += count
    return np.array([count / total[call] for (call, _), count in samples.items()])


def _matters(size: float, error: float) -> bool:
    """Whether a part of a workspace is large enough and significant."""
    return abs(size) > max(LEAST_BYTES, SIGNIFICANT * error)
