"""Which configurations are sensible: a table of axes, each a choice that training scripts leave to the user.

A further choice is a line in :data:`AXES`. What contradicts what, :class:`Workload` knows: such combinations are none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from predictor.common.errors import InputError
from predictor.common.value_types import Invalid
from predictor.formula.learned import is_named
from predictor.plan.cost import NODE
from predictor.plan.precision import TRIED, Precision, own, tried
from predictor.workload.keys import KEYS
from predictor.workload.workload import Workload

BATCH, STEPS, LENGTH = "per_device_train_batch_size", "gradient_accumulation_steps", "sequence_length"
DATA, TENSOR = "data_parallel_size", "tensor_parallel_size"
KINDS = ("data parallel", "fully sharded", "tensor parallel", "combined")
"""How several GPUs can share the work: samples; weights too (ZeRO-3, FSDP2); layers; samples and layers."""
ALONE = "one GPU"
"""The kind of a plain loop on one GPU, which shares nothing."""


@dataclass(frozen=True)
class Choice:
    """One value of an axis.

    Attributes:
        name: for people; empty where it is nothing to speak of.
        keys: of the workload, None for one that is not given.
        differs: how what is learned, or the loop that it takes, is another than without it; such configurations come
            after all others.
        gpus: least and most that it is for.
    """

    name: str
    keys: Mapping[str, Any]
    differs: str = ""
    gpus: tuple[int, int] = (1, 1 << 16)

    def agrees(self, fixed: Mapping[str, Any], gpus: int) -> bool:
        """Whether it is for so many GPUs and agrees with what the user fixed; a table of theirs goes before ours."""
        return self.gpus[0] <= gpus <= self.gpus[1] and all(
            fixed[key] == value or (isinstance(value, Mapping) and fixed[key] is not None)
            for key, value in self.keys.items() if key in fixed)


@dataclass(frozen=True)
class Axis:
    """One knob of the space; ``asked``: it stays as it is unless the user asks to vary it."""

    name: str
    choices: tuple[Choice, ...]
    asked: bool = False


ONE, SEVERAL = (1, 1), (2, 1 << 16)
NOT_DEEPSPEED = {"zero_stage": None, "deepspeed": None}
OWN_LOOP = "fully_shard in a loop of your own: accelerate wraps and casts otherwise"
OWN_MESH = "DistributedDataParallel over a mesh in a loop of your own: accelerate takes no such"


def _zero(stage: int, gpus: tuple[int, int] = (1, 1 << 16)) -> Choice:
    return Choice(f"ZeRO-{stage}", {"engine": "deepspeed", "zero_stage": stage, "ddp": None, "fsdp": None}, gpus=gpus)


def _plain(name: str, engine: str, gpus: tuple[int, int], other: Mapping[str, Any],
           dtypes: Sequence[Precision]) -> list[Choice]:
    keys = {"engine": engine, **NOT_DEEPSPEED, **other}
    return [Choice(", ".join(filter(None, (name, one.name))), keys | one._asdict(), one.differs, gpus)
            for one in dtypes]


def _engines(dtypes: Sequence[Precision]) -> Axis:
    return Axis("engine", (
        *_plain(ALONE, "torch", ONE, {"ddp": None, "fsdp": None}, dtypes),
        *_plain("data parallel", "ddp", SEVERAL, {"fsdp": None}, dtypes),
        _zero(0, SEVERAL), _zero(1), _zero(2), _zero(3),
        Choice("FSDP2", {"engine": "fsdp2", **NOT_DEEPSPEED, "ddp": None, "mixed_precision": "none",
                         "fsdp": {"param_dtype": "bf16"}}, OWN_LOOP, gpus=SEVERAL)))


AXES = (
    _engines(TRIED),
    Axis("offload", (
        Choice("", {"offload": None}),
        Choice("optimizer on the host", {"offload": "optimizer"}),
        Choice("optimizer and parameters on the host", {"offload": "all"}))),
    Axis("checkpointing", (
        Choice("no checkpointing", {"gradient_checkpointing": False}),
        Choice("checkpointing", {"gradient_checkpointing": True}))),
    Axis("optim", (
        Choice("", {"optim": "adamw_torch_fused"}),
        Choice("8-bit AdamW", {"optim": "adamw_bnb_8bit"}, "optimizer states of 8 bits"))),
    Axis("recipe", (
        Choice("", {"recipe": "finetune"}),
        *(Choice(recipe, {"recipe": recipe}, f"recipe {recipe}") for recipe in ("lora", "pretrain", "full"))),
         asked=True),
    Axis("liger", (
        Choice("", {"use_liger_kernel": False}),
        Choice("Liger", {"use_liger_kernel": True})), asked=True),
)
"""Everything that is tried, where the user did not fix it."""
VARYING = {BATCH, STEPS, TENSOR} | {
    key for axis in AXES if not axis.asked for choice in axis.choices for key in choice.keys}
"""Keys that no one needs to give."""
ON_THE_HOST, IN_8_BITS = ("optimizer", "all"), ("adamw_bnb_8bit",)
SENSELESS = ({"offload": ON_THE_HOST, "optim": IN_8_BITS}, {TENSOR: range(2, 1 << 16), "optim": IN_8_BITS})
"""Values of keys that go together and that nobody would take: the 8-bit AdamW has no kernels for the host, and was not
compared with tensor parallelism."""


def engines(gpus: int, asked: int, dtypes: Sequence[Precision]) -> Axis:
    """The first axis for so many GPUs: that of :data:`AXES`, and tensor parallelism of each degree within a node.

    Args:
        asked: a degree that is tried wherever its ranks are.
        dtypes: of plain loops.
    """
    made = _engines(dtypes)
    whole = [replace(one, keys={**one.keys, TENSOR: 1, DATA: gpus}) for one in made.choices]
    within = [parts for parts in range(2, NODE + 1) if gpus <= NODE or NODE % parts == 0]
    degrees = [parts for parts in sorted({*within, asked} - {1}) if gpus % parts == 0]
    return replace(made, choices=(*whole, *(
        choice for parts in degrees for choice in _sharing(gpus, parts, dtypes))))


def _sharing(gpus: int, parts: int, dtypes: Sequence[Precision]) -> list[Choice]:
    """Each layer shared by so many ranks; samples by the groups of them, if there are several."""
    name, degrees = f"tensor parallel of {parts}", {TENSOR: parts, DATA: gpus // parts}
    if parts == gpus:
        return _plain(name, "torch", SEVERAL, {"ddp": None, "fsdp": None, **degrees}, dtypes)
    alone = [one for one in dtypes if one.mixed_precision == "none"]  # under autocast it was not compared
    return [replace(one, differs="; ".join(filter(None, (one.differs, OWN_MESH)))) for one in _plain(
        f"data parallel of {gpus // parts} × {name}", "ddp", SEVERAL, {"fsdp": None, **degrees}, alone)]


@dataclass(frozen=True)
class Setting:
    """A configuration but for its shape.

    Attributes:
        method: how the GPUs share the work: the engine's name, and what lies on the host.
        rest: the other choices' names.
        differs: how what is learned differs.
        keys: of the workload.
    """

    method: str
    rest: tuple[str, ...]
    differs: tuple[str, ...]
    keys: Mapping[str, Any] = field(hash=False, compare=False)

    @property
    def name(self) -> str:
        """For people."""
        return " · ".join((self.method, *self.rest))

    @property
    def kind(self) -> str:
        """One of :data:`KINDS`; of one GPU :data:`ALONE`, or empty under DeepSpeed."""
        workload = self.workload(1, 1, None)
        if workload.tensor_parallel_size > 1:
            return "combined" if workload.data_parallel_size > 1 else "tensor parallel"
        if workload.data_parallel_size == 1:
            return ALONE if workload.engine == "torch" else ""
        return "fully sharded" if workload.engine == "fsdp2" or workload.zero_stage == 3 else "data parallel"

    def workload(self, batch: int, accumulation: int, sequence: int | None) -> Workload:
        """With a shape."""
        steps = {} if accumulation == 1 else {STEPS: accumulation}  # a learned job takes no such key
        return Workload.from_mapping({**self.keys, **steps, BATCH: batch, LENGTH: sequence})


@dataclass(frozen=True)
class Space:
    """All settings; what the user fixed, from options and DeepSpeed config alike; the keys given, of all GPUs; and the
    dtypes of the plain loop that the user has now, if it is one."""

    settings: tuple[Setting, ...]
    fixed: Mapping[str, Any]
    given: Mapping[str, Any]
    own: Precision | None = None

    @property
    def kept(self) -> tuple[str, ...]:
        """Keys that would vary if they were not fixed."""
        return tuple(sorted(VARYING & self.fixed.keys()))


def space(given: Mapping[str, Any], vary: Collection[str] = (), keep: Collection[str] = (),
          label: Callable[[str], str] = str, gpus: int | None = None,
          whole: Mapping[str, Any] | None = None) -> Space:
    """Every combination that agrees with the keys that the user gave and that a workload may have.

    Args:
        given: keys of a workload.
        gpus: all that there are; None: as many as the keys say.
        vary, keep: names of axes: those to vary though they usually stay, those to leave alone.
        label: what a key is called in messages.
        whole: the configuration that the user has now, if it is known.

    Raises:
        InputError: an axis that there is not, keys that no workload may have, or degrees that are not of so many GPUs.
    """
    names = [axis.name for axis in AXES]
    for name in (*vary, *keep):
        if name not in names:
            raise InputError(f"vary and keep: no axis {name!r}: there are {', '.join(names)}")
    mine = own(whole, given)
    fixed = _fixed(given, mine)
    degrees = {} if gpus is None else _degrees(gpus, fixed, label)
    given, fixed = degrees | given, fixed | (degrees if fixed.keys() & {DATA, TENSOR} else {})
    gpus = gpus or _degree(fixed, DATA) * _degree(fixed, TENSOR)
    # a recorded job stays as it was but for its shape
    table = () if is_named(given.get("model")) else (
        engines(gpus, _degree(fixed, TENSOR), tried(fixed, mine)), *AXES[1:])
    varied = [_agreeing(axis, fixed, gpus) for axis in table
              if axis.name not in keep and (not axis.asked or axis.name in vary)]
    found: list[Setting] = []
    problem: InputError | None = None
    for choices in product(*varied):
        keys = {**given, **{key: value for choice in choices for key, value in choice.keys.items() if key not in fixed}}
        if any(all(keys.get(key) in values for key, values in rule.items()) for rule in SENSELESS):
            continue
        try:
            Workload.from_mapping(keys, label)
        except InputError as error:
            problem = problem or error
        else:
            found.append(_setting(choices, keys))
    if not found:
        raise problem or InputError("the keys that are given leave no engine, or nothing that makes sense: leave out "
                                    "engine, offload, optim, dtype or mixed_precision")
    return Space(tuple(found), fixed, given, mine)


def _degrees(gpus: int, fixed: Mapping[str, Any], label: Callable[[str], str]) -> dict[str, int]:
    """The degree that follows from all GPUs and what is fixed; replicas where nothing is."""
    said, other = (DATA, TENSOR) if DATA in fixed else (TENSOR, DATA)
    rest, remainder = divmod(gpus, _degree(fixed, said))
    if remainder or fixed.get(other, rest) != rest:
        raise InputError(f"{gpus} GPUs: not {label(said)} {fixed[said]}" + (
            f" x {label(other)} {fixed[other]}" if other in fixed else "") + ": leave one of them out")
    return {other: rest}


def _degree(fixed: Mapping[str, Any], key: str) -> int:
    """As fixed; 1 where it is not, or where a workload will refuse it."""
    value = fixed.get(key)
    return value if isinstance(value, int) and value > 0 else 1


def _agreeing(axis: Axis, fixed: Mapping[str, Any], gpus: int) -> list[Choice]:
    """What is left of an axis; one that the user fixed changes nothing."""
    left = [choice for choice in axis.choices if choice.agrees(fixed, gpus)]
    known = {key for choice in axis.choices for key in choice.keys}
    if not left and known & fixed.keys():
        return [Choice(axis.name if axis.name == AXES[0].name else "", {})]
    return [replace(choice, differs="") for choice in left] if len(left) == 1 else left


def _setting(choices: Sequence[Choice], keys: Mapping[str, Any]) -> Setting:
    method = [choice.name for choice in choices if {"engine", "offload"} & choice.keys.keys() and choice.name]
    return Setting(" · ".join(method) or "as given",
                   tuple(choice.name for choice in choices if choice.name and choice.name not in method),
                   tuple(choice.differs for choice in choices if choice.differs), keys)


def _fixed(given: Mapping[str, Any], mine: Precision | None) -> dict[str, Any]:
    """What the user said, in the form that a workload has it; a dtype alone is without autocast, unless it goes with
    the autocast that they have now."""
    if given.get("deepspeed") is not None:
        whole = Workload.from_mapping(given)
        return {name: getattr(whole, name) for name in KEYS if name not in whole.filled_in} | {
            name: getattr(whole, name) for name in ("engine", "zero_stage", "offload")}
    fixed = {name: value for name, value in given.items() if value is not None or name == "offload"}  # "none" is None
    for name in KEYS.keys() & fixed.keys():
        with suppress(Invalid, InputError):  # a workload says it better
            fixed[name] = KEYS[name].metadata["kind"].check(fixed[name])
    return {"mixed_precision": "none", **fixed} if "dtype" in fixed and not mine else fixed
