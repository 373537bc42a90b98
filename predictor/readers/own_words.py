"""Says changes of a workload in the keys of the user's own configuration: the inverse of the readers.

A key that a format copies into the workload is inverted by the format's table of keys. For the others the format has a
second table beside it (``Format.own``): key of the workload -> function that gives the format's keys.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from predictor.common.errors import InputError, NotPredicted
from predictor.common.value_types import Invalid, flat, thaw
from predictor.readers import accelerate, own_deepspeed, weight_dtype
from predictor.readers.configuration import with_rules
from predictor.readers.deepspeed import read_without_arguments
from predictor.readers.fields import ENVIRONMENT, LAUNCHER, Edit
from predictor.readers.reading import Format, Reading
from predictor.readers.user_input import UserInput
from predictor.workload import deepspeed_settings
from predictor.workload.given_keys import GivenKeys
from predictor.workload.keys import ALLOCATOR_VARIABLES, DEFAULTS, KEYS, image_sizes
from predictor.workload.value_sources import ENGINE_KEYS, OwnChange
from predictor.workload.workload_draft import Draft

CONFIG_KEYS = frozenset(("zero_stage", "offload", "deepspeed"))
"""Keys of the workload that a DeepSpeed config sets."""
FOLLOWING = frozenset(("engine", "ddp", "fsdp", *CONFIG_KEYS))
"""Keys whose absence, asked for beside another engine's keys, follows from those."""
OF_CHECKPOINTS = frozenset(("gradient_checkpointing_kwargs", "gradient_checkpointing_modules"))
"""Keys that say nothing where checkpointing is off."""
FROM_CONFIG = frozenset(("mixed_precision", "dtype"))
"""Keys whose values follow where DeepSpeed comes in: it trains without autocast, in the config's dtype."""
SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
"""Keys of a DeepSpeed config that stay as the user has them: usually "auto"."""
FRAMEWORK_S = {"quantization": ("prepare", "llm_int8_skip_modules", "bnb_4bit_compute_dtype")}
"""Key of the workload -> settings in it that a framework decides on its own."""
RESIZED = frozenset(("image_size",))
"""Keys whose options say what the framework is given, and not what it makes of that."""
ELSEWHERE = FOLLOWING | {"allocator_conf", "data_parallel_size"}
"""Keys that a configuration does not say by keys of its format alone."""
LEAST_OF_SIDE = 0.8
"""A framework may round sides of pictures down to so much of what is asked for."""
KEPT = "gradient_accumulation_steps"
"""Key that a framework may derive from others; it is written out if it would change unasked."""
PREFIX = "in front of the command"
TYPED = "\0"
"""Marks the places whose words stand one after the other, without commas."""


@dataclass(frozen=True)
class Edited:
    """The user's configuration with a change.

    Attributes:
        edits: what changes in the user's files, command and environment.
        user_input: the changed configuration.
        change: the change in words.
    """

    edits: tuple[Edit, ...]
    user_input: UserInput
    change: OwnChange


