"""Building blocks of a format's reader: the groups that its keys fall into, and edits of them.

Each key of a format falls into one group: its value becomes a key of the workload (:func:`copied_to`), the format's
rules use it (:func:`for_rules`), its effect on memory is noted as not modelled (:func:`noted`), it is rejected
(:func:`refused`), or it has no effect on memory (``names.json``). Any other key is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from predictor.readers.value_types import Any_

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
