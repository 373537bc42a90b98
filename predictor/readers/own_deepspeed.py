"""Changes of a DeepSpeed config in the user's own words: keys of its JSON, of accelerate's file, or another built-in
config's name."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from predictor.common.files import read_mapping
from predictor.common.value_types import flat, thaw
from predictor.readers import accelerate
from predictor.readers.accelerate_launch import SECTION
from predictor.readers.deepspeed import FILLED, STAGE_3, at
from predictor.readers.fields import LAUNCHER, Edit
from predictor.readers.reading import Reading
from predictor.readers.user_input import UserInput
from predictor.workload import deepspeed_settings
from predictor.workload.deepspeed_settings import SAME_AS

STAGE = "zero_optimization.stage"
SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
OFFLOADED = {"optimizer": ("optimizer",), "parameters": ("param",), "all": ("optimizer", "param")}
"""Value of the workload's key ``offload`` -> sections ``offload_…`` of a config that are on."""
AUTO = {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}} | dict.fromkeys(SIZES, "auto")
IN_ACCELERATE = {STAGE: accelerate.STAGE, "zero_optimization.offload_optimizer.device": "offload_optimizer_device",
                 "zero_optimization.offload_param.device": "offload_param_device",
                 "gradient_accumulation_steps": "gradient_accumulation_steps", "gradient_clipping": "gradient_clipping"}
"""Key of a config -> accelerate's own key for it."""


@dataclass(frozen=True)
class Config:
    """The DeepSpeed config that the user's configuration has.

    Attributes:
        file: its path as the user wrote it; empty for a config without a file.
        kind: ``file``, ``inline`` (in the user's own file), ``built-in``, ``accelerate`` or ``none``.
    """

    document: Mapping[str, Any]
    kind: str
    file: str = ""


