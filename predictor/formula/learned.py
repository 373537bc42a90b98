"""Learned formulas and their files: whole recorded runs, with sizes as functions of the shape.

Unlike a traced formula, a learned one includes start-up, engine and optimizer. It holds for one engine setting,
data-parallel degree, rank and GPU. It may have several event lists; each is used for shapes like those at which it was
recorded. Files are ``.npz`` archives without pickles, as those of :mod:`predictor.formula.formula`.
"""

from __future__ import annotations

import io
import json
import math
import os
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from predictor.common.arrays import TooLarge
from predictor.common.arrays import load as read_arrays
from predictor.common.errors import InputError
from predictor.common.files import NotAFile, write_whole
from predictor.common.suggestions import file_name
from predictor.events.events import Buffers, EventList, EventType
from predictor.events.model_facts import ModelFacts, Parameter
from predictor.events.regimes import Regime, regime_of
from predictor.events.sizes import SYMBOLS, Monomial, Shape, SizeTable, Workspace
from predictor.events.workspaces import FUNCTIONS
from predictor.formula import learned_terms
from predictor.formula.formula import term_from_json, term_to_json

SCHEMA_VERSION = 1
SUFFIX = ".npz"
SOURCE = "recorded jobs"
KEY_OF = dict(zip(SYMBOLS, ("per_device_train_batch_size", "sequence_length", "images_per_sample")))
"""Symbol -> the workload key that sets it."""
MODEL_TYPE = "learned"


@dataclass(frozen=True, eq=False)
class LearnedList:
    """One list of events, with start-up and three optimizer steps.

    Attributes:
        shapes: the recorded shapes that have this list; its sizes were fitted to them.
        interpolated: sizes that no function explains, as mappings with ``operator``, ``module``, ``buffers`` (their
            number) and ``error_bytes``, the largest error at a recorded shape that was left out of the interpolation.
        moved_frees: number of buffers that other jobs freed at other points; each is held until the latest of them.
    """

    events: EventList
    shapes: tuple[Shape, ...]
    interpolated: tuple[dict[str, Any], ...] = ()
    moved_frees: int = 0

    def varies(self, symbol: str) -> bool:
        """Whether its shapes differ in a symbol. Images that are proportional to the batch do not differ."""
        if symbol == "images":
            return len({shape.images / shape.batch for shape in self.shapes}) > 1
        return len({getattr(shape, symbol) for shape in self.shapes}) > 1


@dataclass(frozen=True, eq=False)
class Learned:
    """A formula that was learned from recordings of one job.

    Attributes:
        lists: the event lists.
        workload: every key of the workload that was measured; None for a script.
        command: the command that learned it, or the script with its placeholders.
        facts: the model's parameters, as far as they were recorded.
        provenance: origin of the recordings: ``measured_on``, ``gpu``, ``capacity_bytes``, ``rank``, ``world_size``,
            ``versions``, ``differences`` (why there is more than one list), ``checked`` (predicted against measured).
    """

    lists: tuple[LearnedList, ...]
    workload: dict[str, Any] | None
    command: tuple[str, ...]
    facts: ModelFacts
    provenance: dict[str, Any]

    @property
    def base(self) -> Shape:
        """The first recorded shape."""
        return self.lists[0].shapes[0]

    def list_for(self, shape: Shape) -> tuple[LearnedList, tuple[str, ...]]:
        """The event list to use at a shape, and notes on what is uncertain about that.

        Raises:
            InputError: no similar shape was recorded.
        """
        same = [events for events in self.lists if any(_regime(known) == _regime(shape) for known in events.shapes)]
        notes = []
        if not same:
            counts = _regime(shape).counts
            same = [events for events in self.lists if any(_regime(known).counts == counts for known in events.shapes)]
            if not same:
                raise InputError(_unlike(self, shape))
            notes.append(f"sequence_length {shape.sequence}: this is {'a' if shape.sequence % 8 == 0 else 'no'} "
                         "multiple of 8, unlike every recorded sequence: attention may pad a mask differently")
        chosen = min(same, key=lambda events: min(_distance(known, shape) for known in events.shapes))
        if len(same) > 1:
            notes.append("more than one list of events was recorded for such shapes: that of the nearest shape is used")
        _check_fixed(chosen, shape)
        return chosen, (*notes, *_beyond(chosen, shape))


def _regime(shape: Shape) -> Regime:
    return regime_of(shape, pads_masks=True)


