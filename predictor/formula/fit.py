"""Fits recordings of one regime at a few shapes to one event list whose sizes are polynomials of the shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from operator import attrgetter

import numpy as np

from predictor.events.events import FACTORS, MOMENTS, Buffers, EventList, Factor, Moment
from predictor.events.micro_step import MicroStep
from predictor.events.regimes import NotOneRegime
from predictor.events.sizes import CONSTANT, CONSTANT_TERM, Monomial, Polynomial, Shape, SizeTable, Workspace
from predictor.trace.recorder import RecordedBuffer, Recording

DEGREES = {"batch": 1, "sequence": 2, "images": 1}
"""Highest power of each symbol. Attention masks and scores are quadratic in the sequence."""
PACKED = [Monomial(exponents) for exponents in (CONSTANT, (1, 0, 0), (1, 1, 0), (2, 2, 0))]
"""Terms for several samples in one packed row: a constant, one for each sample, each token, and each pair of tokens."""

NAMES = attrgetter("module", "operator", "role", "recomputed")
"""What the buffers of one row have in common within a regime, beside a workspace's function."""


def monomials(shapes: Sequence[Shape], packed: bool = False, squares: bool = False) -> list[Monomial]:
    """The monomials whose coefficients the shapes can determine. A symbol that never varies is left out.

    Args:
        packed: whether the samples of a micro-batch share one row.
        squares: whether to add the square of the batch or, of a single sample, of its images.
    """
    varying = [len({tuple(shape)[axis] for shape in shapes}) > 1 for axis in range(3)]
    if len({shape.images / shape.batch for shape in shapes}) == 1:
        varying[2] = False  # proportional to the batch
    if packed and varying[0]:
        return PACKED + [Monomial((0, 0, 1))] * varying[2]
    powers = [range(limit + 1) if varies else (0,) for limit, varies in zip(DEGREES.values(), varying)]
    square = [Monomial((2, 0, 0) if varying[0] else (0, 0, 2))] * squares
    return [Monomial((batch, sequence, images)) for batch, sequence, images in product(*powers)
            if not (images and (batch or sequence))] + square


def fit(recordings: Sequence[Recording], shapes: Sequence[Shape], parameters: Sequence[str],
        packed: bool = False, squares: bool = False) -> MicroStep:
    """Fits every size exactly.

    Args:
        recordings: one for each shape, at least as many as :func:`monomials` returns.
        parameters: names of the parameters, in the order in which ``MicroStep.ready`` numbers them.
        packed: whether the samples of a micro-batch share one row.
        squares: as of :func:`monomials`.

    Raises:
        NotOneRegime: the recordings have different event lists, or sizes that no polynomial gives.
    """
    first = recordings[0]
    for recording, shape in zip(recordings, shapes):
        same_list(first, recording, shape)
    solve = _Solver(shapes, monomials(shapes, packed, squares))
    expressions: dict[tuple, Polynomial | Workspace] = {}
    rows: dict[Polynomial | Workspace, int] = {}
    size = np.empty(len(first.buffers), dtype=np.int32)
    for index, versions in enumerate(zip(*(recording.buffers for recording in recordings))):
        key = tuple(buffer.size for buffer in versions)
        if key not in expressions:
            expressions[key] = _expression(solve, key)
        size[index] = rows.setdefault(expressions[key], len(rows))
    return MicroStep(_event_list(first, size, _table(list(rows))), _ready(first, parameters), _persistent(first),
                     *_of_sharded(first), *_of_generation(first),
                     outputs=None if first.outputs is None else np.array(first.outputs, dtype=np.int32))


def same_list(first: Recording, other: Recording, shape: Shape) -> None:
    """Raises :class:`NotOneRegime` if two recordings have different event lists; ``shape`` is that of ``other``."""
    if other is not first and signature(other) != signature(first):
        raise NotOneRegime(f"the list of events at {shape} is not that of the first shape")


def signature(recording: Recording) -> list:
    """The parts of a recording that are equal within one regime: everything but the bytes."""
    workspaces = [(row, b.size[0]) for row, b in enumerate(recording.buffers) if isinstance(b.size, tuple)]
    return [recording.events, recording.moments, recording.gradients, recording.marks, recording.owners,
            recording.cuts, recording.cache, recording.outputs, workspaces, list(map(NAMES, recording.buffers))]


class _Solver:
    """Finds the polynomial through values at the shapes, in exact arithmetic, and checks it at every shape."""

    def __init__(self, shapes: Sequence[Shape], terms: Sequence[Monomial]) -> None:
        self.monomials = terms
        self._design = [[int(m(shape)) for m in self.monomials] for shape in shapes]
        self._chosen, self._inverse = _invert(self._design)

    def __call__(self, values: Sequence[int]) -> Polynomial:
        known = [values[row] for row in self._chosen]
        coefficients = [sum(a * b for a, b in zip(row, known)) for row in self._inverse]
        for row, value in zip(self._design, values):
            if sum(a * b for a, b in zip(row, coefficients)) != value:
                raise NotOneRegime(f"sizes {list(values)} are no polynomial of the shapes")
        if any(c.denominator != 1 for c in coefficients):
            raise NotOneRegime(f"sizes {list(values)} need fractions of bytes")
        return Polynomial(tuple((m.exponents, int(c)) for m, c in zip(self.monomials, coefficients) if c))


def solver(shapes: Sequence[Shape], terms: Sequence[Monomial]) -> Callable[[Sequence[int]], Polynomial]:
    """A function from values at the shapes to the polynomial of these terms that has the values.

    The function raises :class:`NotOneRegime` if there is no such polynomial with integer coefficients.

    Raises:
        ValueError: the shapes do not determine the terms' coefficients.
    """
    return _Solver(shapes, terms)


