"""A calibration of one device: the content of a profile's file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Coefficient:
    """The multiplier of a factor's predicted bytes.

    Attributes:
        fitted: False where the value is the theoretical 1, because the data cannot separate this factor from another.
        applied: whether predictions use it. A value within half a percent of 1 is not applied.
        note: why it was or was not fitted and applied.
    """

    value: float
    standard_error: float | None
    samples: int
    fitted: bool
    applied: bool
    note: str


@dataclass(frozen=True)
class OperatorWorkspace:
    """Bytes that each call of an operator holds while it runs, in addition to the predicted ones.

    They are ``fixed_bytes + bytes_per_result_byte * result``, where ``result`` is the predicted size in bytes of the
    call's largest result (:class:`predictor.events.calls.OperatorCall`). An operator may have two workspaces, one with
    ``grows`` and one without.

    Attributes:
        grows: whether the bytes enlarge (below 0: shrink) a predicted buffer of the call, rather than forming a buffer
            of their own. The allocator rounds and splits, so one buffer differs from two of half the size.
        least_result_bytes: the smallest result that was measured; 0 in older files.
    """

    operator: str
    fixed_bytes: float
    fixed_standard_error: float
    bytes_per_result_byte: float
    ratio_standard_error: float
    samples: int
    source: str
    grows: bool = False
    least_result_bytes: int = 0

    def bytes(self, result_bytes: int) -> int:
        """Workspace of a call whose largest result has ``result_bytes``, in whole bytes.

        None of a result below half of the smallest measured one, because the fixed part is that of large operands. The
        last bits of a least-squares fit differ from one machine to another: they must not add a byte.
        """
        if 2 * result_bytes < self.least_result_bytes:
            return 0
        return math.ceil(round(self.fixed_bytes + self.bytes_per_result_byte * result_bytes, 3))


@dataclass(frozen=True)
class AllocatorFit:
    """What the device's allocator does in addition to the workload's own settings.

    Attributes:
        roundup_power2_divisions: the rounding; 0 for none.
        samples: number of jobs that the rounding was fitted to.
        address_step_bytes: how the driver gives addresses to segments (:class:`predictor.allocator.AllocatorSettings`).
            Older files do not have it.
    """

    roundup_power2_divisions: int
    samples: int
    address_step_bytes: int = 0


FURTHER_STAGES = (1, 2)
"""Stages of DeepSpeed's ZeRO under which a job takes more memory outside PyTorch's allocator than under other engines:
on an H200 and an H100 72 MiB in each of 19 jobs, stage 3 nothing. 70 MiB of them are PyTorch's pool of streams, which
comes with DeepSpeed's first stream (profiles/pages/device_h100-80gb.md)."""


@dataclass(frozen=True)
class Runtime:
    """Device memory outside PyTorch's allocator: CUDA context, cuBLAS, cuDNN, and NCCL by number of ranks.

    Attributes:
        standard_error: standard error of one prediction, in bytes; None where the values are assumed.
        measured_on: ``device``, ``emulated`` or ``assumed``.
        source: where an assumed value comes from.
        has_communicators: whether NCCL's communicators were measured. Otherwise they are assumed beside the rest.
        zero_bytes: further bytes of a job under a stage of :data:`FURTHER_STAGES`.
    """

    fixed_bytes: int
    nccl_bytes: int
    nccl_bytes_per_rank: int
    standard_error: float | None
    measured_on: str
    source: str
    has_communicators: bool = True
    zero_bytes: int = 0

    @property
    def communicators_measured_on(self) -> str:
        """Where the memory of NCCL's communicators was measured, as ``measured_on``."""
        return self.measured_on if self.has_communicators else "assumed"

    def bytes(self, ranks: int, zero_stage: int | None = None) -> int:
        """Bytes with this number of ranks. A single rank creates no communicator."""
        communicators = self.nccl_bytes + self.nccl_bytes_per_rank * ranks if ranks > 1 else 0
        return self.fixed_bytes + self.zero_bytes * (zero_stage in FURTHER_STAGES) + communicators


@dataclass(frozen=True)
class Interval:
    """Bounds of (measured - predicted) / predicted that hold for the fraction ``level`` of held-out jobs."""

    low: float
    high: float
    level: float
    samples: int


@dataclass(frozen=True)
class Device:
    """The GPU that was measured."""

    gpu: str
    product: str
    capacity_bytes: int
    driver: str | None


@dataclass(frozen=True)
class Profile:
    """One calibration. Factors without a coefficient have the coefficient 1.

    Attributes:
        residuals: interval of each counter: requested, allocated, reserved, device.
        calibrated: range of each quantity of ``predictor.profile.profile_rules.QUANTITIES`` in the fitted jobs.
        provenance: date, command, commit, and the measurements that it was fitted on.
        covered: the values of each trait (``predictor.profile.job_traits.TRAITS``) for which the intervals count: most
            held-out jobs with the value lie inside. Older files do not have it: then it is empty.
    """

    schema_version: int
    peakcast_version: str
    device: Device
    software: Mapping[str, str]
    measured_on: str
    coefficients: Mapping[str, Coefficient]
    workspaces: tuple[OperatorWorkspace, ...]
    allocator: AllocatorFit
    runtime: Runtime
    residuals: Mapping[str, Interval]
    calibrated: Mapping[str, tuple[float, ...]]
    provenance: Mapping[str, Any]
    covered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
