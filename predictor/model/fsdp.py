"""The units of a model that FSDP shards: the modules that FSDP1 wraps, or that ``fully_shard`` is called on."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

from predictor.common.errors import InputError, NotPredicted
from predictor.common.suggestions import quoted
from predictor.workload import fsdp1_keys
from predictor.workload.fsdp_keys import EMBEDDINGS, NO_SPLIT_MODULES
from predictor.workload.workload import Workload


@dataclass(frozen=True)
class FlatUnits:
    """How FSDP1 flattens the parameters of each unit.

    Attributes:
        param_dtype: dtype in which units compute; None for the parameters' own.
        buffer_dtype: dtype of buffers; None for their own.
        degree: number of ranks that share a flat parameter.
        original: ``use_orig_params``.
    """

    param_dtype: str | None
    buffer_dtype: str | None
    degree: int
    original: bool


def flat_units(workload: Workload) -> FlatUnits | None:
    """How the units of a workload are flattened; None without FSDP1."""
    keys = workload.fsdp1
    if keys is None:
        return None
    dtypes = fsdp1_keys.precision(keys, workload.mixed_precision)
    return FlatUnits(dtypes["param"], dtypes["buffer"],
                     fsdp1_keys.sharding_degree(keys, workload.data_parallel_size), keys["use_orig_params"])


def unit_names(workload: Workload) -> tuple[str, ...]:
    """Names of the units of a workload, for :func:`units`; empty without FSDP."""
    keys = workload.fsdp or workload.fsdp1
    if not keys:
        return ()
    classes = sorted(keys["transformer_layer_cls_to_wrap"])
    return (*classes, *(EMBEDDINGS if keys.get("wrap") == "accelerate" else ()))


def units(model: Any, names: tuple[str, ...]) -> list:
    """The modules that ``fully_shard`` is called on, in order: inner modules first, the model last.

    Raises:
        InputError: no module of the model has a named class, a unit is inside another, or embeddings that would be
            units are tied.
    """
    classes = set(names) - {NO_SPLIT_MODULES, *EMBEDDINGS}
    missing = classes - {type(module).__name__ for module in model.modules()}
    if missing:
        raise InputError(f"fsdp: transformer_layer_cls_to_wrap names {quoted(min(missing))}, a class that no module of "
                         f"the model has: its own are {', '.join(sorted(model._no_split_modules))}")
    if NO_SPLIT_MODULES in names:
        classes |= set(model._no_split_modules)
    inner_units = [module for module in managed_modules(model)
                   if type(module).__name__ in classes and module is not model]
    embeddings = [getattr(model, name)() for name in EMBEDDINGS if name in names]
    if embeddings and embeddings[0].weight is embeddings[1].weight:
        raise NotPredicted("fsdp: wrap accelerate is not modelled yet where input and output embeddings are tied: "
                           "use wrap layers")
    inner_units += embeddings
    for unit in inner_units:
        inside = next((other for other in unit.modules() if other is not unit and other in inner_units), None)
        if inside is not None:
            raise NotPredicted(f"fsdp: a {type(inside).__name__} is inside a {type(unit).__name__}: wrapping both is "
                               "not modelled yet; name one of them in transformer_layer_cls_to_wrap")
    return [*inner_units, model]


def managed_modules(unit: Any, units: Container = ()) -> list:
    """Modules of a unit that do not belong to other units, children first (PyTorch 2.11, _fsdp_init.py,
    ``_get_managed_modules``)."""
    seen = set()

    def visit(module: Any) -> Iterator[Any]:
        seen.add(module)
        for child in module.children():
            if child not in units and child not in seen:
                yield from visit(child)
        yield module

    return list(visit(unit))
