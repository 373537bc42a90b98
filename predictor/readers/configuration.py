"""One configuration on its way to a workload."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from predictor.common.errors import InputError
from predictor.common.suggestions import nearest, show
from predictor.common.value_types import Flag, Invalid
from predictor.readers import shell_expansion
from predictor.readers.fields import Field, Format, Given, beside, part
from predictor.readers.value_types import TEXT
from predictor.workload.value_sources import DEFAULT, READ, Note, Source, Value, value

if TYPE_CHECKING:
    from predictor.workload.workload import Workload

ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
MOST_KEYS = 1_000
SETTINGS = part(TEXT, option="allocator_conf")


class Reading:
    """One configuration on its way to a workload: ``reading["bf16"]`` is the value or the default, :meth:`put` says
    what it means."""

    def __init__(self, form: Format, given: Given) -> None:
        self.form, self.given = form, given
        self.decided_half: str | None = None
        self.values: dict[str, Any] = {}
        self.written: dict[str, str] = {}
        self.workload: dict[str, Any] = {}
        self.rows: dict[str, Value] = {}
        self.notes: list[Note] = []
        self.unread: list[str] = []
        self.foreign: list[str] = []
        self.left_open: dict[str, Value] = {}
        if len(given.values) > MOST_KEYS:
            raise InputError(f"{given.name}: has {len(given.values):,} keys: no training has more than {MOST_KEYS:,}")
        for name, item in given.values.items():
            self._take(name.replace("-", "_") if given.flags else name, item)

    def __getitem__(self, name: str) -> Any:
        found = self.values.get(name)
        return self.form.fields[name].default if found is None else found

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None or name in self.given.environment

    @property
    def half(self) -> str | None:
        """Which of bf16 and fp16 the training arguments ask for, or the rules decided."""
        return self.decided_half or next((name for name in ("bf16", "fp16") if self[name] is True), None)

    @property
    def world_size(self) -> int:
        """GPUs that share the work, as far as anybody says."""
        return self.given.gpus or self.given.world_size or 1

    @property
    def model(self) -> str:
        """The model, as far as anybody says."""
        return self.given.options.get("model") or self.workload.get("model", "")

    def called(self, name: str) -> str:
        """A key as the user wrote it."""
        shown = self.written.get(name, name)
        if name in self.given.launched_with:
            return self.given.launched_with[name]
        flag = self.given.flags and name not in self.given.environment or shown in self.given.besides
        return f"--{shown}" if flag else shown

    def place(self, name: str) -> str:
        """File and key, as messages name them."""
        by_command = name in self.given.environment or name in self.given.besides
        file = self.given.starts if by_command else self.given.name
        return f"{file}: {self.called(name)}"

    def put(self, key: str, item: Any, *names: str, because: str = "") -> None:
        """A key of the workload, from these keys of the format: read if one of them was given, a default otherwise."""
        self.workload[key] = item
        self.say(key, item, *names, because=because)

    def say(self, key: str, item: Any, *names: str, because: str = "") -> None:
        """Where a value came from that is no key of the workload, but what a note is about."""
        read = [self.called(name) for name in names if name in self]
        self.rows[key] = value(key, item, READ, self.given.name, *read, because=because) if read else \
            value(key, item, DEFAULT, self.form.framework, *names, because=because)

    def note(self, text: str, of: Callable[[Workload], str | None] | None = None) -> None:
        """Something that a prediction leaves out; ``of`` as in :class:`Note`."""
        self.notes.append(Note(text, of))

    def wrong(self, name: str, problem: str) -> InputError:
        """An error that names file and key."""
        if name in self or self.given.path or self.given.flags:
            return InputError(f"{self.place(name)} {problem}")
        return InputError(f"{self.given.name}: {problem}")

    def is_listed(self, name: str) -> bool:
        """Whether a value says that this key gave it, or a note is about it."""
        return any(self.called(name) in row.names for row in self.rows.values() if row.origin == READ) or any(
            re.search(rf"\b{name}\b", note.text) for note in self.notes)

    def file(self, name: str) -> str:
        """The path of a file that a key names: as it is, or beside the file that is read, or above it."""
        found = beside(wanted := str(self[name]), self.given.path)
        if found:
            return found
        raise self.wrong(name, f"names {show(wanted, 200)}, and there is no such file")

    def source(self) -> Source:
        """What was read, once the rules have run."""
        if self.foreign:
            self.note(f"what the script does with its own {', '.join(self.foreign)}")
        rows = tuple((self.rows | self.left_open).values())
        return Source(self.form.name, self.form.framework, self.given.name, rows, tuple(sorted(self.unread)),
                      tuple(dict.fromkeys(self.notes)), self._asked_by())

    def _asked_by(self) -> dict[str, tuple[str, ...]]:
        """Keys of a workload -> keys of the format that say them, by whatever name."""
        found: dict[str, tuple[str, ...]] = {}
        for name, known in self.form.fields.items():
            if known.option and "." not in known.option:
                older = (old for old, new in self.form.renamed.items() if new == name)
                found[known.option] = (*found.get(known.option, ()), *map(self.called, (name, *older)))
        return found

    def _take(self, name: str, item: Any) -> None:
        written, name = name, self.form.renamed.get(name, name)
        if self.given.flags and name.startswith("no_") and isinstance(getattr(  # as HfArgumentParser has it
                self.form.fields.get(name[3:]), "kind", None), Flag):
            name, item = name[3:], "false"
        name = self._abbreviated(name) if self.given.flags else name
        known = self.form.fields.get(name)
        if known is None and item is None:  # a key that is left empty in YAML
            self.unread.append(name)
        elif known is None:
            self._without_field(name)
        elif item is not None:
            before = self.values.get(name)
            self.written[name] = written
            self.values[name] = self.checked(name, known, item)
            if before is not None and before != self.values[name]:
                raise self.wrong(name, f"is given twice, as {show(before)} and {show(self.values[name])}: keep one")

    def _abbreviated(self, name: str) -> str:
        """The key that a flag is the beginning of: the parsers of all formats that have flags are argparse's, and stop
        where it begins several, so that a script that takes such a flag (``--model``) has it of its own; so has one
        that is given the whole key besides."""
        known = {key: key for key in (*self.form.fields, *self.form.without_effect)} | self.form.renamed
        found = {known[full]: full for full in sorted(known) if full.startswith(name)}
        if name in known or not found or len(name) == 1:  # -x
            return name
        key, full = next(iter(found.items()))
        if len(found) == 1 and key in self.given.launched_with:
            means = f"is read as --{full}, which {self.given.launched_with[key]} says too"
        elif len(found) > 1 and any(_near(name, one) for one in found) and not self.form.without_effect >= found.keys():
            means = f"may be {' or '.join(f'--{full}' for full in found.values())}"
        else:
            return key if len(found) == 1 and key not in self.given.values else name
        raise InputError(f"{self.place(name)} {means}: write it in full, or leave it out if it is the script's own")

    def _without_field(self, name: str) -> None:
        if name in self.form.without_effect:
            self.unread.append(name)
            return
        names = {*self.form.fields, *self.form.without_effect, *self.form.renamed}
        hint = nearest(name, names)
        if not self.form.open or not self.given.flags or "did you mean" in hint and _is_slip(name, hint, names):
            raise InputError(f"{self.place(name)}: {self.form.framework.partition(' (')[0]} has no such key{hint}")
        self.foreign.append(f"--{name}")

    def _settled(self, name: str, known: Field, left: str) -> Any:
        """What an option of ours says in place of a value that is left open."""
        key, _, inner = known.option.partition(".")
        said = self.given.options.get(key)
        if key == "deepspeed" and said is None and "zero_stage" in self.given.options:
            said = {"zero_optimization": {"stage": self.given.options["zero_stage"]}, "bf16": {"enabled": "auto"}}
        if inner:
            said = said.get(inner) if isinstance(said, Mapping) else None
        elif said is not None:
            self.left_open[key] = value(key, left, READ, self.given.name, self.called(name))
        if said is None:
            option = "MODEL" if key == "model" else "--" + key.replace("_", "-") + (f" {inner}=…" if inner else "")
            raise self.wrong(name, f"is {show(left)}: {shell_expansion.why(left, self.given.unknown)}" + (
                f", or give {option}" if key else ""))
        return said

    def checked(self, name: str, known: Field, item: Any) -> Any:
        """The value of a key or an environment variable; what an option of ours says, where the shell leaves it open.

        Raises:
            InputError: no value of that kind, or one that is not known, refused or not predicted.
        """
        for text in item if isinstance(item, list) and self.given.flags else [item]:
            if isinstance(text, str) and shell_expansion.LEFT.search(text):
                return self._settled(name, known, text)
        try:
            found = known.kind.from_text(item) if isinstance(item, str) else known.kind.check(item)
        except Invalid as error:
            raise self.wrong(name, str(error)) from None
        on = known.is_on(found)
        if known.refusal and on:
            raise self.wrong(name, f"{show(found)} is not supported: {known.refusal}")
        if known.note and on:
            self.note(f"{name} {found}: {known.note}" if not isinstance(found, bool) else f"{name}: {known.note}")
        return found


def _is_slip(name: str, hint: str, names: Iterable[str]) -> bool:
    """Whether a script's own flag is so near to a known one that it is a slip of the pen: it has a word that no known
    name has (``learning_rte``), which those that other scripts think of have not (``use_lora``)."""
    words = {word for known in names for word in known.split("_")}
    return _near(name, hint.partition('"')[2].partition('"')[0]) and not words.issuperset(name.split("_"))


def _near(name: str, known: str) -> bool:
    return difflib.SequenceMatcher(None, name, known).ratio() > 0.88


def read(form: Format, given: Given) -> tuple[dict[str, Any], Source]:
    """The keys of a workload, and where each came from.

    Raises:
        InputError: a key that the framework does not have, or is not modelled, or a value that makes no sense; file and
            key are named.
    """
    reading = _ruled(form, given)
    askers: dict[Note, list[str]] = {}
    for name, written in reading.written.items():
        if not reading.is_listed(name):
            _list(reading, name, written, askers)
    reading.notes = [replace(note, text=f"{', '.join(askers[note])}: {note.text}") if note in askers else note
                     for note in reading.notes]
    return reading.workload, reading.source()


def _list(reading: Reading, name: str, written: str, askers: dict[Note, list[str]]) -> None:
    """List a key that nothing names: with whatever is read otherwise without it, or as one without effect."""
    rest = {key: item for key, item in reading.given.values.items() if key not in (written, written.replace("_", "-"))}
    try:
        other = _ruled(reading.form, replace(reading.given, values=rest))
    except InputError:
        reading.rows["recipe"] = reading.rows["recipe"].said_by(reading.given.name, reading.called(name))
        return
    rows = [key for key, row in reading.rows.items() if key not in other.rows or other.rows[key].value != row.value]
    notes = [note for note in reading.notes if note not in other.notes]
    for key in rows:
        reading.rows[key] = reading.rows[key].said_by(reading.given.name, reading.called(name))
    for note in notes if not rows else ():
        askers.setdefault(note, []).append(name)
    if not notes and not rows:
        reading.unread.append(written)


def _ruled(form: Format, given: Given) -> Reading:
    reading = Reading(form, given)
    if given.world_size is not None:
        reading.workload["data_parallel_size"] = given.world_size
        reading.rows["data_parallel_size"] = value("data_parallel_size", given.world_size, READ, given.starts,
                                                   given.launched_by)
    elif given.launched_by and given.gpus is None:
        reading.note(f"{given.launched_by} starts a process for each GPU that it finds: one is assumed (give "
                     "data_parallel_size)")
    elif not given.launched_by and given.gpus is None and "," in given.environment.get("CUDA_VISIBLE_DEVICES", ""):
        reading.note("nn.DataParallel, which the Trainer uses where several GPUs are visible and no launcher starts a "
                     "process for each: one GPU is predicted, with one micro batch")
    _allocator(reading)
    for name, known in form.fields.items():
        if known.ours and (name in reading or known.default is not None):
            reading.put(known.ours, reading[name], name)
    if reading["bf16"] in (True, "full") and reading["fp16"]:  # transformers 5.17, training_args.py, __post_init__
        raise reading.wrong("fp16", f"is true, and so is {reading.called('bf16')}: keep one")
    form.rules(reading)
    reading.note("the further micro-batches of a step, which the Trainer fetches ahead", _accumulates)
    return reading


def _accumulates(workload: Workload) -> str | None:
    return "" if workload.gradient_accumulation_steps > 1 else None


def _allocator(reading: Reading) -> None:
    """PyTorch's settings of its allocator, which the environment has."""
    given = reading.given
    found = {name: given.environment[name] for name in ALLOCATOR if given.environment.get(name)}
    if len(set(found.values())) > 1:
        raise InputError(f"{given.starts}: {' and '.join(found)} differ: keep one")
    for name, text in found.items():
        reading.workload["allocator_conf"] = reading.checked(name, SETTINGS, text)
        reading.rows["allocator_conf"] = value("allocator_conf", text, READ, given.starts, name)
