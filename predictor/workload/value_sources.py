"""Records the origin of each value of a workload that was read from a framework's own configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from predictor.common.value_types import FrozenMap, freeze, thaw
from predictor.workload.keys import Keys

READ, DEFAULT, OVERRIDDEN = "read", "default", "overridden"
"""Origins of a value: the user's configuration, the framework's default, or an option of peakcast that overrides it."""
ENGINE_KEYS = frozenset(("engine", "deepspeed", "zero_stage", "ddp", "fsdp"))
"""If an option sets one of these keys, all of them that were read from a configuration are dropped."""
IMPLIED_BY = {"engine": ("deepspeed", "fsdp"), "zero_stage": ("deepspeed",), "offload": ("deepspeed",)}
"""Key that messages name -> other keys of a workload that set it too."""


@dataclass(frozen=True)
class Value:
    """One value of a workload and its origin.

    Attributes:
        key: key of the workload; for a DeepSpeed config, ``deepspeed.`` and the dotted key.
        origin: :data:`READ`, :data:`DEFAULT` or :data:`OVERRIDDEN`.
        where: the file that it was read from, or the framework whose default it is.
        names: the keys in that file, or of that framework, that give the value.
        because: reason for the value, where the keys do not show it.
    """

    key: str
    value: Any
    origin: str
    where: str
    names: tuple[str, ...] = ()
    because: str = ""

    @property
    def explanation(self) -> str:
        """The value and the reason for it; empty if a key of the user's file gives it directly."""
        why = [f"default of {self.where}"] * (self.origin == DEFAULT)
        missing = " nor ".join(name for name in self.names if name != self.key) if why else ""
        if missing:
            why.append(f"as neither {missing} is given" if " nor " in missing else f"as {missing} is not given")
        why += [self.because] * bool(self.because)
        shown = f" {self.value}" if isinstance(self.value, (str, int, float)) else ""
        return f"{self.key}{shown}: {', '.join(why)}" if why else ""

    def also_from(self, file: str, name: str) -> Value:
        """This value, with one more key of a file as its origin."""
        before = self.names if self.origin == READ else ()
        return replace(self, origin=READ, where=file, names=(*before, name))


@dataclass(frozen=True)
class Note:
    """Something that the framework does and that the prediction does not model.

    Attributes:
        text: the sentence that the user sees.
        of: maps a workload to text that follows ``text``, or to None if the note does not apply to it. Without ``of``
            the note applies to every workload.
        more_bytes: maps a workload to the bytes that it takes at most; None if they are not known.
    """

    text: str
    of: Callable[[Keys], str | None] | None = None
    more_bytes: Callable[[Keys], int] | None = None

    def about(self, workload: Keys) -> str:
        """The note's text for a workload; empty if the note does not apply."""
        more = self.of(workload) if self.of else ""
        size = f", {self.more_bytes(workload):,} bytes here" if self.more_bytes else ""
        return "" if more is None else self.text + more + size


