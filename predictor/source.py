"""Where the values of a workload came from, where they were read from somebody else's configuration."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any

from predictor.values import freeze, thaw

READ, DEFAULT, OVERRIDDEN = "read", "default", "overridden"
"""What a value can be: given by the user, filled in by the framework, or given again by an option of ours."""


@dataclass(frozen=True)
class Value:
    """One value.

    Attributes:
        key: of the workload; of a DeepSpeed config, its dotted key behind ``deepspeed.``.
        origin: :data:`READ`, :data:`DEFAULT` or :data:`OVERRIDDEN`.
        where: the file that it was read from, or the framework whose default it is.
        names: keys that say it there.
        because: what they do not say themselves.
    """

    key: str
    value: Any
    origin: str
    where: str
    names: tuple[str, ...] = ()
    because: str = ""

    @property
    def place(self) -> str:
        """File and key, as a message names them."""
        if self.origin == DEFAULT:
            return f"{self.key} (default of {self.where})"
        return f"{self.where}: {', '.join(self.names)}"

    def said_by(self, file: str, name: str) -> Value:
        """The same, read from one more key of a file."""
        before = self.names if self.origin == READ else ()
        return replace(self, origin=READ, where=file, names=(*before, name))


@dataclass(frozen=True)
class Source:
    """What was read.

    Attributes:
        format: one of ``predictor.readers.FORMATS``.
        framework: with the release whose defaults are filled in.
        file: path, or ``the command``.
        without_effect: keys that were given and that memory does not depend on.
        not_modelled: what the framework does that a prediction leaves out.
    """

    format: str
    framework: str
    file: str
    values: tuple[Value, ...]
    without_effect: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()

    def overriding(self, keys: Collection[str]) -> Source:
        """The same, where options of ours give these keys again."""
        return replace(self, values=tuple(
            replace(value, origin=OVERRIDDEN) if value.key in keys else value for value in self.values
            if value.key in keys or value.key.partition(".")[0] not in keys))

    def place(self, *keys: str) -> str:
        """File and keys, as the user gave them, that say these keys of a workload; empty if none was read."""
        found = [value for value in self.values if value.key in keys and value.origin == READ and value.names]
        where = dict.fromkeys(value.where for value in found)
        return "; ".join(f"{file}: " + ", ".join(dict.fromkeys(
            name for value in found if value.where == file for name in value.names)) for file in where)

    def to_json(self) -> dict[str, Any]:
        """Plain data, for the result's key ``source``; what is not modelled is listed there."""
        document = asdict(replace(self, values=()))
        del document["not_modelled"]
        return document | {"values": [asdict(replace(value, value=None)) | {"value": thaw(value.value)}
                                      for value in self.values]}


def value(key: str, given: Any, origin: str, where: str, *names: str, because: str = "") -> Value:
    """A :class:`Value` that cannot change."""
    return Value(key, freeze(given), origin, where, names, because)