def _invert(design: list[list[int]]) -> tuple[list[int], list[list[Fraction]]]:
    """Chooses linearly independent rows, and inverts the square matrix of these rows (Gauss-Jordan)."""
    width = len(design[0])
    chosen: list[int] = []
    rows: list[list[Fraction]] = []  # each a reduced row, followed by the combination of chosen rows that gives it
    for index, values in enumerate(design):
        row = [Fraction(v) for v in values] + [Fraction(int(len(chosen) == k)) for k in range(width)]
        for other in rows:
            pivot = next(k for k in range(width) if other[k])
            row = [a - row[pivot] * b for a, b in zip(row, other)]
        new_pivot = next((k for k in range(width) if row[k]), None)
        if new_pivot is None:
            continue
        row = [a / row[new_pivot] for a in row]
        rows = [[a - other[new_pivot] * b for a, b in zip(other, row)] for other in rows] + [row]
        chosen.append(index)
        if len(chosen) == width:
            ordered = sorted(rows, key=lambda r: next(k for k in range(width) if r[k]))
            return chosen, [r[width:] for r in ordered]
    raise ValueError("these shapes cannot tell the monomials apart")


def _expression(solve: _Solver, versions: tuple) -> Polynomial | Workspace:
    if not isinstance(versions[0], tuple):
        return solve(versions)
    dimensions = zip(*(dims for _, dims in versions))
    return Workspace(versions[0][0], tuple(solve(values) for values in dimensions))


def _table(expressions: list[Polynomial | Workspace]) -> SizeTable:
    terms: dict = {CONSTANT_TERM: 0}
    for expression in expressions:
        if isinstance(expression, Workspace):
            terms.setdefault(expression, len(terms))
        else:
            for exponents, _ in expression.parts:
                terms.setdefault(Monomial(exponents), len(terms))
    coefficients = np.zeros((len(expressions), len(terms)), dtype=np.int64)
    for row, expression in enumerate(expressions):
        if isinstance(expression, Workspace):
            coefficients[row, terms[expression]] = 1
        else:
            for exponents, factor in expression.parts:
                coefficients[row, terms[Monomial(exponents)]] = factor
    return SizeTable(tuple(terms), coefficients)


_FACTOR_OF_ROLE = {"gradient": Factor.GRADIENTS, "input": Factor.INPUTS, "workspace": Factor.TEMPORARIES,
                   "cache": Factor.KV_CACHE}


def factor_of(buffer: RecordedBuffer) -> Factor:
    """The factor of a buffer: results of forward are activations, recomputed ones too; those of backward, temporaries.

    ``torch.distributed._tools.mem_tracker`` splits them in the same way. The result of a collective is a copy of its
    own, and counts as communication.
    """
    if buffer.role in _FACTOR_OF_ROLE:
        return _FACTOR_OF_ROLE[buffer.role]
    if buffer.operator.startswith("_c10d_functional::"):
        return Factor.COMMUNICATION
    if buffer.moment is Moment.BACKWARD and not buffer.recomputed:
        return Factor.TEMPORARIES
    return Factor.ACTIVATIONS


def _event_list(recording: Recording, size: np.ndarray, sizes: SizeTable) -> EventList:
    names: dict[str, int] = {"": 0}
    index = {name: row for row, name in enumerate(FACTORS)}
    moments = {moment: row for row, moment in enumerate(MOMENTS)}
    buffers = Buffers(
        size=size,
        stream=np.zeros(len(size), dtype=np.int8),
        factor=np.array([index[factor_of(b)] for b in recording.buffers], dtype=np.int8),
        module=np.array([names.setdefault(b.module, len(names)) for b in recording.buffers], dtype=np.int32),
        operator=np.array([names.setdefault(b.operator, len(names)) for b in recording.buffers], dtype=np.int32),
    )
    events = np.array(recording.events, dtype=np.int32)
    return EventList(
        kind=np.sign(events).astype(np.int8),
        buffer=np.abs(events) - 1,
        moment=np.array([moments[m] for m in recording.moments], dtype=np.int8),
        step=np.ones(len(events), dtype=np.int8),
        buffers=buffers,
        sizes=sizes,
        names=tuple(names),
    )


def _ready(recording: Recording, parameters: Sequence[str]) -> np.ndarray:
    order = {name: index for index, name in enumerate(parameters)}
    rows = [(done.position, order[done.parameter], done.row) for done in recording.gradients]
    return np.array(rows, dtype=np.int32).reshape(-1, 3)


def _of_sharded(recording: Recording) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Marks and owners of a step that was traced with the hooks of ZeRO-3 or FSDP2; (None, None) otherwise."""
    if not recording.owners:
        return None, None
    return (np.array(recording.marks, dtype=np.int32).reshape(-1, 3),
            np.array(recording.owners, dtype=np.int32).reshape(-1, 2))


def _of_generation(recording: Recording) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Cuts (starts of forwards) and cache (buffers of keys and values) of a call of ``generate``, else (None, None)."""
    if Moment.PREFILL not in recording.moments:
        return None, None
    return np.array(recording.cuts, dtype=np.int32), np.array(recording.cache, dtype=np.int32).reshape(-1, 2)


def _persistent(recording: Recording) -> np.ndarray:
    freed = {-event - 1 for event in recording.events if event < 0} | set(recording.outputs or ())
    return np.array([row for row, buffer in enumerate(recording.buffers)
                     if row not in freed and buffer.role != "gradient"], dtype=np.int32)
