"""The space of sensible training settings: a table of axes, with the choices that a training script leaves open.

To add a choice, add a line to :data:`AXES`. :class:`Workload` rejects keys that contradict each other, and the space
leaves such combinations out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from predictor.answer import changes
from predictor.common.errors import InputError
from predictor.common.gpus import NODE
from predictor.common.value_types import Invalid, thaw
from predictor.formula.learned import is_learned_file
from predictor.plan.own_config import on_own_config
from predictor.plan.precision import TRIED, Precision, own, revised, tried
from predictor.plan.setting import ALONE, BATCH, STEPS, Setting
from predictor.workload.contradictions import CHECKPOINTING_KEYS
from predictor.workload.keys import KEYS
from predictor.workload.workload import Workload

DATA, TENSOR = "data_parallel_size", "tensor_parallel_size"


@dataclass(frozen=True)
class Choice:
    """One value of an axis.

    Attributes:
        name: its name in reports; empty for the usual choice.
        keys: the workload's keys that it sets; None leaves a key out.
        differs: how the trained model, or the training loop, differs from that without this choice. Configurations that
            differ rank after all others. Empty if nothing differs.
        gpus: smallest and largest number of GPUs that it is for.
        instead: whether its keys replace those that were read from the user's own configuration.
        cuts: whether it trains with less of each sample. Such configurations rank after all others.
    """

    name: str
    keys: Mapping[str, Any]
    differs: str = ""
    gpus: tuple[int, int] = (1, 1 << 16)
    instead: bool = False
    cuts: bool = False

    def agrees(self, fixed: Mapping[str, Any], gpus: int) -> bool:
        """Whether the choice is for this number of GPUs and agrees with the fixed keys.

        A mapping agrees with any value that the user fixed, because the user's mapping overrides it.
        """
        return self.gpus[0] <= gpus <= self.gpus[1] and all(self.instead or
            fixed[key] == value or (isinstance(value, Mapping) and fixed[key] is not None)
            for key, value in self.keys.items() if key in fixed)


@dataclass(frozen=True)
class Axis:
    """One dimension of the space. If ``asked``, it varies only if the user names it with ``--vary``."""

    name: str
    choices: tuple[Choice, ...]
    asked: bool = False


ONE, SEVERAL = (1, 1), (2, 1 << 16)
NOT_DEEPSPEED = {"zero_stage": None, "deepspeed": None}
OWN_LOOP = "fully_shard in a loop of your own: accelerate wraps and casts otherwise"
OWN_MESH = "DistributedDataParallel over a mesh in a loop of your own: accelerate takes no such"


def _zero(stage: int, gpus: tuple[int, int] = (1, 1 << 16)) -> Choice:
    return Choice(f"ZeRO-{stage}", {"engine": "deepspeed", "zero_stage": stage, "ddp": None, "fsdp": None,
                                    "fsdp1": None}, gpus=gpus)


def _plain(name: str, engine: str, gpus: tuple[int, int], other: Mapping[str, Any],
           dtypes: Sequence[Precision]) -> list[Choice]:
    keys = {"engine": engine, **NOT_DEEPSPEED, **other}
    return [Choice(", ".join(filter(None, (name, precision.name))), keys | precision._asdict(), precision.differs, gpus)
            for precision in dtypes]


def _engines(dtypes: Sequence[Precision]) -> Axis:
    return Axis("engine", (
        *_plain(ALONE, "torch", ONE, {"ddp": None, "fsdp": None, "fsdp1": None}, dtypes),
        *_plain("data parallel", "ddp", SEVERAL, {"fsdp": None, "fsdp1": None}, dtypes),
        _zero(0, SEVERAL), _zero(1), _zero(2), _zero(3),
        Choice("FSDP2", {"engine": "fsdp2", **NOT_DEEPSPEED, "ddp": None, "fsdp1": None, "mixed_precision": "none",
                         "fsdp": {"param_dtype": "bf16"}}, OWN_LOOP, gpus=SEVERAL)))


USUAL_OPTIMIZER, IN_8_BITS = "adamw_torch_fused", ("adamw_bnb_8bit",)


def _optimizers(own: str) -> Axis:
    """The user's own optimizer, which their files keep unless another one is the plan, and AdamW of the other width."""
    other = Choice("32-bit AdamW", {"optim": USUAL_OPTIMIZER}, "optimizer states of 32 bits") if own in IN_8_BITS else \
        Choice("8-bit AdamW", {"optim": IN_8_BITS[0]}, "optimizer states of 8 bits")
    return Axis("optim", (Choice("", {"optim": own}), other))