@dataclass(frozen=True)
class OwnWords:
    """Expresses changes of the workload that was read from one configuration.

    Attributes:
        form: the configuration's format.
        user_input: the configuration, before accelerate's launcher adds arguments.
    """

    form: Format
    user_input: UserInput

    def __call__(self, changes: Mapping[str, Any]) -> OwnChange | None:
        """The change in words, as :meth:`predictor.workload.value_sources.Source.in_own_words` returns it."""
        edited = self.edited(changes)
        return edited.change if edited else None

    def edited(self, changes: Mapping[str, Any]) -> Edited | None:
        """The configuration with a change, read again; None if the change cannot be expressed."""
        try:
            return self._edited(changes)
        except (InputError, Invalid):  # the framework would stop at the changed configuration
            return None

    def refusal(self, changes: Mapping[str, Any]) -> str:
        """Why a change for which the format has keys is not predicted for the framework; empty if it is, or may be."""
        try:
            self._edited(changes)
        except NotPredicted as error:
            return str(error)
        except (InputError, Invalid):
            pass
        return ""

    def lacks(self, changes: Mapping[str, Any]) -> bool:
        """True if the format has no key for a part of a change, and no option of peakcast sets that part."""
        if self.form.name == "deepspeed" or self._by_options & changes.keys():
            return False
        try:
            _, now = self.read(self.user_input)
            return now is not None and any(
                _own(self.form, key, item, now) is None for key, item in changes.items()
                if item is not None and not _of_config(key) and key not in ELSEWHERE)
        except (InputError, Invalid):  # the framework would stop at the configuration
            return False

    @property
    def _by_options(self) -> frozenset[str]:
        """Keys of the workload that options of peakcast set, and that the configuration cannot change."""
        options = self.user_input.options.keys()
        return frozenset(options | (ENGINE_KEYS | {"offload"} if options & ENGINE_KEYS else set())) - RESIZED

    def _edited(self, changes: Mapping[str, Any]) -> Edited | None:
        by_options = self._by_options
        if by_options & changes.keys():
            return None
        before, now = self.read(self.user_input)
        found = self._edits(changes, now)
        if not found:
            return None
        edits, document = found
        user_input = changed(self.user_input, now, edits, document)
        after, again = self.read(user_input)
        left = {key: item for key, item in self.user_input.options.items() if again is None or key not in again.applied}
        differing = {key: after.get(key) for key in before.keys() | after.keys()
                     if before.get(key) != after.get(key) and key not in by_options}
        if KEPT in differing and KEPT not in changes:
            return None if before[KEPT] == DEFAULTS[KEPT] == after.get(KEPT) else \
                self._edited({**changes, KEPT: before.get(KEPT, DEFAULTS[KEPT])})
        if not differing or not _holds(changes, GivenKeys.read({**after, **left}).completed()):
            return None
        shown = [_as_written(self.user_input, now, edit) for edit in edits]
        return Edited(tuple(edits), user_input, OwnChange(
            text(self.user_input, shown), {edit.name: edit.value for edit in shown},
            " and ".join(dict.fromkeys(_where(self.user_input, edit) for edit in shown)), differing))

    def read(self, user_input: UserInput) -> tuple[dict[str, Any], Reading | None]:
        """The keys of the workload of a configuration, and its reading; None for a bare DeepSpeed config."""
        launched = accelerate.launched(user_input)
        if self.form.name == "deepspeed":
            workload, _ = read_without_arguments(replace(launched, path=None))
            conf = next((item for name, item in user_input.environment.items() if name in ALLOCATOR_VARIABLES), None)
            return workload | ({"allocator_conf": conf} if conf else {}), None
        reading = with_rules(self.form, launched)
        return reading.workload, reading

    def _edits(self, changes: Mapping[str, Any], now: Reading | None
               ) -> tuple[list[Edit], Mapping[str, Any] | None] | None:
        """What changes, and the changed DeepSpeed config, if it changes; None if the change cannot be expressed."""
        if "lora" in changes and "recipe" not in changes and now is not None and "lora" not in now.workload:
            changes = {"recipe": "lora", **changes}
        following = FROM_CONFIG if _brings_config(changes, now) else frozenset()  # _holds checks their values
        rest = {key: item for key, item in changes.items() if not _of_config(key) and key not in following}
        config = {key: item for key, item in changes.items() if _of_config(key) and item is not None}
        edits = [*self._environment(rest.pop("allocator_conf", None))]
        if now is None:
            own = own_deepspeed.of_workload(rest)
            config = config if own is None else {**config, **own}
            rest = {} if own is not None else rest
        unused = OF_CHECKPOINTS if rest.get("gradient_checkpointing") is False else frozenset()
        for key, item in sorted(rest.items(), key=lambda change: change[0] == "quantization"):  # it refines a recipe
            if item is None and (key in FOLLOWING or key in unused):
                continue
            found = _own(self.form, key, item, now) if now is not None else None
            if found is None:
                return None
            edits += found
        document = None
        in_config = own_deepspeed.edits(self.user_input, now, config, edits)
        if in_config is None:
            return None
        more, document = in_config
        return list({(edit.name, edit.place): edit for edit in [*edits, *more]}.values()), document

    def _environment(self, conf: str | None) -> Iterator[Edit]:
        if conf is not None:
            given = [name for name in ALLOCATOR_VARIABLES if name in self.user_input.environment
                     ] or ALLOCATOR_VARIABLES[:1]
            yield from (Edit(name, conf, ENVIRONMENT) for name in given)


def _of_config(key: str) -> bool:
    return key in CONFIG_KEYS or key.startswith("deepspeed.")


def _brings_config(changes: Mapping[str, Any], now: Reading | None) -> bool:
    """True if a change gives a DeepSpeed config to a training that has none."""
    return now is not None and now["deepspeed"] is None and any(
        changes.get(key) is not None for key in ("deepspeed", "zero_stage"))


def _own(form: Format, key: str, item: Any, now: Reading) -> list[Edit] | None:
    """The keys of a format that give a key of the workload its new value; None if it has none."""
    if key == "data_parallel_size":
        return _processes(now.input, item)
    write = form.own.get(key)
    values = write(item, now) if write else _inverse(form, key, item, now)
    if values is None:
        return None
    edits = []
    for name, value in values.items():
        if name in form.optional and now.values.get(name) is None:
            return None  # the user's script may not have such an argument
        by_environment = name in now.input.environment or name not in form.fields
        if by_environment or value != (now[name] if name in now.written else form.fields[name].default):
            edits.append(Edit(name, value, ENVIRONMENT if by_environment else ""))
    return edits


