"""The keys of ``fsdp``: how FSDP2 wraps and shards a model, under the names of PyTorch and accelerate."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from predictor.errors import InputError
from predictor.lora import Names
from predictor.suggest import show
from predictor.values import Choice, Flag, Invalid, Later, Table

if TYPE_CHECKING:
    from predictor.workload import Workload

NO_SPLIT_MODULES = "_no_split_modules"
"""Stands for the classes that the model itself names and has (``TRANSFORMER_BASED_WRAP``; accelerate 1.15 stops at a
class that the model names and does not have, as LLaVA does: there give the classes)."""
EMBEDDINGS = ("get_input_embeddings", "get_output_embeddings")
"""Stand for the modules that accelerate wraps besides (1.15, utils/fsdp_utils.py, ``fsdp2_prepare_model``)."""
HEAD = "lm_head"


class _Reshard(Flag):
    """``reshard_after_forward`` of ``fully_shard``, which may be a number too."""

    def check(self, value: Any) -> bool:
        if isinstance(value, int) and not isinstance(value, bool):
            raise Invalid(f"{show(value)} is not supported yet: resharding to fewer ranks; use true or false")
        return super().check(value)

    def from_text(self, text: str) -> bool:
        return self.check(int(text)) if text.isdecimal() and len(text) < 20 else super().from_text(text)


_ON_GPU = Later("parameters and states stay on the GPU; leave it out")
DEFAULTS: dict[str, Any] = {"reshard_after_forward": None, "param_dtype": None, "reduce_dtype": None,
                            "sync_each_batch": False, "wrap": "layers",
                            "transformer_layer_cls_to_wrap": (NO_SPLIT_MODULES,)}
KIND = Table({
    "reshard_after_forward": _Reshard(),
    "param_dtype": Choice(("bf16",), {"fp16": "use bf16", "fp32": "leave it out"}),
    "reduce_dtype": Choice(("bf16", "fp32"), {"fp16": "use bf16 or fp32"}), "sync_each_batch": Flag(),
    "wrap": Choice(("layers", "accelerate")), "transformer_layer_cls_to_wrap": Names(pattern=False),
    "cpu_offload": _ON_GPU, "offload_policy": _ON_GPU,
    "mesh": Later("one mesh of all ranks is predicted, neither HSDP nor tensor parallelism; leave it out"),
    "ignored_params": Later("every parameter is sharded; leave it out"),
    "shard_placement_fn": Later("parameters are sharded on their first dimension; leave it out"),
}, DEFAULTS)


def wrapped(workload: Workload) -> tuple[str, ...]:
    """What is wrapped, by names that :func:`units` takes; nothing without FSDP2."""
    if not workload.fsdp:
        return ()
    classes = sorted(workload.fsdp["transformer_layer_cls_to_wrap"])
    return (*classes, *(EMBEDDINGS if workload.fsdp["wrap"] == "accelerate" else ()))


def reshards(keys: Mapping[str, Any], path: str) -> bool:
    """Whether the unit at a path (the model's is empty) lets its parameters go after forward."""
    if keys["wrap"] == "accelerate" and (not path or path.startswith(HEAD)):
        return False
    return bool(path) if keys["reshard_after_forward"] is None else keys["reshard_after_forward"]


def units(model: Any, names: tuple[str, ...]) -> list:
    """The modules that ``fully_shard`` is called on, in that order: inner ones first, the model last.

    Raises:
        InputError: a class that no module of the model has, a unit inside another, or tied embeddings.
    """
    classes = set(names) - {NO_SPLIT_MODULES, *EMBEDDINGS}
    missing = classes - {type(module).__name__ for module in model.modules()}
    if missing:
        raise InputError(f"fsdp: transformer_layer_cls_to_wrap names {show(min(missing))}, a class that no module of "
                         f"the model has: its own are {', '.join(sorted(model._no_split_modules))}")
    if NO_SPLIT_MODULES in names:
        classes |= set(model._no_split_modules)
    found = [module for module in managed(model) if type(module).__name__ in classes and module is not model]
    embeddings = [getattr(model, name)() for name in EMBEDDINGS if name in names]
    if embeddings and embeddings[0].weight is embeddings[1].weight:
        raise InputError("fsdp: wrap accelerate is not modelled yet where input and output embeddings are tied: "
                         "use wrap layers")
    found += embeddings
    for unit in found:
        inside = next((other for other in unit.modules() if other is not unit and other in found), None)
        if inside is not None:
            raise InputError(f"fsdp: a {type(inside).__name__} lies inside a {type(unit).__name__}: wrapping both is "
                             "not modelled yet; name one of them in transformer_layer_cls_to_wrap")
    return [*found, model]


def managed(unit: Any, units: Container = ()) -> list:
    """Modules of a unit that are not other units', children first (_fsdp_init.py, ``_get_managed_modules``)."""
    seen = set()

    def visit(module: Any) -> Iterator[Any]:
        seen.add(module)
        for child in module.children():
            if child not in units and child not in seen:
                yield from visit(child)
        yield module

    return list(visit(unit))