AXES = (
    _engines(TRIED),
    Axis("offload", (
        Choice("", {"offload": None}),
        Choice("optimizer on the host", {"offload": "optimizer"}),
        Choice("optimizer and parameters on the host", {"offload": "all"}))),
    Axis("checkpointing", (
        Choice("no checkpointing", {"gradient_checkpointing": False}),
        Choice("checkpointing", {"gradient_checkpointing": True}))),
    _optimizers(USUAL_OPTIMIZER),
    Axis("recipe", (
        Choice("", {"recipe": "finetune"}),
        *(Choice(recipe, {"recipe": recipe}, f"recipe {recipe}") for recipe in ("lora", "pretrain", "full"))),
         asked=True),
    Axis("liger", (
        Choice("", {"use_liger_kernel": False}),
        Choice("Liger", {"use_liger_kernel": True})), asked=True),
)
"""All choices that are tried, unless the user fixed their keys."""
INSTEAD = "instead"
"""Name of the axis of :func:`_instead`, whose choices depend on the workload."""
SPLIT = "split"
"""Name of the axis of smaller micro batches, which are accumulated to the one that the user fixed."""
VARYING = {BATCH, STEPS, TENSOR} | {
    key for axis in AXES if not axis.asked for choice in axis.choices for key in choice.keys}
"""Keys that vary by themselves, so that the user need not give them."""
Rules = tuple[Mapping[str, Collection[Any]], ...]
"""Combinations of keys' values."""
ON_THE_HOST = ("optimizer", "all")
SENSELESS: Rules = ({"offload": ON_THE_HOST, "optim": IN_8_BITS}, {TENSOR: range(2, 1 << 16), "optim": IN_8_BITS})
"""Combinations of values that are not tried: 8-bit AdamW has no kernels for the host, and its prediction was not
verified with tensor parallelism."""
ADAPTED: Rules = ({"engine": ("deepspeed",)}, {"optim": IN_8_BITS})
"""Values that are not tried with adapters in place of the model: on one GPU they save nothing then."""
OWN_ADAPTERS: Rules = ({"engine": ("deepspeed",), "offload": (None, "optimizer"), DATA: (None, 1), TENSOR: (None, 1)},)
"""Combinations that are not tried with the user's own adapters: one GPU partitions nothing, and the optimizer states of
adapters are small. The host can still hold the parameters."""


def engines(gpus: int, asked: int, dtypes: Sequence[Precision]) -> Axis:
    """The engine axis for a number of GPUs: that of :data:`AXES`, and tensor parallelism of each degree within a node.

    Args:
        asked: the user's degree of tensor parallelism, which is tried even if its ranks span nodes.
        dtypes: precisions of plain loops.
    """
    axis = _engines(dtypes)
    whole = [replace(choice, keys={**choice.keys, TENSOR: 1, DATA: gpus}) for choice in axis.choices]
    within = [parts for parts in range(2, NODE + 1) if gpus <= NODE or NODE % parts == 0]
    degrees = [parts for parts in sorted({*within, asked} - {1}) if gpus % parts == 0]
    return replace(axis, choices=(*whole, *(
        choice for parts in degrees for choice in _sharing(gpus, parts, dtypes))))


