"""Predicted against measured: the signed error of each figure, and what the headline says of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from calibrate.evidence import predictions, sources
from calibrate.evidence.predictions import Key, Predicted
from calibrate.evidence.sources import Basis, Kind, Row, Source

CLOSE = 0.01
"""An error beyond this needs a cause, or is listed as unexplained."""
WORST = 10
JOBS = (Kind.TRAINING, Kind.FORWARD, Kind.INFERENCE)
"""Kinds of rows that the headline is about."""
GROUPS = {"allocated": ("requested_bytes", "allocated_bytes"), "reserved": ("reserved_bytes",),
          "device": ("device_bytes",)}
"""Quantities that are judged together. What nvidia-smi shows is compared with reserved bytes: CUDA's context is not
predicted."""
COMPARED_WITH = {"device_bytes": "reserved_bytes"}
UNNAMED = "not named"


@dataclass(frozen=True)
class Figure:
    """One measured figure of a row, beside its prediction."""

    source: Source
    row: Row
    quantity: str
    measured: int
    predicted: int

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return (self.predicted - self.measured) / self.measured

    @property
    def is_close(self) -> bool:
        """Whether the error is at most :data:`CLOSE`."""
        return abs(self.error) <= CLOSE

    @property
    def group(self) -> str:
        return next(name for name, quantities in GROUPS.items() if self.quantity in quantities)

    @property
    def is_judged(self) -> bool:
        """Whether the headline counts it: nothing was assumed or chosen after the error was seen."""
        return self.row.kind in JOBS and self.row.basis is Basis.PUBLISHED and not self.row.fitted \
            and self.group != "device"


@dataclass(frozen=True)
class Share:
    """How close a group of figures is."""

    figures: int
    close: int
    worst: float

    @property
    def portion(self) -> float:
        """The share of figures whose error is at most :data:`CLOSE`."""
        return self.close / self.figures


def share(figures: Iterable[Figure]) -> Share | None:
    """Counts a group of figures; None: there are none. The worst error keeps its sign."""
    listed = list(figures)
    if not listed:
        return None
    return Share(len(listed), sum(figure.is_close for figure in listed),
                 max((figure.error for figure in listed), key=abs))


@dataclass(frozen=True)
class Comparison:
    """All rows with their errors.

    Attributes:
        unpredicted: rows without a prediction of their present reconstruction.
        predictions: what was found, by source and row.
    """

    sources: tuple[Source, ...]
    figures: tuple[Figure, ...]
    unpredicted: tuple[tuple[Source, Row], ...]
    predictions: Mapping[Key, Predicted]

    @cached_property
    def judged(self) -> list[Figure]:
        """The figures of the headline."""
        return [figure for figure in self.figures if figure.is_judged]

    @cached_property
    def date(self) -> str:
        """The day of the latest prediction."""
        return max((entry.date for entry in self.predictions.values()), default="")

    @cached_property
    def unexplained(self) -> list[Figure]:
        """Figures of jobs beyond :data:`CLOSE` whose row has no cause."""
        return [figure for figure in self.figures
                if figure.row.kind in JOBS and not figure.is_close and not figure.row.cause]

    @property
    def gpus(self) -> set[str]:
        """The GPUs of judged rows, as their sources name them."""
        return {figure.row.gpu for figure in self.judged if figure.row.gpu}

    @property
    def judged_sources(self) -> set[str]:
        return {figure.source.name for figure in self.judged}

    def worst(self, most: int = WORST) -> list[Figure]:
        """The judged figures with the largest errors."""
        return sorted(self.judged, key=lambda figure: -abs(figure.error))[:most]


def measurements(figures: Iterable[Figure]) -> int:
    """The number of rows that figures are of."""
    return len({(figure.source.name, figure.row.id) for figure in figures})


def jobs(figures: Iterable[Figure]) -> int:
    """The number of jobs that figures are of: one run may have been measured at several moments."""
    return len({(figure.source.name, figure.row.run) for figure in figures})


def by(figures: Iterable[Figure], key: Callable[[Figure], str]) -> dict[str, list[Figure]]:
    """Figures by the value of ``key``, in the order of the values."""
    groups: dict[str, list[Figure]] = defaultdict(list)
    for figure in figures:
        groups[key(figure)].append(figure)
    return dict(sorted(groups.items()))


def gpu_of(figure: Figure) -> str:
    return figure.row.gpu or UNNAMED


def load() -> Comparison:
    """The comparison of the evidence that comes with peakcast."""
    return make(sources.read_all(), predictions.read())


def make(listed: Iterable[Source], entries: Mapping[Key, Predicted]) -> Comparison:
    """Compares every measured figure that is predicted."""
    everything, figures, unpredicted = tuple(listed), [], []
    for source in everything:
        for row in source.rows:
            found = predictions.of(source, row, entries)
            if found is None:
                unpredicted.append((source, row))
                continue
            for quantity, measured in row.measured.items():
                predicted = found.bytes[COMPARED_WITH.get(quantity, quantity)]
                figures.append(Figure(source, row, quantity, measured, predicted))
    return Comparison(everything, tuple(figures), tuple(unpredicted), dict(entries))