def _distance(first: Shape, second: Shape) -> float:
    return sum(abs(np.log(max(a, 1) / max(b, 1))) for a, b in zip(first, second))


def _unlike(learned: Learned, shape: Shape) -> str:
    recorded = sorted({known.batch for events in learned.lists for known in events.shapes})
    return (f"per_device_train_batch_size {shape.batch} with {shape.images} image(s): learned from batches "
            f"{', '.join(map(str, recorded))} only, and one sample or image allocates differently from several: learn "
            "it again with --batches and --images that include such a number")


def _check_fixed(chosen: LearnedList, shape: Shape) -> None:
    known = chosen.shapes[0]
    for symbol in ("batch", "sequence"):
        if not chosen.varies(symbol) and getattr(shape, symbol) != getattr(known, symbol):
            raise InputError(f"{KEY_OF[symbol]} {getattr(shape, symbol):,}: learned at {getattr(known, symbol):,} "
                             f"only; learn it again at more, or leave {KEY_OF[symbol]} out")
    if not chosen.varies("images") and shape.images * known.batch != known.images * shape.batch:
        raise InputError(f"images_per_sample {shape.images / shape.batch:g}: learned with "
                         f"{known.images / known.batch:g} only; learn it again with more (--images), or leave it out")


def _beyond(chosen: LearnedList, shape: Shape) -> list[str]:
    notes = []
    for symbol in SYMBOLS:
        values = [getattr(known, symbol) for known in chosen.shapes]
        if (symbol != "images" or chosen.varies(symbol)) and not min(values) <= getattr(shape, symbol) <= max(values):
            notes.append(f"extrapolated: {symbol} {getattr(shape, symbol):,} is outside the recorded "
                         f"{min(values):,} to {max(values):,}")
    divisor = math.gcd(*(known.sequence for known in chosen.shapes))
    if divisor and shape.sequence % divisor:
        notes.append(f"all recorded sequences are multiples of {divisor}, {shape.sequence:,} is not: sizes "
                     "that kernels round up were not recorded")
    tokens = [known.batch * known.sequence for known in chosen.shapes]
    if not notes and not min(tokens) <= shape.batch * shape.sequence <= max(tokens):
        notes.append(f"extrapolated: {shape.batch * shape.sequence:,} tokens are outside the recorded {min(tokens):,} "
                     f"to {max(tokens):,}")
    return notes


# files --------------------------------------------------------------------------------------------------


def is_learned_file(model: Any) -> bool:
    """Whether a workload's ``model`` is the path of a learned formula."""
    return isinstance(model, str) and model.endswith(SUFFIX)


def fill_recorded_keys(values: dict[str, Any]) -> dict[str, Any]:
    """Fills in the shape of a workload whose ``model`` is a learned formula.

    The keys are the batch size, the sequence length and the images per sample. A key is filled in if all recordings
    had the same value. Keys that the workload gives stay.
    """
    if not is_learned_file(values.get("model")):
        return values
    learned = load(values["model"])
    base, first = learned.base, learned.lists[0]
    shape = {"batch": base.batch, "sequence": base.sequence}
    filled = {KEY_OF[name]: size for name, size in shape.items() if size
              and not any(events.varies(name) or getattr(events.shapes[0], name) != size for events in learned.lists)}
    if base.images % base.batch == 0 and not first.varies("images") and base.images:
        filled["images_per_sample"] = base.images // base.batch
    return filled | values


def save(path: str | os.PathLike[str], learned: Learned) -> None:
    """Writes the formula's file, whole or not at all."""
    write_whole(os.fspath(path), to_bytes(learned))


def to_bytes(learned: Learned) -> bytes:
    """The content of the formula's file."""
    arrays: dict[str, Any] = {}
    lists = []
    for number, event_list in enumerate(learned.lists):
        events = event_list.events
        columns = {name: getattr(events, name) for name in ("kind", "buffer", "moment", "step")}
        columns |= events.buffers.by_name()
        columns["coefficients"] = events.sizes.coefficients
        arrays |= {f"{number}_{name}": column for name, column in columns.items()}
        lists.append({"names": events.names, "terms": [_term(term) for term in events.sizes.terms],
                      "shapes": [list(shape) for shape in event_list.shapes],
                      "interpolated": event_list.interpolated, "moved_frees": event_list.moved_frees})
    header = {"schema_version": SCHEMA_VERSION, "source": SOURCE, "lists": lists, "workload": learned.workload,
              "command": learned.command, "facts": asdict(learned.facts), "provenance": learned.provenance}
    arrays["header"] = np.frombuffer(json.dumps(header, separators=(",", ":")).encode(), dtype=np.uint8)
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def load(path: str | os.PathLike[str]) -> Learned:
    """Reads and checks the file of a learned formula.

    Raises:
        InputError: the file is missing, damaged, of another schema version, or not a learned formula.
    """
    name = file_name(path)
    try:
        modified = Path(path).stat().st_mtime_ns
    except (OSError, ValueError):
        raise InputError(f"{name}: no such file: peakcast learn … -o FILE makes one") from None
    return _load(os.fspath(path), modified, name)


