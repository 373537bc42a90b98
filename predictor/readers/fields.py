"""Building blocks of a format's reader: a table of the format's keys, and the user's input.

Each key of a format falls into one group: its value becomes a key of the workload (:func:`copied_to`), the format's
rules use it (:func:`for_rules`), its effect on memory is noted as not modelled (:func:`noted`), it is rejected
(:func:`refused`), or it has no effect on memory (``names.json``). Any other key is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.readers.value_types import Any_

if TYPE_CHECKING:
    from predictor.readers.accelerate import Launch
    from predictor.readers.configuration import Reading

Own = Callable[[Any, "Reading"], "Mapping[str, Any] | None"]
"""Function that gives the keys of a format for the new value of a workload's key and the present reading."""
OFF: tuple[Any, ...] = (None, False, "", "no", "none", 0, (), [])


@dataclass(frozen=True)
class Field:
    """One key of a format.

    Attributes:
        value_type: checks the value and reads it from text.
        default: the framework's own default.
        ours: key of the workload that gets the value.
        refusal: why the key is rejected while it is on.
        note: what is not modelled while the key is on.
        off: values that mean "off".
        option: key of the workload with the same meaning. An option for it replaces a value that the shell leaves open.
    """

    value_type: Any
    default: Any = None
    ours: str = ""
    refusal: str = ""
    note: str = ""
    off: tuple[Any, ...] = OFF
    option: str = ""

    def is_on(self, value: Any) -> bool:
        """True if a value turns the key on."""
        return bool(value) if isinstance(value, Mapping) else value not in self.off


def copied_to(ours: str, value_type: Any, default: Any = None) -> Field:
    """A key whose value becomes the workload's key ``ours``. With the default None the workload's default counts."""
    return Field(value_type, default, ours, option=ours)


def for_rules(value_type: Any, default: Any = None, option: str = "") -> Field:
    """A key that the format's rules read, together with others."""
    return Field(value_type, default, option=option)


def noted(note: str, value_type: Any = Any_(), default: Any = None,  # noqa: B008
          off: tuple[Any, ...] = OFF) -> Field:
    """A key that adds a note, "not modelled", while it is on."""
    return Field(value_type, default, note=note, off=off)


def refused(refusal: str, off: tuple[Any, ...] = OFF, value_type: Any = Any_(),  # noqa: B008
            default: Any = None) -> Field:
    """A key that is rejected while it is on."""
    return Field(value_type, default, refusal=refusal, off=off)


ENVIRONMENT, LAUNCHER = "environment", "launcher"


@dataclass(frozen=True)
class Edit:
    """One changed key of the user's configuration.

    Attributes:
        name: the key; an option of the launcher, an environment variable, or a dotted key of a config file.
        value: its new value; None takes it out.
        place: :data:`ENVIRONMENT`, :data:`LAUNCHER`, the path of another file, or empty for the user's own file or
            command.
        shown: the edit in words, if it is not ``name: value``.
    """

    name: str
    value: Any
    place: str = ""
    shown: str = ""

    def __hash__(self) -> int:
        return hash((self.name, self.place))


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
    text = (resources.files(__package__) / "names.json").read_text()
    return {name: frozenset(" ".join(lines).split()) for name, lines in json.loads(text).items()}


@dataclass(frozen=True)
class UserInput:
    """The user's configuration: a file's content, or the flags of a command, with its launcher and environment.

    Attributes:
        name: name of the file in messages, or ``the command``.
        path: path of the file; None for a command.
        values: key, without leading hyphens -> value. With ``flags`` a value is text, a list of texts, or true for a
            flag without a value.
        flags: true if the values come from a command line.
        program: script or module that runs; empty for a file.
        environment: environment variables that the command sets.
        world_size: number of processes that the launcher starts; None if the command does not determine it.
        launched_by: the option that sets ``world_size``, or the launcher without such an option.
        problem: why ``world_size`` cannot be read; an error unless an option of peakcast gives the number.
        launch: accelerate's launcher, which may set keys.
        launched_with: key that the launcher sets -> the launcher's option or key.
        options: keys of the workload given as options of peakcast; they replace values that a shell leaves open.
        unknown: text of an expansion that a shell script leaves in words -> why its value is not known.
        started_in: the command or script that names the file, if there is one.
        besides: keys from the command's flags or the launcher, not from the file.
        assigned: keys that the command gives as KEY=VALUE beside the file.
        text: the file's whole text; empty for a command.
        words: the words of the command; empty for a file.
    """

    name: str
    values: Mapping[str, Any]
    path: str | None = None
    flags: bool = False
    program: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    world_size: int | None = None
    launched_by: str = ""
    problem: str = ""
    launch: Launch | None = None
    launched_with: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    started_in: str = ""
    besides: frozenset[str] = frozenset()
    assigned: frozenset[str] = frozenset()
    text: str = field(default="", repr=False)
    words: tuple[str, ...] = ()

    @property
    def gpus(self) -> int | None:
        """Number of data-parallel GPUs from an option of peakcast, which overrides the launcher's; None without one."""
        return self.options.get("data_parallel_size")

    @property
    def starts(self) -> str:
        """The command or file that sets the launcher and the environment."""
        return self.started_in or self.name


def beside(name: str, path: str | None) -> str | None:
    """Finds a file that the file at ``path`` names: in the current directory, next to that file, or in its parents.

    None if it does not exist.
    """
    try:
        near = [Path(path), Path(path).resolve()] if path else []
        relative = Path(name).expanduser()
        folders = (Path(), *(parent for file in near for parent in file.parents))
        return next((str(folder / relative) for folder in folders if (folder / relative).is_file()), None)
    except (OSError, RuntimeError, ValueError):  # a name too long, no such home, a zero byte
        return None