def _inverse(form: Format, key: str, item: Any, now: Reading) -> Mapping[str, Any] | None:
    """The format's keys that are copied to a key of the workload, or to the items of a mapping."""
    fields = form.fields
    names = [name for name, known in fields.items() if known.ours == key] or [
        name for name, known in fields.items() if known.option == key]
    if names:
        name = next((name for name in names if name in now), names[0])
        item = weight_dtype.WRITTEN[item] if key == "dtype" else thaw(item)
        return {name: {**(now[name] or {}), **item} if isinstance(item, Mapping) else item}
    if not isinstance(item, Mapping):
        return None
    inner = {part: next((name for name, known in fields.items() if known.option == f"{key}.{part}"), None)
             for part in item}
    return {name: thaw(item[part]) for part, name in inner.items() if name} or None


def _processes(user_input: UserInput, gpus: int) -> list[Edit] | None:
    """The launcher's option, or its environment variable, with another number of processes."""
    match = re.fullmatch(r"(--)?(\w+) (\d+)", user_input.launched_by.replace("no NPROC_PER_NODE", "NPROC_PER_NODE 1"))
    if not match or not isinstance(gpus, int):
        return None
    return [Edit(match[2], gpus, LAUNCHER)] if match[1] else [Edit(match[2], str(gpus), ENVIRONMENT)]


def raw_name(user_input: UserInput, now: Reading | None, name: str) -> str | None:
    """The key of the user's configuration that gives a key of the format, as the user wrote it; None without one."""
    written = now.written.get(name, name) if now is not None else name
    return next((raw for raw in user_input.values if raw == written or (
        user_input.flags and raw.replace("-", "_") == written)), None)


def _as_written(user_input: UserInput, now: Reading | None, edit: Edit) -> Edit:
    """An edit with the key as the user wrote it, such as an older name of it."""
    raw = None if edit.place else raw_name(user_input, now, edit.name)
    negated = raw is not None and raw.replace("-", "_").startswith("no_")
    return edit if raw is None or negated else replace(edit, name=raw)


def by_command(user_input: UserInput, name: str) -> bool:
    """True if a key of the format is a flag of a command, not a key of a file."""
    return user_input.flags or name in user_input.besides


def changed(user_input: UserInput, now: Reading | None, edits: Iterable[Edit],
            document: Mapping[str, Any] | None = None) -> UserInput:
    """A configuration with edits of its own keys, its environment and its launcher.

    Args:
        now: its reading; None for a bare DeepSpeed config.
        document: the changed DeepSpeed config, in place of the one that it names.
    """
    values, environment, launched = dict(user_input.values), dict(user_input.environment), {}
    for edit in edits:
        if edit.place == ENVIRONMENT:
            environment[edit.name] = str(edit.value)
            if edit.name == "NPROC_PER_NODE":
                launched = _started(user_input, edit)
        elif edit.place == LAUNCHER and edit.name in user_input.launched_by:
            launched = _started(user_input, edit)
        elif not edit.place:
            raw = raw_name(user_input, now, edit.name)
            if raw is not None and (edit.value is None or raw.replace("-", "_").startswith("no_")):
                del values[raw]
                raw = None
            if edit.value is not None:
                shown = flag_value(user_input, edit.value) if by_command(user_input, edit.name) else edit.value
                values[raw or edit.name] = shown
    if document is not None and now is None:
        values = dict(document)
    elif document is not None:
        values[raw_name(user_input, now, "deepspeed") or "deepspeed"] = document
    return replace(user_input, values=values, environment=environment, **launched)


def _started(user_input: UserInput, edit: Edit) -> dict[str, Any]:
    dashes = "" if edit.place == ENVIRONMENT else "--"
    return {"world_size": int(edit.value), "launched_by": f"{dashes}{edit.name} {edit.value}"}


def flag_value(user_input: UserInput, value: Any) -> str | list[str]:
    """A value as the words behind a flag. True and false are written like the command's other flags."""
    if isinstance(value, bool):
        lower = any(item in ("true", "false") for item in user_input.values.values() if isinstance(item, str))
        return str(value).lower() if lower else str(value)
    if isinstance(value, (list, tuple)):
        return [str(item) for item in value]
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