def of_workload(changes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Keys of a workload as dotted keys of a bare config; None if it has none for one of them."""
    theirs = {ours: key for key, ours in SAME_AS.items() if key != "optimizer"}
    if not changes.keys() <= theirs.keys() - {"dtype"}:
        return None
    return {f"deepspeed.{theirs[key]}": item for key, item in changes.items()}


def edits(user_input: UserInput, now: Reading | None, wanted: Mapping[str, Any], others: Iterable[Edit]
          ) -> tuple[list[Edit], Mapping[str, Any] | None] | None:
    """What changes in the user's DeepSpeed config, and its changed content, if that changes.

    Numbers in it that transformers compares with training arguments change with them.

    Args:
        now: the reading of the user's configuration; None if that is a DeepSpeed config itself.
        wanted: ``zero_stage``, ``offload``, ``deepspeed`` (a whole config), or dotted keys after ``deepspeed.``.
        others: the edits of the user's own keys.

    Returns:
        None if the change cannot be expressed.
    """
    config = _config(user_input, now)
    dotted = dict(_following(config.document, now, others)) if now is not None else {}
    present = dict(flat(thaw(config.document)))
    dotted |= {key: item for key, item in _dotted(wanted, config.document) if present.get(key) != item}
    if not dotted:
        return [], None
    if config.kind in ("none", "built-in") and now is not None and now.form.configs:
        return _built_in(now, config.document, dotted)
    if config.kind == "none" and user_input.flags and not user_input.launched_by:
        return None  # DeepSpeed needs a launcher
    document = copy.deepcopy(thaw(config.document))
    for key, item in dotted.items():
        _put(document, key, item)
    if config.kind == "none":
        document |= AUTO | {"zero_optimization": _fresh(document["zero_optimization"])}
        return [Edit("deepspeed", document)], document
    found = _said(user_input, config, dotted, document)
    return None if found is None else (found, document)


def _config(user_input: UserInput, now: Reading | None) -> Config:
    if now is None:
        return Config(user_input.values, "file", "")
    item = now["deepspeed"]
    if item is None:
        return Config({}, "none")
    if isinstance(item, str) and item in now.form.configs:
        return Config(now.form.configs[item], "built-in", item)
    if isinstance(item, str):
        return Config(read_mapping(now.file("deepspeed"), "the DeepSpeed config"), "file", item)
    return Config(item, "accelerate" if "deepspeed" in now.input.launched_with else "inline")


def _dotted(wanted: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The dotted keys of a config that change, with their new values; None takes a key out."""
    for key, item in wanted.items():
        if key == "zero_stage":
            yield STAGE, item
        elif key == "offload":
            yield from _offload(item, document)
        elif key == "deepspeed":
            old, new = (dict(flat(thaw(part))) for part in (document, item))
            yield from ((name, new.get(name)) for name in {**old, **new}
                        if name not in SIZES and old.get(name) != new.get(name))
        else:
            yield key.partition(".")[2], item


def _offload(item: str, document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    zero = document.get("zero_optimization") or {}
    for what in ("optimizer", "param"):
        device = (zero.get(f"offload_{what}") or {}).get("device", "none")
        on = what in OFFLOADED.get(item, ())
        if on != (device != "none"):
            yield f"zero_optimization.offload_{what}.device", "cpu" if on else "none"


def _put(document: dict[str, Any], dotted: str, item: Any) -> None:
    *sections, key = dotted.split(".")
    for section in sections:
        document = document.setdefault(section, {})
    if item is None:
        document.pop(key, None)
    else:
        document[key] = item


def _following(document: Mapping[str, Any], now: Reading, others: Iterable[Edit]) -> Iterator[tuple[str, Any]]:
    """Numbers of a config that transformers compares with the training arguments that change."""
    changed = {edit.name: edit.value for edit in others if not edit.place}
    new = {key: item for name, item in changed.items() if name in now.form.fields
           for key in {name, now.form.fields[name].ours, now.form.fields[name].option}}
    numbers = {key: number for key in FILLED if not isinstance(number := at(document, key), bool)
               and number not in (None, "auto")}
    for key, number in numbers.items():
        if key == "train_batch_size":
            was = {size: now.workload.get(size, 1) for size in deepspeed_settings.BATCH_KEYS}
            becomes = math.prod(new.get(size, item) for size, item in was.items())
            if becomes != math.prod(was.values()):
                yield key, number * becomes // math.prod(was.values())
        elif FILLED[key] in new:
            yield key, new[FILLED[key]]


def _built_in(now: Reading, document: Mapping[str, Any], dotted: Mapping[str, Any]
              ) -> tuple[list[Edit], None] | None:
    """Another of the framework's own configs: the one with the stage and the offloading that are asked for."""
    if not all(key == STAGE or key.startswith("zero_optimization.offload") for key in dotted):
        return None
    wanted = copy.deepcopy(thaw(document))
    for key, item in dotted.items():
        _put(wanted, key, item)
    for name, content in now.form.configs.items():
        if _traits(content) == _traits(wanted):
            return [Edit("deepspeed", name)], None
    return None


def _traits(document: Mapping[str, Any]) -> tuple[Any, bool, bool]:
    config = deepspeed_settings.written(document, "deepspeed")
    return (config.get(STAGE), deepspeed_settings.offloads(config, "optimizer"),
            deepspeed_settings.offloads(config, "param"))


def _fresh(zero: Mapping[str, Any]) -> dict[str, Any]:
    """A section ``zero_optimization`` with the values that the workload's ``zero_stage`` stands for."""
    auto = ("reduce_bucket_size", *(STAGE_3 if zero.get("stage") == 3 else ()))
    return {"overlap_comm": False, **dict.fromkeys(auto, "auto"), **zero}


def _said(user_input: UserInput, config: Config, dotted: Mapping[str, Any], document: Mapping[str, Any]
          ) -> list[Edit] | None:
    if config.kind == "file":
        return [Edit(key, item, config.file) for key, item in dotted.items()]
    if config.kind == "inline":
        shown = ", ".join(f"deepspeed.{key}: {item}" if item is not None else f"without deepspeed.{key}"
                          for key, item in dotted.items())
        return [Edit("deepspeed", thaw(document), shown=shown)]
    launch = user_input.launch
    assert launch is not None  # the config is accelerate's
    if not dotted.keys() <= IN_ACCELERATE.keys():
        return None
    names = {IN_ACCELERATE[key]: item for key, item in dotted.items()}
    by_option = not launch.document or any(name in launch.options for name in names)
    return [Edit(name, item, LAUNCHER) if by_option else
            Edit(f"{SECTION}.{name}", item, launch.options["config_file"]) for name, item in names.items()]
