"""The dtypes of a plain loop, where no engine decides them: of the weights, and of autocast over them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from predictor.common.errors import InputError
from predictor.events.model_facts import ModelFacts
from predictor.model.lora import ADAPTERS
from predictor.workload.workload import Workload

if TYPE_CHECKING:
    from predictor.plan.space import Setting

PLAIN = ("torch", "ddp")
"""Engines that leave dtypes to the user."""


class Precision(NamedTuple):
    """Keys of a workload."""

    dtype: str
    mixed_precision: str

    @property
    def name(self) -> str:
        """For people; empty of fp32 weights under bf16 autocast."""
        if self == MASTERS:
            return ""
        other = "" if self.dtype == self.mixed_precision else f"{self.mixed_precision} "
        return f"{self.dtype} weights" + (f" under {other}autocast" if self.mixed_precision != "none" else "")

    @property
    def differs(self) -> str:
        """What is learned otherwise than with fp32 weights."""
        if self.dtype == "fp32":
            return ""
        return f"weights and optimizer states in {self.dtype}, without fp32 master weights"


MASTERS, NARROW, ADAPTED = Precision("fp32", "bf16"), Precision("bf16", "none"), Precision("bf16", "bf16")
TRIED = (MASTERS, NARROW)
"""What is tried of any job; :data:`ADAPTED` besides where adapters train, which peft makes fp32."""


def own(whole: Mapping[str, Any] | None, given: Mapping[str, Any]) -> Precision | None:
    """What the user has now, if their loop is a plain one, or asks for in both keys."""
    asked = Precision(*(given.get(key) for key in Precision._fields))
    if None not in asked and asked.mixed_precision != "none":
        return asked
    with suppress(InputError):  # what they have now may be none
        workload = Workload.from_mapping(whole or {})
        if workload.engine in PLAIN:
            return Precision(workload.dtype, workload.mixed_precision)
    return None


def tried(fixed: Mapping[str, Any], mine: Precision | None) -> tuple[Precision, ...]:
    """Every one to try: what the user has or fixed, what goes with adapters, and the usual ones."""
    found = [mine] if mine else []
    if fixed.get("dtype") is not None and "mixed_precision" in fixed:
        found.append(Precision(fixed["dtype"], fixed["mixed_precision"]))
    adapted = fixed.get("recipe") == "lora" or isinstance(fixed.get("lora"), Mapping)
    if adapted and fixed.get("quantization") is None:  # layers of few bits were not compared under autocast
        found.append(ADAPTED)
    found += TRIED
    return tuple(one for at, one in enumerate(found) if one not in found[:at])  # a mistake of theirs may have no hash


def revised(setting: Setting, facts: ModelFacts, mine: Precision | None, fixed: Collection[str]) -> Setting | None:
    """A setting as it is once it is known what trains: bf16 weights learn nothing else where that is fp32 adapters
    alone, nor where the user has such weights already.

    None for one that nobody would take: frozen weights in fp32 under autocast, which computes with them in bf16.

    Args:
        mine: what the user has now.
        fixed: keys that they fixed.
    """
    workload = setting.workload(1, 1, None)
    found, alone = Precision(workload.dtype, workload.mixed_precision), _adapters_alone(workload, facts)
    if workload.engine not in PLAIN or not (alone or found == mine):
        return setting
    if found == MASTERS != mine and "dtype" not in fixed:
        return None
    return replace(setting, differs=tuple(one for one in setting.differs if one != found.differs))


def _adapters_alone(workload: Workload, facts: ModelFacts) -> bool:
    """Whether nothing trains but adapters, and these in fp32: peft makes them so, TRL narrows them over few bits."""
    wide = workload.lora and workload.lora["autocast_adapter_dtype"]
    narrowed = workload.quantization and workload.quantization.get("prepare") == "trl"
    return bool(wide and not narrowed) and all(
        ADAPTERS in one.name for one in facts.parameters if one.trainable and not one.buffer)