def _holds(changes: Mapping[str, Any], after: Draft) -> bool:
    """True if a workload has every value that a change asks for."""
    asked = GivenKeys.read({key: item for key, item in changes.items() if key in KEYS}).values
    config = dict(flat(thaw(after["deepspeed"]) or {}))
    dotted = {key.partition(".")[2]: item for key, item in changes.items() if key.startswith("deepspeed.")}
    if any(config.get(key) != item for key, item in dotted.items()):
        return False
    return all(_has(key, item, changes[key], after) for key, item in asked.items()) and all(
        after[key] == DEFAULTS[key] for key, item in changes.items()
        if item is None and key in KEYS and key not in FOLLOWING)


def _as_small(asked: Sequence[tuple[int, int]], made: Sequence[tuple[int, int]]) -> bool:
    """True if a framework makes pictures of these sizes, or a little smaller ones."""
    return len(asked) == len(made) and all(
        LEAST_OF_SIDE * most <= side <= most for sizes in zip(made, asked) for side, most in zip(*sizes))


def _has(key: str, item: Any, said: Any, after: Draft) -> bool:
    if key == "zero_stage":
        return after.stage == item
    if key == "deepspeed":
        theirs = deepspeed_settings.settled(deepspeed_settings.written(item, key))
        return _without_sizes(theirs) == _without_sizes(after.settings)
    if key == "image_size":
        return _as_small(image_sizes(item), image_sizes(after[key]))
    if isinstance(item, Mapping) and isinstance(said, Mapping):
        found = after[key] or {}
        return all(found.get(part) == item[part] for part in said if part not in FRAMEWORK_S.get(key, ()))
    return after[key] == item


def _without_sizes(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in settings.items() if key not in SIZES}


def text(user_input: UserInput, edits: Iterable[Edit]) -> str:
    """The edits on one line, as the user would type them; each file after the first is named."""
    places: dict[str, list[str]] = {}
    for edit in edits:
        say = next(say for is_there, say in _WORDINGS if is_there(user_input, edit))
        end, said = say(user_input, edit)
        places.setdefault(end, []).append(said)
    return "; ".join((" " if end.startswith(TYPED) else ", ").join(said) + end.removeprefix(TYPED)
                     for end, said in places.items())


def _in_environment(user_input: UserInput, edit: Edit) -> tuple[str, str]:
    return f"{TYPED} {PREFIX}", f"{edit.name}={shlex.quote(str(edit.value))}"


def _as_flag(user_input: UserInput, edit: Edit) -> tuple[str, str]:
    name = edit.name if edit.place else user_input_name(user_input, edit.name)
    if edit.value is None:
        return TYPED, f"without --{name}"
    words = flag_value(user_input, edit.value)
    return TYPED, " ".join([f"--{name}", *map(shlex.quote, [words] if isinstance(words, str) else words)])


def _assigned(user_input: UserInput, edit: Edit) -> tuple[str, str]:
    return TYPED, f"{edit.name}={yaml_text(edit.value)}"


def _in_file(user_input: UserInput, edit: Edit) -> tuple[str, str]:
    end = f" in {edit.place}" if edit.place else ""
    if edit.shown:
        return end, edit.shown
    if edit.value is None:
        return end, f"without {edit.name}"
    if not edit.place and user_input.name.lower().endswith(".json") and "." not in edit.name:
        return end, f"{json.dumps(edit.name)}: {json.dumps(edit.value)}"
    return end, f"{edit.name}: {yaml_text(edit.value)}"


_WORDINGS: tuple[tuple[Callable[[UserInput, Edit], bool], Callable[[UserInput, Edit], tuple[str, str]]], ...] = (
    (lambda user_input, edit: edit.place == ENVIRONMENT, _in_environment),
    (lambda user_input, edit: edit.place == LAUNCHER, _as_flag),
    (lambda user_input, edit: not edit.place and edit.name in user_input.assigned, _assigned),
    (lambda user_input, edit: not edit.place and by_command(user_input, edit.name), _as_flag),
    (lambda user_input, edit: True, _in_file))


def user_input_name(user_input: UserInput, name: str) -> str:
    """A flag with the hyphens or underscores that the user's other flags have."""
    hyphens = user_input.flags and any("-" in raw for raw in user_input.values) and not any(
        "_" in raw for raw in user_input.values)
    return name.replace("_", "-") if hyphens else name


def yaml_text(value: Any) -> str:
    """A value in YAML on one line; a whole number of type float without its point."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./-]*", value) and value.lower() not in (
        "true", "false", "yes", "no", "on", "off", "null", "y", "n")
    return str(value) if plain else json.dumps(value)


def _where(user_input: UserInput, edit: Edit) -> str:
    if edit.place == ENVIRONMENT:
        return "the environment"
    if edit.place not in ("", LAUNCHER):
        return edit.place
    own = edit.place == LAUNCHER or by_command(user_input, edit.name) or edit.name in user_input.assigned
    return user_input.starts if own else user_input.name
