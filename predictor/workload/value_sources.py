"""Where the values of a workload came from, where they were read from somebody else's configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from predictor.common.value_types import freeze, thaw

if TYPE_CHECKING:
    from predictor.workload.workload import Workload

READ, DEFAULT, OVERRIDDEN = "read", "default", "overridden"
"""What a value can be: given by the user, filled in by the framework, or given again by an option of ours."""
SAID_BY = {"engine": ("deepspeed", "fsdp"), "zero_stage": ("deepspeed",), "offload": ("deepspeed",)}
"""What messages name -> further keys that say it."""


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
    def unsaid(self) -> str:
        """The value, and why it is so where no key says it; empty where one does."""
        why = [f"default of {self.where}"] * (self.origin == DEFAULT)
        missing = " nor ".join(name for name in self.names if name != self.key) if why else ""
        if missing:
            why.append(f"as neither {missing} is given" if " nor " in missing else f"as {missing} is not given")
        why += [self.because] * bool(self.because)
        shown = f" {self.value}" if isinstance(self.value, (str, int, float)) else ""
        return f"{self.key}{shown}: {', '.join(why)}" if why else ""

    def said_by(self, file: str, name: str) -> Value:
        """The same, read from one more key of a file."""
        before = self.names if self.origin == READ else ()
        return replace(self, origin=READ, where=file, names=(*before, name))


@dataclass(frozen=True)
class Note:
    """Something that the framework does and that a prediction leaves out.

    Attributes:
        text: in words.
        of: of a workload, what follows the words, or None where it has no such thing; None: it says the same of all.
    """

    text: str
    of: Callable[[Workload], str | None] | None = None

    def about(self, workload: Workload) -> str:
        """The note as it holds of a workload; empty where it does not."""
        more = self.of(workload) if self.of else ""
        return "" if more is None else self.text + more


@dataclass(frozen=True)
class Source:
    """What was read.

    Attributes:
        format: one of ``predictor.readers.FORMATS``.
        framework: with the release whose defaults are filled in.
        file: path, or ``the command``.
        without_effect: keys that were given and that memory does not depend on.
        notes: what the framework does that a prediction leaves out.
        asked_by: keys of a workload -> keys of the format that say them.
    """

    format: str
    framework: str
    file: str
    values: tuple[Value, ...]
    without_effect: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    asked_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """The notes, whatever the workload is that they may be about."""
        return tuple(note.text for note in self.notes)

    def left_out(self, workload: Workload) -> tuple[str, ...]:
        """What a prediction of this workload leaves out: it may be another than the one that was read."""
        return tuple(filter(None, (note.about(workload) for note in self.notes)))

    def overriding(self, keys: Collection[str]) -> Source:
        """The same, where options of ours give these keys again."""
        return replace(self, values=tuple(
            replace(value, origin=OVERRIDDEN) if value.key in keys else value for value in self.values
            if value.key in keys or value.key.partition(".")[0] not in keys),
            asked_by={key: names for key, names in self.asked_by.items() if key not in keys})

    def place(self, *keys: str) -> str:
        """File and keys, as the user gave them, that say these keys of a workload; empty if none was read."""
        found = [value for value in self.values if value.key in keys and value.origin == READ]
        where = dict.fromkeys(value.where for value in found)
        return "; ".join(": ".join(filter(None, (file, ", ".join(dict.fromkeys(
            name for value in found if value.where == file for name in value.names))))) for file in where)

    def knows(self, key: str) -> bool:
        """Whether it says this key of a workload, or could."""
        return key in self.asked_by or any(value.key == key for value in self.values)

    def told(self, message: str) -> str:
        """An error about keys of a workload, as the user who wrote other keys can act on it: in front the file and its
        keys that say what the message names; behind it what a framework made of keys, or of their absence."""
        problem = message.removeprefix("explore: ").rpartition(": ")[0] or message  # without what to do
        rows = [row for row in self.values if row.origin != OVERRIDDEN and _is_about(problem, row.key, row.value)]
        asked = [names for key, names in self.asked_by.items() if message.startswith(f"{key} is not given")]
        if not rows and not asked:
            return message
        behind = [row.unsaid for row in rows if not row.because or row.because not in message]
        behind += [f"by {'one of ' * (len(names) > 1)}{', '.join(names)}" for names in asked]
        place = self.place(*(row.key for row in rows)) or self.file
        named = place.rpartition(": ")[2].lstrip("-")
        if re.match(rf"{re.escape(named)}\b", message):  # the key has that name there
            message = place + message.removeprefix(named)
        elif not any(message.startswith(f"{row.where}: ") for row in self.values):
            message = f"{place}: {message}"
        return message + f" ({'; '.join(filter(None, behind))})" * any(behind)

    def to_json(self) -> dict[str, Any]:
        """Plain data, for the result's key ``source``; what is not modelled is listed there."""
        document = asdict(replace(self, values=()))
        del document["notes"], document["asked_by"]
        return document | {"values": [asdict(replace(value, value=None)) | {"value": thaw(value.value)}
                                      for value in self.values]}


def _is_about(problem: str, key: str, item: Any) -> bool:
    """Whether a message names a key, as messages do: in its first words, after "with", with its value; or by the value
    alone. Those with an underscore are no English words."""
    words = [key, *(word for word, keys in SAID_BY.items() if key in keys)]
    written = [word for word in (*words, item) if isinstance(word, str) and "_" in word]
    said = [rf"\b{re.escape(word)}\b" for word in written]
    said += [rf"(?:^|\bwith ){word}\b" for word in words]
    said += [rf"\b{key}(?: is)? \W?{re.escape(item)}\b"] if isinstance(item, str) else []
    return any(re.search(pattern, problem) for pattern in said)


def value(key: str, given: Any, origin: str, where: str, *names: str, because: str = "") -> Value:
    """A :class:`Value` that cannot change."""
    return Value(key, freeze(given), origin, where, names, because)