@lru_cache(maxsize=8)
def _load(path: str, _modified: int, name: str) -> Learned:
    try:
        arrays, header = read_arrays(path)
        if header.get("source") != SOURCE:
            raise InputError(f"{name}: a formula, but not one that peakcast learn wrote")
        if header["schema_version"] != SCHEMA_VERSION:
            raise InputError(f"{name}: schema {header['schema_version']} of learned formulas, this version reads "
                             f"{SCHEMA_VERSION}: learn it again")
        return _assemble(arrays, header)
    except InputError:
        raise
    except NotAFile as error:
        raise InputError(f"{name}: cannot be read: {error.strerror}") from None
    except TooLarge as error:
        raise InputError(f"{name}: {error}: not a learned formula") from None
    except Exception as error:  # a damaged file can raise any error of zipfile, zlib, json and numpy
        raise InputError(f"{name}: not a learned formula, or damaged ({type(error).__name__}): "
                         "learn it again") from None


def _assemble(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> Learned:
    lists = []
    for number, described in enumerate(header["lists"]):
        part = {name.partition("_")[2]: array for name, array in arrays.items() if name.startswith(f"{number}_")}
        sizes = SizeTable(tuple(_from_term(term) for term in described["terms"]), part["coefficients"])
        buffers = Buffers.from_names(part)
        events = EventList(part["kind"], part["buffer"], part["moment"], part["step"], buffers, sizes,
                           tuple(map(str, described["names"])))
        shapes = tuple(Shape(*map(_count, shape)) for shape in described["shapes"])
        _check(events, shapes)
        lists.append(LearnedList(events, shapes, tuple(described["interpolated"]), int(described["moved_frees"])))
    if not lists:
        raise ValueError("no list")
    facts = header["facts"]
    parameters = tuple(Parameter(**{**p, "shape": tuple(p["shape"])}) for p in facts["parameters"])
    workload, provenance = header["workload"], header["provenance"]
    if not isinstance(provenance, dict) or not (workload is None or isinstance(workload, dict)):
        raise ValueError("header")
    return Learned(tuple(lists), workload, tuple(map(str, header["command"])),
                   ModelFacts(**{**facts, "parameters": parameters}), provenance)


def _check(events: EventList, shapes: tuple[Shape, ...]) -> None:
    """Checks that every index is in range, and that only live buffers are freed.

    Raises:
        ValueError: one of them does not hold.
    """
    known = np.isin(events.kind, (EventType.FREE, EventType.ALLOCATE, EventType.EMPTY_CACHE, EventType.SYNCHRONIZE))
    known |= (events.kind >= EventType.RECORD_STREAM) & (events.kind < 1 << 7)
    if not (shapes and len(events.kind) and known.all() and events.sizes.coefficients.dtype == np.int64
            and events.is_consistent((events.step, 1 << 7), (events.buffers.stream, 1 << 7))
            and events.sizes.terms and events.sizes.terms[0] == Monomial((0, 0, 0))):
        raise ValueError("inconsistent")
    order = np.argsort(events.buffer, kind="stable")
    changes, owner = events.sign[order], events.buffer[order]
    changes, owner = changes[changes != 0], owner[changes != 0]
    first = np.diff(owner, prepend=-1) != 0
    if not ((changes == 1) == first).all() or (np.bincount(owner, minlength=1) > 2).any():
        raise ValueError("a buffer is freed that does not live")


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError("shape")
    return value


def _term(term) -> Any:
    return term_to_json(term) if isinstance(term, (Monomial, Workspace)) else learned_terms.to_json(term)


def _from_term(document: Any):
    if isinstance(document, dict):
        return learned_terms.from_json(document)
    term = term_from_json(document)
    if isinstance(term, Monomial):
        learned_terms.exponents_of(document)
    elif term.function not in FUNCTIONS:
        raise ValueError("function")
    return term
