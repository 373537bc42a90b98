"""A framework's format, and a configuration in that format while it is turned into the keys of a workload."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any

from predictor.common.errors import InputError, NotPredicted
from predictor.common.suggestions import nearest, quoted, shortened
from predictor.common.value_types import Flag, FrozenMap, Invalid
from predictor.readers import shell_expansion
from predictor.readers.fields import Field
from predictor.readers.user_input import UserInput, beside
from predictor.workload.code_names import is_code_name
from predictor.workload.keys import Keys
from predictor.workload.value_sources import DEFAULT, READ, Note, Source, Value, value

MOST_KEYS = 1_000


@dataclass(frozen=True)
class Format:
    """The configuration format of one framework.

    Attributes:
        framework: name and release of the framework whose defaults are filled in.
        marks: keys by which the format is detected.
        rules: function that derives keys of the workload from several keys of the format.
        renamed: older name of a key -> its current name.
        shares: names of other formats whose keys without effect also belong to this one.
        open: true if a script may have further keys of its own; they are listed as not modelled.
        own: key of the workload -> function that gives the keys of the format for its new value, or None if the format
            cannot express it. Keys that are copied need no function.
        optional: keys that the user's script may lack; they are changed only where they are given.
        starts: the framework's command for a file, if it starts a process on every GPU of the machine.
        configs: name of a DeepSpeed config that the framework has built in -> its content.
    """

    name: str
    framework: str
    fields: Mapping[str, Field]
    marks: frozenset[str]
    rules: Callable[[Reading], None]
    renamed: Mapping[str, str] = field(default_factory=dict)
    shares: tuple[str, ...] = ()
    open: bool = False
    own: Mapping[str, Own] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    starts: str = ""
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def without_effect(self) -> frozenset[str]:
        """The format's keys without effect on memory."""
        names: frozenset[str] = frozenset().union(*(_names().get(name, ()) for name in (self.name, *self.shares)))
        return names - self.fields.keys()


@lru_cache(maxsize=1)
def _names() -> Mapping[str, frozenset[str]]:
    text = (resources.files(__package__) / "names.json").read_text("utf-8")
    return {name: frozenset(" ".join(lines).split()) for name, lines in json.loads(text).items()}


BY_OPTIONS = "by options such as --recipe"


class UnknownKeys(InputError):
    """A configuration has keys that its format does not know.

    Attributes:
        names: the keys as messages call them.
    """

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


