"""How a foreign format is read: a table of its keys, and rules for those that say something together.

A key either becomes a key of the workload as it is (:func:`to`), is used by the format's rules (:func:`part`), changes
memory in a way that is not modelled (:func:`noted`) or not predicted at all (:func:`refused`), or has no effect on it
(``names.json``). Any other is a mistake.
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

OFF = (None, False, "", "no", "none", 0, (), [])


@dataclass(frozen=True)
class Field:
    """One key of a format: its kind of value, what the framework takes where it is absent, and one of: the workload's
    key that takes it, why it is refused, what of it is not modelled, while its value is none of ``off``; ``option`` is
    the workload's key that says the same, whose option settles a value that the shell leaves open."""

    kind: Any
    default: Any = None
    ours: str = ""
    refusal: str = ""
    note: str = ""
    off: tuple = OFF
    option: str = ""

    def is_on(self, value: Any) -> bool:
        """Whether it does anything."""
        return bool(value) if isinstance(value, Mapping) else value not in self.off


def to(ours: str, kind: Any, default: Any = None) -> Field:
    """A key of the workload under another name; a default of None leaves it to the workload."""
    return Field(kind, default, ours, option=ours)


def part(kind: Any, default: Any = None, option: str = "") -> Field:
    """What the rules of the format use."""
    return Field(kind, default, option=option)


def noted(note: str, kind: Any = Any_(), default: Any = None, off: tuple = OFF) -> Field:  # noqa: B008
    """What is not modelled, where it is on."""
    return Field(kind, default, note=note, off=off)


def refused(refusal: str, off: tuple = OFF, kind: Any = Any_(), default: Any = None) -> Field:  # noqa: B008
    """What is not predicted, where it is on."""
    return Field(kind, default, refusal=refusal, off=off)


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        framework: whose defaults are filled in, with its release.
        marks: keys that no other format has: one of them tells it.
        rules: what follows from keys together.
        renamed: older names of keys -> theirs.
        shares: names of other formats whose keys without effect it has too.
        open: whether a script may have keys of its own, that nobody knows; they are listed.
    """

    name: str
    framework: str
    fields: Mapping[str, Field]
    marks: frozenset[str]
    rules: Callable[[Reading], None]
    renamed: Mapping[str, str] = field(default_factory=dict)
    shares: tuple[str, ...] = ()
    open: bool = False

    @property
    def without_effect(self) -> frozenset[str]:
        """Its keys that memory does not depend on."""
        names = frozenset().union(*(_names().get(name, ()) for name in (self.name, *self.shares)))
        return names - self.fields.keys()


@lru_cache(maxsize=1)
def _names() -> Mapping[str, frozenset[str]]:
    text = (resources.files(__package__) / "names.json").read_text()
    return {name: frozenset(" ".join(lines).split()) for name, lines in json.loads(text).items()}


@dataclass(frozen=True)
class Given:
    """What the user gave: a file's mapping, or the flags of a command.

    Attributes:
        name: of the file, for messages; ``the command``.
        path: of the file; None for a command.
        values: keys, without hyphens in front, to values; where they are ``flags`` text, lists of text, or true for
            one without a value.
        program: the script or module that runs, empty for a file.
        environment: variables that the command sets.
        world_size: what the launcher starts; None where it does not say.
        launched_by: what says so, or the launcher that does not.
        problem: why that cannot be read, if an option of ours does not say it.
        launch: what accelerate launches, which may decide keys.
        launched_with: those that it decides -> what says so.
        options: keys of the workload that options of ours give, which settle what a shell leaves open.
        unknown: what a shell script leaves of variables -> why their values are not known.
        started_in: the command or script that names the file, if one does.
        besides: keys that are its flags or its launcher's, not the file's.
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

    @property
    def gpus(self) -> int | None:
        """How many share the work whatever a launcher starts, if an option of ours says so."""
        return self.options.get("data_parallel_size")

    @property
    def starts(self) -> str:
        """Where the launcher and the environment are said."""
        return self.started_in or self.name


def beside(wanted: str, path: str | None) -> str | None:
    """A file that another one names: as it is, or beside the one at ``path``, or above it; None where it is nowhere."""
    try:
        near = [Path(path), Path(path).resolve()] if path else []
        found = Path(wanted).expanduser()
        folders = (Path(), *(parent for file in near for parent in file.parents))
        return next((str(folder / found) for folder in folders if (folder / found).is_file()), None)
    except (OSError, RuntimeError, ValueError):  # a name too long, no such home, a zero byte
        return None
