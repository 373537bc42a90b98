"""The keys of ``fsdp``: how FSDP2 wraps and shards a model, under the names of PyTorch and accelerate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from predictor.suggest import show
from predictor.values import Choice, Flag, Invalid, Later, Patterns, Table

if TYPE_CHECKING:
    from predictor.workload import Workload

NO_SPLIT_MODULES = "_no_split_modules"
"""Stands for the classes that the model itself names (accelerate 1.15, utils/fsdp_utils.py,
``fsdp2_prepare_auto_wrap_policy``)."""
_WIDER = {"fp16": "use bf16", "fp32": "leave it out"}


class _Reshard(Flag):
    """``reshard_after_forward`` of ``fully_shard``, which may be a number too."""

    def check(self, value: Any) -> bool:
        if isinstance(value, int) and not isinstance(value, bool):
            raise Invalid(f"{show(value)} is not supported yet: resharding to fewer ranks; use true or false")
        return super().check(value)

    def from_text(self, text: str) -> bool:
        return self.check(int(text)) if text.isdecimal() else super().from_text(text)


DEFAULTS: dict[str, Any] = {"reshard_after_forward": None, "param_dtype": None, "reduce_dtype": None,
                            "sync_each_batch": False, "transformer_layer_cls_to_wrap": (NO_SPLIT_MODULES,)}
KIND = Table({
    "reshard_after_forward": _Reshard(), "param_dtype": Choice(("bf16",), _WIDER),
    "reduce_dtype": Choice(("bf16", "fp32"), {"fp16": "use bf16 or fp32"}), "sync_each_batch": Flag(),
    "transformer_layer_cls_to_wrap": Patterns(),
    "cpu_offload": Later("parameters and states stay on the GPU; leave it out"),
    "offload_policy": Later("parameters and states stay on the GPU; leave it out"),
    "mesh": Later("one mesh of all ranks is predicted, neither HSDP nor tensor parallelism; leave it out"),
    "ignored_params": Later("every parameter is sharded; leave it out"),
    "shard_placement_fn": Later("parameters are sharded on their first dimension; leave it out"),
}, DEFAULTS)


def wrapped(workload: Workload) -> tuple[str, ...]:
    """Names of the classes whose modules are units of their own; none without FSDP2."""
    return tuple(sorted(workload.fsdp["transformer_layer_cls_to_wrap"])) if workload.fsdp else ()


def units(model: Any, classes: tuple[str, ...]) -> list:
    """The modules that ``fully_shard`` is called on, in that order: inner ones first, the model last.

    Raises:
        InputError: a class that no module of the model has.
    """
    from predictor.errors import InputError

    names = set(classes) - {NO_SPLIT_MODULES}
    modules = list(model.modules())
    missing = names - {type(module).__name__ for module in modules}
    if missing:
        raise InputError(f"fsdp: transformer_layer_cls_to_wrap names {show(min(missing))}, a class that no module of "
                         f"the model has: its own are {', '.join(sorted(model._no_split_modules))}")
    if NO_SPLIT_MODULES in classes:
        names |= set(model._no_split_modules)
    return [module for module in reversed(modules) if type(module).__name__ in names or module is model]


def managed(unit: Any, units: list) -> list:
    """Modules whose tensors are a unit's, children first (torch 2.11, _fsdp_init.py, ``_get_managed_modules``)."""
    others, found = {id(other) for other in units}, {}

    def visit(module: Any) -> None:
        for child in module.children():
            if id(child) not in others and id(child) not in found:
                visit(child)
        found[id(module)] = module

    visit(unit)
    return list(found.values())
