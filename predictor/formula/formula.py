"""Formulas and their files: the events of one micro-step, with sizes as functions of the shape.

Files are small ``.npz`` archives without pickles: arrays and one JSON header. Reading them needs no torch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from predictor.common import arrays as files
from predictor.common.errors import InputError
from predictor.events.events import Buffers, EventList, Rows
from predictor.events.micro_step import Mark, MicroStep
from predictor.events.model_facts import ModelFacts, Parameter
from predictor.events.regimes import Regime
from predictor.events.sizes import Monomial, Polynomial, Shape, SizeTable, Workspace
from predictor.events.workspaces import FUNCTIONS
from predictor.formula.repeats import Repeats, are_consistent, unrolled

SCHEMA_VERSION = 2
READ = (1, 2)
"""Versions of the schema that are read. Version 1, of release 0.1.0, has numbers of buffers where 2 has ages."""
OPTIONAL = ("marks", "owners", "cuts", "cache", "outputs")
"""Arrays that a file may lack: the first two belong to steps traced for ZeRO-3 or FSDP2, the next two to ``generate``,
the last to loops that keep the model's output."""
MOST_EVENTS = 2_300_000
"""Limit on the events of a formula with its loops unrolled: some 48 images of 768 x 1024 pixels of Qwen2.5-VL-7B. A
prediction takes up to 10 s and 0.7 GB there, and 5 s and 0.5 GB with half as many."""


@dataclass(frozen=True, eq=False)
class Formula:
    """The traced events of one workload in one regime of shapes.

    Attributes:
        micro: the events of one micro-step, or of one call of ``generate``.
        facts: the model's parameters and token counts.
        provenance: source of the formula, model, and the key that it was traced for.
        repeats: for a family of regimes, the loops that its members have more passes of; ``micro`` is that of the
            smallest member.
    """

    micro: MicroStep
    facts: ModelFacts
    provenance: dict[str, Any]
    repeats: Repeats | None = None

    @property
    def regime(self) -> Regime:
        """The regime: the shapes for which the formula holds."""
        return Regime.parse(self.provenance["key"]["regime"])

    def at(self, shape: Shape) -> Formula:
        """The formula itself, or that of the member of its family that contains a shape.

        Raises:
            InputError: it would have too many events, or its file is damaged.
        """
        return self if self.repeats is None else _member(self, shape.batch, shape.images)


