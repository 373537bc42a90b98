"""What each part of a job can change: the counters whose intervals widen where a profile does not cover that part.

A part that cannot change a counter leaves its interval as it is. Most of it is the table
:data:`predictor.profile.job_traits.TRAITS`; here are its one exception, and the packages that a job does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from predictor.allocator import AllocatorSettings
from predictor.common.releases import release
from predictor.formula.formula import Formula
from predictor.model.request import Request
from predictor.profile.job_traits import COUNTERS, TRAITS
from predictor.workload.optimizers import OPTIMIZERS
from predictor.workload.workload import Workload


class Reach(NamedTuple):
    """The counters that a part of a job can change, and why."""

    counters: tuple[str, ...]
    reason: str


OTHER_VERSION = Reach(COUNTERS, "another release may allocate other tensors")
QUANTITY = Reach(COUNTERS, "the sizes of tensors were compared near the calibrated shapes only")
OLD_PROFILE = Reach(COUNTERS, "each trait of a job could be outside of what it covered")
EMULATED_ONLY = Reach(("reserved", "device"), "an emulated GPU has neither a real one's libraries nor the order of its "
                                              "driver's addresses, which decide how blocks fit")
FREE_MEMORY = Reach(COUNTERS, "ZeRO-1 and ZeRO-2 flatten parameters on the GPU where its free memory suffices, which "
                              "depends on what the allocator has reserved")
FLATTENING = 5
"""With this many times the bytes of all parameters a GPU has room to flatten them, whatever the allocator's settings.
Rounding at most doubles a block and segments are at most half as large again (two blocks of 6.7 MiB in 20 MiB): that is
three times. The flat copy is a fourth, and memory outside PyTorch is less than the fifth."""


def reaches(request: Request, formula: Formula) -> dict[str, Reach]:
    """Trait -> what it can change in this job."""
    of_traits = {name: Reach(trait.counters, trait.reason) for name, trait in TRAITS.items()}
    if _flattens_by_free_memory(request, formula):
        of_traits["allocator_conf"] = FREE_MEMORY
    return of_traits


def _flattens_by_free_memory(request: Request, formula: Formula) -> bool:
    """Whether allocator settings can decide what DeepSpeed allocates.

    It flattens each optimizer group on the GPU if NVML's free memory is at least the group's size (DeepSpeed 0.19.8,
    stage_1_and_2.py, ``DeepSpeedZeroOptimizer.__init__``; cuda_accelerator.py, ``available_memory``).
    """
    workload = request.workload
    if workload.engine != "deepspeed" or workload.zero_stage not in (1, 2) or workload.capacity is None:
        return False
    from predictor.engine.zero2_releases import SWITCHES

    if release(workload.versions["deepspeed"]) < SWITCHES["flatten_on_gpu"]:
        return False
    segment = AllocatorSettings.parse(workload.allocator_conf or "").large_segment_size_bytes
    return FLATTENING * sum(tensor.bytes for tensor in formula.facts.parameters) + segment > workload.capacity


def _always(_: Workload) -> bool:
    return True


PACKAGES: Mapping[str, Callable[[Workload], bool]] = {
    "torch": _always,
    "transformers": _always,
    "deepspeed": lambda workload: workload.engine == "deepspeed",
    "peft": lambda workload: workload.lora is not None or workload.quantization is not None,
    "bitsandbytes": lambda workload: (workload.quantization is not None
                                      or OPTIMIZERS[workload.optim].implementation.startswith("bitsandbytes.")),
}
"""Package in ``versions`` -> whether a job runs code of it. Another release of a package that it does not
run changes nothing."""


def versions_of(workload: Workload) -> dict[str, str]:
    """The releases of ``versions`` that the workload's job runs."""
    return {name: version for name, version in workload.versions.items() if PACKAGES[name](workload)}