class Reading:
    """A configuration while it is turned into a workload.

    ``reading["bf16"]`` is the value of a key, or the framework's default. :meth:`put` sets a key of the workload.

    Attributes:
        decided_half: ``bf16`` or ``fp16``, if the format's rules chose the autocast dtype.
        values: key of the format -> checked value.
        written: key of the format -> the name that the user wrote.
        workload: key of the workload -> value.
        rows: key of the workload -> value with its origin.
        unread: keys without effect on memory.
        foreign: flags that only the user's own script knows.
        unknown: keys that the format does not have and the script cannot have -> the known key that they may mean.
        left_open: keys that a shell leaves open and an option of peakcast sets.
        applied: keys of the workload whose options the rules have used, so that they do not replace the values.
    """

    def __init__(self, form: Format, user_input: UserInput) -> None:
        self.form, self.input = form, user_input
        self.decided_half: str | None = None
        self.values: dict[str, Any] = {}
        self.written: dict[str, str] = {}
        self.workload: dict[str, Any] = {}
        self.rows: dict[str, Value] = {}
        self.notes: list[Note] = []
        self.unread: list[str] = []
        self.foreign: list[str] = []
        self.unknown: dict[str, str] = {}
        self.left_open: dict[str, Value] = {}
        self.applied: set[str] = set()
        if len(user_input.values) > MOST_KEYS:
            raise InputError(f"{user_input.name}: has {len(user_input.values):,} keys: no training has more than "
                             f"{MOST_KEYS:,}")
        for name, item in user_input.values.items():
            self._take(name.replace("-", "_") if user_input.flags else name, item)
        if self.unknown:
            raise self._unknown_keys()

    def __getitem__(self, name: str) -> Any:
        given = self.values.get(name)
        return self.form.fields[name].default if given is None else given

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None or name in self.input.environment

    @property
    def half(self) -> str | None:
        """The autocast dtype, ``bf16`` or ``fp16``, from the training arguments or the format's rules; else None."""
        return self.decided_half or next((name for name in ("bf16", "fp16") if self[name] is True), None)

    @property
    def world_size(self) -> int:
        """Number of data-parallel GPUs; 1 if neither an option nor the launcher gives it."""
        return self.input.gpus or self.input.world_size or 1

    @property
    def model(self) -> str:
        """The model; empty if neither an option nor the configuration names it."""
        return self.input.options.get("model") or self.workload.get("model", "")

    def called(self, name: str) -> str:
        """A key under the name that the user wrote."""
        shown = self.written.get(name, name)
        if name in self.input.launched_with:
            return self.input.launched_with[name]
        flag = self.input.flags and name not in self.input.environment or shown in self.input.besides
        return f"--{shortened(shown)}" if flag else shortened(shown)

    def place(self, name: str) -> str:
        """The file and the key, as messages name them."""
        by_command = name in self.input.environment or name in self.input.besides
        file = self.input.starts if by_command else self.input.name
        return f"{file}: {self.called(name)}"

    def put(self, key: str, item: Any, *names: str, because: str = "") -> None:
        """Sets a key of the workload.

        Args:
            names: keys of the format that the value comes from. If none was given, the value is a default.
            because: reason for the value, if the keys do not show it.
        """
        self.workload[key] = item
        self.record(key, item, *names, because=because)

    def record(self, key: str, item: Any, *names: str, because: str = "") -> None:
        """Records the origin of a value without setting a key of the workload."""
        read = [self.called(name) for name in names if name in self]
        self.rows[key] = value(key, item, READ, self.input.name, *read, because=because) if read else \
            value(key, item, DEFAULT, self.form.framework, *names, because=because)

    def note(self, text: str, of: Callable[[Keys], str | None] | None = None,
             more_bytes: Callable[[Keys], int] | None = None) -> None:
        """Adds a note about something that is not modelled; arguments as in :class:`Note`."""
        self.notes.append(Note(text, of, more_bytes))

    def wrong(self, name: str, problem: str) -> InputError:
        """An error about a key; its message starts with the file and the key."""
        if name in self or self.input.path or self.input.flags:
            return InputError(f"{self.place(name)} {problem}")
        return InputError(f"{self.input.name}: {problem}")

    def refused(self, name: str, problem: str) -> NotPredicted:
        """The same of a key whose value may well run, but is not predicted."""
        return NotPredicted(str(self.wrong(name, problem)))

    def is_listed(self, name: str) -> bool:
        """True if the key is the origin of a value, or a note names it."""
        return any(self.called(name) in row.names for row in self.rows.values() if row.origin == READ) or any(
            re.search(rf"\b{name}\b", note.text) for note in self.notes)

    def file(self, name: str) -> str:
        """The path of the file that a key names, as :func:`beside` finds it.

        Raises:
            InputError: there is no such file.
        """
        path = beside(named := str(self[name]), self.input.path)
        if path:
            return path
        raise self.wrong(name, f"names {quoted(named, 200)}, and there is no such file")

    def source(self) -> Source:
        """The source of the workload; call it after the rules have run."""
        if self.foreign:
            self.note(f"what the script does with its own {', '.join(self.foreign)}")
        rows = tuple((self.rows | self.left_open).values())
        return Source(self.form.name, self.form.framework, self.input.name, rows, tuple(sorted(self.unread)),
                      tuple(dict.fromkeys(self.notes)), self._format_keys(), frozenset(self.applied),
                      self._on_every_gpu())

    def _on_every_gpu(self) -> str:
        """What starts a process on every GPU of the machine, if the command or the file says no number."""
        user_input = self.input
        if user_input.gpus is not None or user_input.world_size is not None:
            return ""
        from_file = not user_input.flags and not user_input.started_in
        return user_input.launched_by or (self.form.starts if from_file else "")

    def _format_keys(self) -> FrozenMap:
        """Key of a workload -> keys of the format that set it, including older names."""
        keys: dict[str, tuple[str, ...]] = {}
        for name, known in self.form.fields.items():
            if known.option and "." not in known.option:
                older = (old for old, new in self.form.renamed.items() if new == name)
                keys[known.option] = (*keys.get(known.option, ()), *map(self.called, (name, *older)))
        return FrozenMap(keys)

    def _take(self, name: str, item: Any) -> None:
        written, name = name, self.form.renamed.get(name, name)
        if self.input.flags and name.startswith("no_") and isinstance(getattr(  # HfArgumentParser's negated flag
                self.form.fields.get(name[3:]), "value_type", None), Flag):
            name, item = name[3:], "false"
        name = self._abbreviated(name) if self.input.flags else name
        known = self.form.fields.get(name)
        if known is None and item is None:  # an empty key in YAML
            self.unread.append(name)
        elif known is None:
            self._without_field(name)
        elif item is not None:
            before = self.values.get(name)
            self.written[name] = written
            self.values[name] = self.checked(name, known, item)
            if before is not None and before != self.values[name]:
                raise self.wrong(name, f"is given twice, as {quoted(before)} and {quoted(self.values[name])}: keep one")

    def _abbreviated(self, name: str) -> str:
        """The key that a flag abbreviates, as argparse accepts abbreviations; the flag itself if it is none.

        argparse stops at a flag that abbreviates several keys. So a script that accepts such a flag (``--model``)
        defines it itself. The same holds if the whole key is given too.

        Raises:
            InputError: the abbreviation is ambiguous.
        """
        known = {key: key for key in (*self.form.fields, *self.form.without_effect)} | dict(self.form.renamed)
        matches = {known[full]: full for full in sorted(known) if full.startswith(name)}
        if name in known or not matches or len(name) == 1:  # -x
            return name
        key, full = next(iter(matches.items()))
        if len(matches) == 1 and key in self.input.launched_with:
            means = f"is read as --{full}, which {self.input.launched_with[key]} sets too"
        elif len(matches) > 1 and any(_near(name, match) for match in matches) and \
                not self.form.without_effect >= matches.keys():
            means = f"may be {' or '.join(f'--{full}' for full in matches.values())}"
        else:
            return key if len(matches) == 1 and key not in self.input.values else name
        raise InputError(f"{self.place(name)} {means}: write it in full, or leave it out if it is the script's own")

    def _without_field(self, name: str) -> None:
        if name in self.form.without_effect:
            self.unread.append(name)
            return
        names = {*self.form.fields, *self.form.without_effect, *self.form.renamed}
        hint = nearest(name, names)
        if not self.form.open or not self.input.flags or "did you mean" in hint and _is_slip(name, hint, names):
            self.unknown[name] = hint
        else:
            self.foreign.append(f"--{name}")

    def _unknown_keys(self) -> UnknownKeys:
        """An error that names all unknown keys at once, so that nobody corrects one to meet the next."""
        framework = self.form.framework.partition(" (")[0]
        (first, hint), *others = self.unknown.items()
        if not others:
            text = f"{self.place(first)}: {framework} has no such key{hint}"
        else:
            more = "".join(f", {self.called(name)}{also}" for name, also in others)
            text = f"{self.place(first)}{hint}{more}: {framework} has no such keys"
        if self.input.flags and not self.form.open:
            text += f": leave out what is the script's own, and say what it does {BY_OPTIONS}"
        return UnknownKeys(text, tuple(map(self.called, self.unknown)))

    def _from_option(self, name: str, known: Field, left: str) -> Any:
        """The value that an option of peakcast gives in place of ``left``, which the shell leaves open."""
        key, _, inner = known.option.partition(".")
        option_value = self.input.options.get(key)
        if key == "deepspeed" and option_value is None and "zero_stage" in self.input.options:
            option_value = {"zero_optimization": {"stage": self.input.options["zero_stage"]},
                            "bf16": {"enabled": "auto"}}
        if inner:
            option_value = option_value.get(inner) if isinstance(option_value, Mapping) else None
        elif option_value is not None:
            self.left_open[key] = value(key, left, READ, self.input.name, self.called(name))
        if option_value is None:
            option = "MODEL" if key == "model" else "--" + key.replace("_", "-") + (f" {inner}=…" if inner else "")
            raise self.wrong(name, f"is {quoted(left)}: {shell_expansion.why(left, self.input.unknown)}" + (
                f", or give {option}" if key else ""))
        return option_value

    def checked(self, name: str, known: Field, item: Any) -> Any:
        """Checks the value of a key or an environment variable.

        If the shell leaves the value open, an option of peakcast gives it.

        Raises:
            InputError: the value is invalid, rejected, not predicted, or not known; or it names a function of Python
                code as the model, which the framework itself would not run.
        """
        for text in item if isinstance(item, list) and self.input.flags else [item]:
            if isinstance(text, str) and shell_expansion.LEFT.search(text):
                return self._from_option(name, known, text)
        try:
            read = known.value_type.from_text(item) if isinstance(item, str) else known.value_type.check(item)
        except Invalid as error:
            raise self.wrong(name, str(error)) from None
        on = known.is_on(read)
        if known.option == "model" and is_code_name(read):
            raise self.wrong(name, f"is {quoted(read, 200)}, a function of Python code, which peakcast runs for no "
                                   "framework: give a directory, a config.json or a hub id")
        if known.refusal and on:
            raise self.refused(name, f"{quoted(read)} is not supported: {known.refusal}")
        if known.note and on:
            self.note(f"{name} {read}: {known.note}" if not isinstance(read, bool) else f"{name}: {known.note}")
        return read


Own = Callable[[Any, Reading], Mapping[str, Any] | None]
"""Function that gives the keys of a format for the new value of a workload's key and the present reading."""


def _is_slip(name: str, hint: str, names: Iterable[str]) -> bool:
    """True if an unknown flag is a misspelt known one.

    A misspelt flag differs from a known name in one letter of many, or is close to it and has a word that no known name
    has (``learning_rte``). Flags that scripts define themselves consist of known words (``use_lora``).
    """
    words, meant = {word for known in names for word in known.split("_")}, hint.partition('"')[2].partition('"')[0]
    return _near(name, meant, ONE_LETTER) or _near(name, meant) and not words.issuperset(name.split("_"))


NEAR, ONE_LETTER = 0.88, 0.95
"""Similarity of a flag to a known name, above which it may be a slip, and above which it is one."""


def _near(name: str, known: str, above: float = NEAR) -> bool:
    return difflib.SequenceMatcher(None, name, known).ratio() > above