@lru_cache(maxsize=8)
def _member(family: Formula, batch: int, images: int) -> Formula:
    """The formula of a member of a family of regimes."""
    shape, repeats = Shape(batch, 0, images), family.repeats
    assert repeats is not None
    more = family.regime.units(shape) - repeats.units
    if len(family.micro.events) + more * int(repeats.blocks[:, 1].sum(dtype=np.int64)) > MOST_EVENTS:
        raise InputError(f"per_device_train_batch_size {batch}, {images} images in it: a step has more than "
                         f"{MOST_EVENTS:,} events: give fewer")
    try:
        micro = unrolled(family.micro, repeats, more)
    except ValueError as error:
        raise InputError(f"the formula of {family.provenance['model']} for several images is damaged ({error}): clear "
                         "the cache") from None
    tokens = family.facts.room(images // batch)
    facts = replace(family.facts, image_tokens=(tokens,) * batch)
    key = family.provenance["key"] | {"regime": list(family.regime.member(shape).names())}
    return Formula(micro, facts, family.provenance | {"key": key})


def to_bytes(formula: Formula) -> bytes:
    """The content of the formula's file."""
    events, buffers = formula.micro.events, formula.micro.events.buffers
    header = {
        "schema_version": SCHEMA_VERSION,
        "provenance": formula.provenance,
        "facts": {name: value for name, value in asdict(formula.facts).items() if name != "image_tokens" or value},
        "names": events.names,
        "terms": [term_to_json(term) for term in events.sizes.terms],
    }
    loops = {}
    if formula.repeats is not None:
        header["units"] = formula.repeats.units
        loops = {"blocks": formula.repeats.blocks, "frees": _relative(formula.repeats.frees)}
    arrays = loops | {
        "ages": _ages(events),
        "moment": events.moment,
        "coefficients": events.sizes.coefficients,
        "ready": formula.micro.ready,
        "persistent": formula.micro.persistent,
        "header": np.frombuffer(json.dumps(header, separators=(",", ":")).encode(), dtype=np.uint8),
    }
    arrays |= buffers.by_name()
    arrays |= {name: getattr(formula.micro, name) for name in OPTIONAL if getattr(formula.micro, name) is not None}
    return files.to_bytes(arrays)


def _ages(events: EventList) -> np.ndarray:
    """The events as a file has them: 0 for an allocation; for a free, its buffer's number among the newest, from 1.

    Buffers are numbered in the order of their allocation. Ages compress far better than numbers of buffers, because
    they are the same in each of many equal layers.
    """
    allocates = events.kind > 0
    return np.where(allocates, 0, np.cumsum(allocates) - events.buffer).astype(np.int32)


def _aged(ages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kind and buffer of each event, from :func:`_ages`."""
    rows = np.cumsum(ages == 0, dtype=np.int32) - 1 - np.maximum(ages - 1, 0)
    return np.where(ages == 0, 1, -1).astype(np.int8), rows


def _signed(events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same from the first schema: the buffer's number from 1, negative for a free."""
    return np.sign(events).astype(np.int8), np.abs(events) - 1


def _relative(frees: np.ndarray) -> np.ndarray:
    """:attr:`Repeats.frees` as a file has them, column by column, which compresses well as :func:`_ages` does.

    Positions of frees are relative to the free before, and those of allocations to their free; 0 stands for -1.
    """
    columns = frees.T.copy()
    columns[0] = np.diff(frees[:, 0], prepend=0)
    columns[1] = frees[:, 0] - frees[:, 1]
    columns[5] = np.where(frees[:, 5] < 0, 0, frees[:, 0] - frees[:, 5])
    return columns


def _absolute(columns: np.ndarray) -> np.ndarray:
    """The opposite of :func:`_relative`."""
    frees = columns.T.copy()
    frees[:, 0] = np.cumsum(columns[0])
    frees[:, 1] = frees[:, 0] - columns[1]
    frees[:, 5] = np.where(columns[5] == 0, -1, frees[:, 0] - columns[5])
    return frees


def load(path: Path) -> Formula:
    """Reads and checks a formula file.

    Raises:
        InputError: the file is missing, truncated, of another schema version, or inconsistent.
    """
    try:
        arrays, header = files.load(path)
        if header["schema_version"] not in READ:
            raise InputError(f"{path}: formula schema {header['schema_version']}, this version reads "
                             f"{SCHEMA_VERSION}: delete the file, it is made again")
        return _checked(_assemble(arrays, header))
    except InputError:
        raise
    except Exception as error:  # a damaged file can raise any error of zipfile, zlib, json and numpy
        raise InputError(f"{path}: not a formula file ({type(error).__name__}): delete it, it is made again") from None


def _assemble(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> Formula:
    buffers, is_first = Buffers.from_names(arrays), header["schema_version"] == 1
    kind, row = _signed(arrays["events"]) if is_first else _aged(arrays["ages"])
    sizes = SizeTable(tuple(term_from_json(term) for term in header["terms"]), arrays["coefficients"])
    events = EventList(
        kind=kind, buffer=row, moment=arrays["moment"],
        step=np.ones(len(kind), dtype=np.int8), buffers=buffers, sizes=sizes, names=tuple(header["names"]))
    facts = header["facts"]
    parameters = tuple(Parameter(**{**p, "shape": tuple(p["shape"])}) for p in facts["parameters"])
    facts = ModelFacts(**{**facts, "parameters": parameters, "image_tokens": tuple(facts.get("image_tokens", ()))})
    repeats = Repeats(header["units"], arrays["blocks"], arrays["frees"] if is_first else _absolute(
        arrays["frees"])) if "units" in header else None
    return Formula(MicroStep(events, arrays["ready"], arrays["persistent"], *map(arrays.get, OPTIONAL)),
                   facts, header["provenance"], repeats)


def _checked(formula: Formula) -> Formula:
    """Returns the formula if every index in it is in range.

    Raises:
        ValueError: one is not.
    """
    events, facts = formula.micro.events, formula.facts
    ready, buffers = formula.micro.ready, len(events.buffers)
    if not (events.is_consistent((ready[:, 1], len(facts.parameters)), (ready[:, 2], buffers),
                                 (formula.micro.persistent, buffers), *_limits_of_sharded(formula),
                                 *_limits_of_generation(formula), *_limits_of_outputs(formula))
            and np.isin(events.kind, (-1, 1)).all() and any(p.trainable for p in facts.parameters)
            and all(not isinstance(t, Workspace) or t.function in FUNCTIONS for t in events.sizes.terms)
            and are_consistent(formula.micro, formula.repeats)):
        raise ValueError("inconsistent")
    return formula


def _limits_of_sharded(formula: Formula) -> list[Rows]:
    """Index columns of a step traced for ZeRO-3 or FSDP2, each with its limit."""
    marks, owners = formula.micro.marks, formula.micro.owners
    if marks is None or owners is None:
        return []
    modules = 1 + int(owners[:, 0].max(initial=0))
    limits = {Mark.READY: len(formula.micro.ready), Mark.EXTERNAL: len(owners)} | dict.fromkeys(
        (Mark.HOLD, Mark.LET_GO), len(formula.facts.parameters))
    return [(marks[:, 0], len(formula.micro.events) + 1), (marks[:, 1], len(Mark)), (owners[:, 0], modules),
            (owners[:, 1], len(formula.facts.parameters)),
            *((marks[marks[:, 1] == mark, 2], limit) for mark, limit in limits.items())]


def _limits_of_generation(formula: Formula) -> list[Rows]:
    """Index columns of a call of ``generate``, each with its limit; -1, for no buffer, is checked as 0."""
    cuts, cache, events = formula.micro.cuts, formula.micro.cache, formula.micro.events
    return [] if cuts is None or cache is None else [(cuts, len(events) + 1),
                                                     (np.maximum(cache, 0).ravel(), len(events.buffers))]


def _limits_of_outputs(formula: Formula) -> list[Rows]:
    """The column of buffers that the model's output keeps, with its limit."""
    outputs = formula.micro.outputs
    return [] if outputs is None else [(outputs, len(formula.micro.events.buffers))]


def term_to_json(term) -> list:
    """A term as JSON data."""
    if isinstance(term, Monomial):
        return list(term.exponents)
    return [term.function, [dimension.parts for dimension in term.dimensions]]


LARGEST_POWER = 4
"""Largest exponent of a quantity in a size; sizes of shipped formulas grow with the square of a quantity at most."""


def term_from_json(document: list):
    """The opposite of :func:`term_to_json`.

    Raises:
        ValueError: the document has other values than whole numbers, or exponents that no size has.
    """
    if not isinstance(document[0], str):
        return Monomial(_exponents(document))
    dimensions = (Polynomial(tuple((_exponents(e), _whole(c)) for e, c in parts)) for parts in document[1])
    return Workspace(document[0], tuple(dimensions))


def _exponents(document: list) -> tuple[int, int, int]:
    batch, sequence, images = map(_whole, document)
    if not all(0 <= power <= LARGEST_POWER for power in (batch, sequence, images)):
        raise ValueError("exponents")
    return batch, sequence, images


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("not a whole number")
    return value