def _sharing(gpus: int, parts: int, dtypes: Sequence[Precision]) -> list[Choice]:
    """Tensor parallelism of degree ``parts``, with data parallelism over the groups of ranks if there are several."""
    name, degrees = f"tensor parallel of {parts}", {TENSOR: parts, DATA: gpus // parts}
    if parts == gpus:
        return _plain(name, "torch", SEVERAL, {"ddp": None, "fsdp": None, "fsdp1": None, **degrees}, dtypes)
    verified = [precision for precision in dtypes if precision.mixed_precision == "none"]  # not under autocast
    return [replace(choice, differs="; ".join(filter(None, (choice.differs, OWN_MESH)))) for choice in _plain(
        f"data parallel of {gpus // parts} × {name}", "ddp", SEVERAL, {"fsdp": None, "fsdp1": None, **degrees},
        verified)]


@dataclass(frozen=True)
class Space:
    """The settings of a search.

    Attributes:
        settings: all settings.
        fixed: keys that the user fixed, by options or in a DeepSpeed config.
        given: the given keys, with the degrees that follow from the number of GPUs.
    """

    settings: tuple[Setting, ...]
    fixed: Mapping[str, Any]
    given: Mapping[str, Any]

    @property
    def kept(self) -> tuple[str, ...]:
        """Keys that would vary if they were not fixed, and how checkpoints are made, if that keeps them on."""
        how = {key for key in CHECKPOINTING_KEYS & self.fixed.keys() if self.fixed[key]} if all(
            setting.keys.get("gradient_checkpointing") for setting in self.settings) else set()
        return tuple(sorted(VARYING & self.fixed.keys() | how))


def space(given: Mapping[str, Any], vary: Collection[str] = (), keep: Collection[str] = (),
          label: Callable[[str], str] = str, gpus: int | None = None,
          present: Workload | None = None, firm: Collection[str] | None = None) -> Space:
    """Every valid combination of choices that agrees with the given keys.

    Args:
        given: keys of a workload.
        gpus: number of all GPUs; None: the number that follows from the keys.
        vary, keep: names of axes that vary although they usually do not, and of axes that do not vary. Keys of the
            latter have the values of the present configuration.
        label: the name of a key in messages.
        present: the user's present configuration, if it is known. Its DeepSpeed config is that of all ZeRO stages.
        firm: given keys that no choice may replace; None: all of them.

    Raises:
        InputError: an axis does not exist, a workload may not have the keys, or the degrees do not match the number of
            GPUs.
    """
    names = [axis.name for axis in AXES] + [INSTEAD, SPLIT]
    for name in (*vary, *keep):
        if name not in names:
            raise InputError(f"vary and keep: no axis {name!r}: the axes are {', '.join(names)}")
    mine = own(present, given)
    given = {**_kept(present, keep), **given}
    fixed = _fixed(given, mine)
    degrees = {} if gpus is None else _degrees(gpus, fixed, label)
    sizes = {key: fixed[key] for key in (BATCH, STEPS) if key in fixed}  # a DeepSpeed config may have them
    given, fixed = {**degrees, **sizes, **given}, fixed | (degrees if fixed.keys() & {DATA, TENSOR} else {})
    gpus = gpus or _degree(fixed, DATA) * _degree(fixed, TENSOR)
    # only the shape of a learned job can vary
    table = () if is_learned_file(given.get("model")) else (
        engines(gpus, _degree(fixed, TENSOR), tried(fixed, mine)),
        *(_optimizers(present.optim) if present and axis.name == "optim" else axis for axis in AXES[1:]),
        _instead(present or _valid(given), {key for axis in AXES if axis.name in vary for choice in axis.choices
                                  for key in choice.keys}.union(given if firm is None else firm)))
    varied = [_agreeing(axis, fixed, gpus) for axis in table
              if axis.name not in keep and (not axis.asked or axis.name in vary)]
    settings: list[Setting] = []
    problem: InputError | None = None
    for choices in product(*varied):
        keys = {**given, **{key: value for choice in choices for key, value in choice.keys.items()
                            if choice.instead or key not in fixed}}
        adapts = any(choice.instead and not choice.cuts for choice in choices)
        rules = SENSELESS + (() if "engine" in fixed else ADAPTED if adapts else
                             OWN_ADAPTERS if fixed.get("recipe") == "lora" else ())
        if any(all(keys.get(key) in values for key, values in rule.items()) for rule in rules):
            continue
        keys = on_own_config(_without_idle_checkpoints(keys, firm), present)
        try:
            Workload.from_mapping(keys, label)
        except InputError as error:
            problem = problem or error
        else:
            settings.append(_setting(choices, keys))
    if not settings:
        raise problem or InputError("the keys that are given leave no sensible configuration: leave out engine, "
                                    "offload, optim, dtype or mixed_precision")
    settings = [setting for setting in (revised(setting, mine, fixed) for setting in settings) if setting]
    return Space(tuple(settings), fixed, given)


def _without_idle_checkpoints(keys: dict[str, Any], firm: Collection[str] | None) -> dict[str, Any]:
    """The keys of a setting, without how checkpoints are made where it makes none, unless the user fixed that.

    Frameworks say how they checkpoint, such as ``use_reentrant``, which must not keep checkpointing on.
    """
    if firm is None or keys.get("gradient_checkpointing") is not False:
        return keys
    return {key: item for key, item in keys.items() if key not in CHECKPOINTING_KEYS or key in firm}


def _valid(given: Mapping[str, Any]) -> Workload | None:
    """The workload of these keys; None if they are too few for one, or contradict each other."""
    with suppress(InputError):
        return Workload.from_mapping(given)
    return None


def _kept(present: Workload | None, keep: Collection[str]) -> dict[str, Any]:
    """The present configuration's values of the axes that do not vary."""
    keys = {key for axis in AXES if axis.name in keep for choice in axis.choices for key in choice.keys}
    return {} if present is None else {key: thaw(getattr(present, key)) for key in keys
                                       if key == "offload" or key not in present.filled_in}


def _instead(present: Workload | None, firm: Collection[str]) -> Axis:
    """What else could train on one GPU: adapters, or the same model with shorter sequences or smaller pictures.

    Args:
        present: the user's present configuration, as far as it is known. Its framework may decide further keys.
        firm: keys that no choice may replace.
    """
    choices = [Choice("", {})]
    if present:
        choices += [Choice(change.text, changes.said(present, change.keys)[0], change.differs, ONE, True,
                           table is changes.SAMPLES)
                    for table in (changes.ADAPTERS, changes.SAMPLES) for family in changes.proposed(present, table)
                    for change in family if change.keys.keys().isdisjoint(firm)]
    return Axis(INSTEAD, tuple(choices))


def _degrees(gpus: int, fixed: Mapping[str, Any], label: Callable[[str], str]) -> dict[str, int]:
    """The degree that follows from the number of GPUs and the fixed degree. If none is fixed, all are replicas."""
    first, other = (DATA, TENSOR) if DATA in fixed else (TENSOR, DATA)
    rest, remainder = divmod(gpus, _degree(fixed, first))
    if remainder or fixed.get(other, rest) != rest:
        raise InputError(f"{gpus} GPUs: not {label(first)} {fixed[first]}" + (
            f" x {label(other)} {fixed[other]}" if other in fixed else "") + ": leave one of them out")
    return {other: rest}


def _degree(fixed: Mapping[str, Any], key: str) -> int:
    """The fixed degree; 1 if it is not fixed or not valid, which the workload will report."""
    value = fixed.get(key)
    return value if isinstance(value, int) and value > 0 else 1


def _agreeing(axis: Axis, fixed: Mapping[str, Any], gpus: int) -> list[Choice]:
    """The choices of one axis of the plan that agree with the number of GPUs and with the keys that the user fixed.

    If none agrees and the user fixed a key of this axis, the result is one choice without keys: the user's value stays.
    """
    left = [choice for choice in axis.choices if choice.agrees(fixed, gpus)]
    known = {key for choice in axis.choices for key in choice.keys}
    if not left and known & fixed.keys():
        return [Choice(axis.name if axis.name == AXES[0].name else "", {})]
    return [replace(choice, differs="") for choice in left] if len(left) == 1 else left


def _setting(choices: Sequence[Choice], keys: Mapping[str, Any]) -> Setting:
    method = [choice.name for choice in choices if {"engine", "offload"} & choice.keys.keys() and choice.name]
    return Setting(" · ".join(method) or "as given",
                   tuple(choice.name for choice in choices if choice.name and choice.name not in method),
                   tuple(choice.differs for choice in choices if choice.differs), keys,
                   any(choice.cuts for choice in choices))


def _fixed(given: Mapping[str, Any], mine: Precision | None) -> dict[str, Any]:
    """The keys that the user fixed, with values as a workload has them.

    If ``dtype`` is fixed without ``mixed_precision``, there is no autocast, unless the user's present loop is known.

    Args:
        mine: precision of the user's present loop.
    """
    if given.get("deepspeed") is not None:
        whole = Workload.from_mapping(given)
        return {name: getattr(whole, name) for name in KEYS if name not in whole.filled_in} | {
            name: getattr(whole, name) for name in ("engine", "zero_stage", "offload")}
    fixed = {name: value for name, value in given.items() if value is not None or name == "offload"}  # "none" is None
    for name in KEYS.keys() & fixed.keys():
        with suppress(Invalid, InputError):  # the workload's own message is better
            fixed[name] = KEYS[name].metadata["kind"].check(fixed[name])
    return {"mixed_precision": "none", **fixed} if "dtype" in fixed and not mine else fixed
