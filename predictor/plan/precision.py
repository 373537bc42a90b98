"""The precision of a plain training loop: the dtype of the weights, and that of autocast over them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from predictor.common.errors import InputError
from predictor.events.model_facts import ModelFacts
from predictor.model.lora import ADAPTERS
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
        """The precision's name in reports; empty for fp32 weights under bf16 autocast, the usual precision."""
        if self == MASTERS:
            return ""
        other = "" if self.dtype == self.mixed_precision else f"{self.mixed_precision} "
        return f"{self.dtype} weights" + (f" under {other}autocast" if self.mixed_precision != "none" else "")

    @property
    def differs(self) -> str:
        """How training differs from that with fp32 weights; empty if it does not."""
        if self.dtype == "fp32":
            return ""
        return f"weights and optimizer states in {self.dtype}, without fp32 master weights"


MASTERS, NARROW, ADAPTED = Precision("fp32", "bf16"), Precision("bf16", "none"), Precision("bf16", "bf16")
TRIED = (MASTERS, NARROW)
"""Precisions that are tried for every job. :data:`ADAPTED` is also tried where adapters train, which peft keeps in
fp32."""


def own(whole: Mapping[str, Any] | None, given: Mapping[str, Any]) -> Precision | None:
    """The user's own precision: that of both given keys, or that of their present loop if it is a plain loop."""
    dtype, mixed_precision = given.get("dtype"), given.get("mixed_precision")
    if dtype is not None and mixed_precision is not None and mixed_precision != "none":
        return Precision(dtype, mixed_precision)
    with suppress(InputError):  # the present configuration may be no valid workload
        workload = Workload.from_mapping(whole or {})
        if workload.engine in PLAIN:
            return Precision(workload.dtype, workload.mixed_precision)
    return None


def tried(fixed: Mapping[str, Any], mine: Precision | None) -> tuple[Precision, ...]:
    """All precisions to try: the user's own or fixed one, the one for adapters, and the usual ones."""
    precisions = [mine] if mine else []
    if fixed.get("dtype") is not None and "mixed_precision" in fixed:
        precisions.append(Precision(fixed["dtype"], fixed["mixed_precision"]))
    adapted = fixed.get("recipe") == "lora" or isinstance(fixed.get("lora"), Mapping)
    if adapted and fixed.get("quantization") is None:  # quantized layers were not verified under autocast
        precisions.append(ADAPTED)
    precisions += TRIED
    # no set: an invalid value of the user's may not be hashable
    return tuple(precision for at, precision in enumerate(precisions) if precision not in precisions[:at])


def revised(setting: Setting, facts: ModelFacts, mine: Precision | None, fixed: Collection[str]) -> Setting | None:
    """The setting, revised after a job has shown which parameters train.

    bf16 weights train the same model if only fp32 adapters train, or if the user has bf16 weights already: then
    ``differs`` does not list them. Returns None for a setting that nobody would choose: frozen fp32 weights under
    autocast, which computes with them in bf16.

    Args:
        mine: the user's own precision.
        fixed: keys that the user fixed.
    """
    workload = setting.workload(1, 1, None)
    precision, alone = Precision(workload.dtype, workload.mixed_precision), _adapters_alone(workload, facts)
    if workload.engine not in PLAIN or not (alone or precision == mine):
        return setting
    if precision == MASTERS != mine and "dtype" not in fixed:
        return None
    return replace(setting, differs=tuple(differs for differs in setting.differs if differs != precision.differs))


def _adapters_alone(workload: Workload, facts: ModelFacts) -> bool:
    """Whether only adapters train, and in fp32. peft creates them in fp32; TRL casts those of quantized models."""
    wide = workload.lora and workload.lora["autocast_adapter_dtype"]
    narrowed = workload.quantization and workload.quantization.get("prepare") == "trl"
    return bool(wide and not narrowed) and all(
        ADAPTERS in parameter.name for parameter in facts.parameters if parameter.trainable and not parameter.buffer)
