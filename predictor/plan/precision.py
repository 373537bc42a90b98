"""The precision of a plain training loop: the dtype of the weights, and that of autocast over them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from predictor.plan.setting import Setting
from predictor.workload.workload import Workload

PLAIN = ("torch", "ddp")
"""Engines that leave the dtypes to the user."""


class Precision(NamedTuple):
    """The keys ``dtype`` and ``mixed_precision`` of a workload."""

    dtype: str
    mixed_precision: str

    @property
    def name(self) -> str:
        """The precision's name in reports. It is always said, because ``predict`` has another one where none is."""
        other = "" if self.dtype == self.mixed_precision else f"{self.mixed_precision} "
        return f"{self.dtype} weights" + (f" under {other}autocast" if self.mixed_precision != "none" else "")

    @property
    def differs(self) -> str:
        """How training differs from that with fp32 weights; empty if it does not."""
        if self.dtype == "fp32":
            return ""
        return f"weights in {self.dtype}, without fp32 master weights"


MASTERS, NARROW, ADAPTED = Precision("fp32", "bf16"), Precision("bf16", "none"), Precision("bf16", "bf16")
TRIED = (MASTERS, NARROW)
"""Precisions that are tried for every job. :data:`ADAPTED` is also tried where adapters train."""


def own(present: Workload | None, given: Mapping[str, Any]) -> Precision | None:
    """The user's own precision: that of both given keys, or that of their present loop if it is a plain loop."""
    dtype, mixed_precision = given.get("dtype"), given.get("mixed_precision")
    if dtype is not None and mixed_precision is not None and mixed_precision != "none":
        return Precision(dtype, mixed_precision)
    return Precision(present.dtype, present.mixed_precision) if present and present.engine in PLAIN else None


def tried(fixed: Mapping[str, Any], mine: Precision | None) -> tuple[Precision, ...]:
    """All precisions to try: the user's own or fixed one, the one for adapters, and the usual ones."""
    precisions = [mine] if mine else []
    if fixed.get("dtype") is not None and "mixed_precision" in fixed:
        precisions.append(Precision(fixed["dtype"], fixed["mixed_precision"]))
    adapted = fixed.get("recipe") == "lora" or isinstance(fixed.get("lora"), Mapping)
    if adapted and fixed.get("quantization") is None:  # quantized layers were not verified under autocast
        precisions += [NARROW, ADAPTED]  # of equal costs the first is proposed: that of predict
    precisions += TRIED
    # no set: an invalid value of the user's may not be hashable
    return tuple(precision for at, precision in enumerate(precisions) if precision not in precisions[:at])


def revised(setting: Setting, mine: Precision | None, fixed: Collection[str]) -> Setting | None:
    """The setting, where adapters train or the user has that precision already.

    Adapters train over weights of the dtype that ``predict`` has by default: so ``differs`` does not list bf16 weights
    there, nor where the user has them. Returns None for a setting that nobody would choose: frozen fp32 weights under
    autocast, which computes with them in bf16.

    Args:
        mine: the user's own precision.
        fixed: keys that the user fixed.
    """
    workload = setting.at_any_shape
    precision, adapted = Precision(workload.dtype, workload.mixed_precision), workload.lora is not None
    if workload.engine not in PLAIN or not (adapted or precision == mine):
        return setting
    if precision == MASTERS != mine and "dtype" not in fixed:
        return None
    return replace(setting, differs=tuple(differs for differs in setting.differs if differs != precision.differs))