@dataclass(frozen=True)
class OwnChange:
    """A change of a workload in the words of the user's own configuration.

    Attributes:
        text: one short line, as the user would type it: ``cutoff_len: 1024``, ``--max_length 1024``, or
            ``zero_optimization.stage: 3 in zero2.json``.
        values: key of the format -> its new value; None takes the key out. Keys of a DeepSpeed config are dotted.
        where: the files that have these keys, or ``the command``.
        workload: every key of the workload that then changes -> its new value (None: not given). These are the keys
            that were asked for, and those that the framework decides by them: adapters, for example, change the dtype.
    """

    text: str
    values: Mapping[str, Any]
    where: str
    workload: Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """A configuration that was read: its format, its values, and what is not modelled.

    Attributes:
        format: one of ``predictor.readers.FORMATS``.
        framework: with the release whose defaults are filled in.
        file: path, or ``the command``.
        without_effect: keys that were given and do not change memory.
        notes: what the framework does and the prediction does not model.
        format_keys: key of a workload -> keys of the format that set it.
        applied: keys of the workload that peakcast's options gave, and that the framework makes other values of.
        on_every_gpu: what starts a process on every GPU of the machine, where nothing says how many there are.
        own: expresses changes of the workload in the format's keys; None if the reader cannot.
        own_lacks: whether the format has no key for a change; None if the reader cannot tell.
        own_refusal: why a change for which the format has keys is not predicted for the framework; empty if it is.
    """

    format: str
    framework: str
    file: str
    values: tuple[Value, ...]
    without_effect: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    format_keys: FrozenMap = FrozenMap({})
    applied: frozenset[str] = frozenset()
    on_every_gpu: str = ""
    own: Callable[[Mapping[str, Any]], OwnChange | None] | None = field(default=None, compare=False, repr=False)
    own_lacks: Callable[[Mapping[str, Any]], bool] | None = field(default=None, compare=False, repr=False)
    own_refusal: Callable[[Mapping[str, Any]], str] | None = field(default=None, compare=False, repr=False)

    @property
    def overridden(self) -> frozenset[str]:
        """The keys of the workload that an option of peakcast gives in place of the configuration."""
        return frozenset(row.key for row in self.values if row.origin == OVERRIDDEN)

    def in_own_words(self, changes: Mapping[str, Any]) -> OwnChange | None:
        """Says a change of the workload in the words of the user's own file or command.

        The changed configuration is read again: the workload then has every value that was asked for. Predict with
        :attr:`OwnChange.workload`, as a framework may decide further keys by the change.

        Args:
            changes: keys of the workload -> new values; None: no longer given.

        Returns:
            None if the format cannot express the change, if an option of peakcast sets one of its keys, or if the
            configuration already has these values.
        """
        return self.own(changes) if self.own else None

    def without_setting(self, changes: Mapping[str, Any]) -> str:
        """The framework, if it has no known setting for a change of the workload; else empty."""
        return self.framework.partition(" (")[0] if self.own_lacks and self.own_lacks(changes) else ""

    def refusal(self, changes: Mapping[str, Any]) -> str:
        """Why a change for which the format has keys is not predicted for the framework; else empty."""
        return self.own_refusal(changes) if self.own_refusal else ""

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """The texts of all notes, without looking at the workload."""
        return tuple(note.text for note in self.notes)

    def left_out(self, workload: Keys) -> tuple[str, ...]:
        """Notes that apply to this workload, which may differ from the one that was read."""
        return tuple(filter(None, (note.about(workload) for note in self.notes)))

    def overriding(self, keys: Collection[str]) -> Source:
        """This source after options of peakcast have overridden these keys."""
        return replace(self, values=tuple(
            replace(value, origin=OVERRIDDEN) if value.key in keys else value for value in self.values
            if value.key in keys or value.key.partition(".")[0] not in keys),
            format_keys=FrozenMap({key: names for key, names in self.format_keys.items() if key not in keys}))

    def place(self, *keys: str) -> str:
        """The user's file and keys that set these keys of a workload; empty if none was read."""
        read = [value for value in self.values if value.key in keys and value.origin == READ]
        where = dict.fromkeys(value.where for value in read)
        return "; ".join(": ".join(filter(None, (file, ", ".join(dict.fromkeys(
            name for value in read if value.where == file for name in value.names))))) for file in where)

    def knows(self, key: str) -> bool:
        """True if this format set, or could set, this key of a workload."""
        return key in self.format_keys or any(value.key == key for value in self.values)

    def told(self, message: str) -> str:
        """Rewrites an error about keys of a workload in terms of the user's own file.

        The file and its keys come first. What the framework derived from those keys, or from their absence, follows
        the message.
        """
        problem = message.removeprefix("explore: ").rpartition(": ")[0] or message  # without the advice
        rows = [row for row in self.values if row.origin != OVERRIDDEN and _is_about(problem, row.key, row.value)]
        unset = [names for key, names in self.format_keys.items() if message.startswith(f"{key} is not given")]
        if not rows and not unset:
            return message
        behind = [row.explanation for row in rows if not row.because or row.because not in message]
        behind += [f"by {'one of ' * (len(names) > 1)}{', '.join(names)}" for names in unset]
        place = self.place(*(row.key for row in rows)) or self.file
        named = place.rpartition(": ")[2].lstrip("-")
        if re.match(rf"{re.escape(named)}\b", message):  # the user's file calls the key by the same name
            message = place + message.removeprefix(named)
        elif not any(message.startswith(f"{row.where}: ") for row in self.values):
            message = f"{place}: {message}"
        return message + f" ({'; '.join(filter(None, behind))})" * any(behind)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the result's key ``source``, without the notes: the result lists them elsewhere."""
        document = asdict(replace(self, values=(), own=None, own_lacks=None, own_refusal=None))
        for name in ("notes", "format_keys", "applied", "on_every_gpu", "own", "own_lacks", "own_refusal"):
            del document[name]
        return document | {"values": [asdict(replace(value, value=None)) | {"value": thaw(value.value)}
                                      for value in self.values]}


def _is_about(problem: str, key: str, item: Any) -> bool:
    """True if a message is about a key.

    The message may begin with the key, name it after "with" or with its value, or name only the value. A word with an
    underscore counts anywhere, as it is no English word.
    """
    words = [key, *(word for word, keys in IMPLIED_BY.items() if key in keys)]
    written = [word for word in (*words, item) if isinstance(word, str) and "_" in word]
    patterns = [rf"\b{re.escape(word)}\b" for word in written]
    patterns += [rf"(?:^|\bwith ){word}\b" for word in words]
    patterns += [rf"\b{key}(?: is)? \W?{re.escape(item)}\b"] if isinstance(item, str) else []
    return any(re.search(pattern, problem) for pattern in patterns)


def value(key: str, item: Any, origin: str, where: str, *names: str, because: str = "") -> Value:
    """A :class:`Value` with its lists and mappings frozen."""
    return Value(key, freeze(item), origin, where, names, because)
