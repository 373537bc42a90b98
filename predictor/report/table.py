"""Renders a prediction as tables and sentences for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from predictor.answer.prediction import Prediction
from predictor.common.safe_text import printable
from predictor.events.events import Factor
from predictor.report import (
    inference,
    interval_sources,
    loops,
    maximum_load,
    remedies,
    samples,
    value_sources,
    verdict,
)
from predictor.report.interval_sources import MEASURED_ON
from predictor.report.layout import table, wrapped
from predictor.report.units import gib, share, size_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SMALL = 1000
"""Factors of less than one part in so many of the total are small."""
FIRST_COLUMNS, MODULE_COLUMN = 34, 11  # usual widths in the factor table: the first columns together, and each module's
UNLIMITED = 10_000
"""Characters in a line that no table of modules fills."""


def report(console: Console, prediction: Prediction) -> None:
    """Prints the result of ``peakcast predict``."""
    head(console, prediction)
    factors(console, prediction)
    console.print(moment_table(prediction))
    console.print()
    if prediction.inference:
        console.print(inference.turn_table(prediction.inference))
        console.print()
    tail(console, prediction)


def head(console: Console, prediction: Prediction, *, brief: bool = False, peaks: bool = True) -> None:
    """Prints the verdict, the workload, and, with ``peaks``, their table; each peak in one line if ``brief``."""
    console.print(verdict.verdict(prediction), style=verdict.COLOURS[prediction.verdict])
    for line in wrapped(console, verdict.title(prediction), indent=0):
        console.print(line, style="dim")
    for sentence in prediction.assumptions:
        for line in wrapped(console, sentence, indent=0):
            console.print(line)
    console.print()
    rows = table("", "", "")
    for peak in verdict.bounds(prediction) if peaks else ():
        rows.add_row(peak.name, peak.size, peak.brief if brief else peak.meaning)
    if peaks:
        console.print(rows)
        console.print()
    console.print(verdict.peak_text(prediction.peak))
    for sentence in (*loops.sentences(prediction), *samples.sentences(prediction), *inference.sentences(prediction),
                     *maximum_load.sentences(prediction), *maximum_load.divided(prediction)):
        for line in wrapped(console, sentence, indent=0):
            console.print(line)
    console.print()


def tail(console: Console, prediction: Prediction) -> None:
    """Prints the sources of the values, the calibration, the defaults, and what is not modelled."""
    value_sources.report(console, prediction.source)
    for text in (f"Answered by: {prediction.provenance['answered_by']}.", *calibration(prediction),
                 *interval_sources.lines(prediction),
                 "Defaults: " + (", ".join(defaults(prediction)) or "none were needed"),
                 "Not modelled: " + ("; ".join(prediction.not_modelled) or "nothing that is known")):
        for line in wrapped(console, text, indent=0):
            console.print(line)
    mode = prediction.workload.get("mode", "training")
    judged = (remedies.remedy_text(remedy, mode) for remedy in prediction.remedies or ())
    for sentence in (*map(remedies.caution, prediction.cautions), *judged):
        for line in wrapped(console, sentence, indent=0):
            console.print(line)


def calibration(prediction: Prediction) -> list[str]:
    """A sentence about the profile and its intervals; without a profile, that there are none."""
    profile = prediction.provenance.get("profile")
    if not profile:
        return ["Calibration: none for this job: how far off requested, allocated and reserved bytes may be was not "
                "measured, which makes them no surer."]
    levels = {counter: f"{level:.0%}" for counter, level in profile["level"].items() if level is not None}
    outside = [counter for counter, level in profile["level"].items() if level is None]
    held = f"; intervals hold {' or '.join(sorted({*levels.values()}))} of held-out jobs" if levels else \
        "; no intervals are known"
    if outside:
        of = f"{held}, those of {' and '.join(levels)} bytes; of the others" if levels else ";"
        held = f"{of} this job is outside what it covered (see: not modelled): intervals are wider, and nobody knows " \
               "how many such jobs they hold"
    return [f"Calibration: {profile['name']}, {MEASURED_ON[profile['measured_on']]}{held}."]


def defaults(prediction: Prediction) -> list[str]:
    """``key value`` for each key that the user did not give and that has a default value."""
    return [f"{key} {_value(prediction.workload.get(key))}" for key in prediction.filled_in
            if key != "mode" and prediction.workload.get(key) not in (None, [], (), {})]


def factors(console: Console, prediction: Prediction) -> None:
    """Prints the factors of the peak, and notes about frozen parameters and about activations of frozen modules."""
    console.print(peak_table(prediction, console.width))
    frozen = prediction.frozen_bytes or 0
    if prediction.inference is None and 2 * frozen > prediction.factors.get(Factor.PARAMETERS, 0):
        for line in wrapped(console, f"{gib(frozen)}\xa0GiB of the parameters are frozen: every GPU holds them whole, "
                                     "so more GPUs do not lower that.", indent=0):
            console.print(line)
    passed = ", ".join(f"{module} {size_text(size)}" for module, size in prediction.passed_bytes.items() if size)
    if passed:
        for line in wrapped(console, "Backward also runs through modules of which nothing trains, and until then their "
                                     f"activations stay: {passed}.", indent=0):
            console.print(line)
    console.print()


def peak_table(prediction: Prediction, width: int, *, small: bool = True) -> Table:
    """The factors of the peak by the modules that tensors belong to. Arguments as for :func:`factor_table`."""
    owners = prediction.modules_attributed or prediction.modules
    return factor_table(replace(prediction, modules=owners), width, small=small)


class Divided(Protocol):
    """An allocated peak by factor, and by module and factor. A key that is plain text is a row of its own at the end.
    """

    @property
    def peak_allocated_bytes(self) -> int: ...

    @property
    def factors(self) -> Mapping[Any, int]: ...

    @property
    def modules(self) -> Mapping[str, Mapping[Any, int]]: ...


def factor_table(prediction: Divided, width: int, *, small: bool = True, point: str = "at the peak",
                 total: int | None = None) -> Table:
    """The bytes at one point, with a row for each factor and a column for each modality module.

    Args:
        small: keep rows of less than a thousandth of the total apart, instead of adding them up.
        point: the point's name.
        total: bytes at that point; None: those of the allocated peak.
    """
    from rich.console import Console
    from rich.measure import Measurement

    total = prediction.peak_allocated_bytes if total is None else total
    unlimited = Console(width=UNLIMITED)
    for most in range(max(2, (width - FIRST_COLUMNS) // MODULE_COLUMN), 1, -1):
        rows = _factor_table(prediction, merge_small(prediction.modules, most), small, f"{point} (GiB)", total)
        if Measurement.get(unlimited, unlimited.options, rows).maximum <= width:
            break  # long names take more than a usual column
    return rows


def _factor_table(prediction: Divided, modules: Mapping[str, Mapping[Any, int]], small: bool, head: str,
                  total: int) -> Table:
    names = (printable(name).replace("_", "_\n").replace(".", ".\n") for name in modules)
    rows = table(head, "all", "%", *names, numbers=True)
    kept = [factor for factor in dict.fromkeys((*Factor, *prediction.factors)) if prediction.factors.get(factor, 0)]
    others = [] if small else [factor for factor in kept if prediction.factors[factor] * SMALL < total]
    groups = [(getattr(factor, "value", factor), [factor]) for factor in kept if factor not in others]
    for name, group in (*groups, *([("others", others)] if others else [])):
        size = sum(prediction.factors[factor] for factor in group)
        cells = [sum(split.get(factor, 0) for factor in group) for split in modules.values()]
        rows.add_row(name, gib(size), share(size, total), *(gib(cell) if cell else "" for cell in cells))
    rows.add_row("total", gib(total), share(total, total), *(gib(sum(split.values())) for split in modules.values()),
                 style="bold")
    return rows


def merge_small(modules: Mapping[str, Mapping[Any, int]], most: int) -> dict[str, Mapping[Any, int]]:
    """The modules, largest first. If there are more than ``most``, the smallest are merged into "others"."""
    ordered = sorted(modules.items(), key=lambda item: -sum(item[1].values()))
    kept = ordered
    if len(ordered) > most:
        kept, rest = ordered[: most - 1], ordered[most - 1:]
        names = {factor for _, split in rest for factor in split}
        kept.append(("others", {f: sum(split.get(f, 0) for _, split in rest) for f in names}))
    return dict(kept)


def moment_table(prediction: Prediction) -> Table:
    """A table with the highest requested point of each moment."""
    rows = table("moment", "highest (GiB)", "step", "operator", "module")
    rows.columns[1].justify = rows.columns[2].justify = "right"
    for moment, point in prediction.moments.items():
        rows.add_row(moment.value, gib(point.get("requested_bytes", 0)), str(point.get("step", "")),
                     str(point.get("operator", "")), str(point.get("module", "")))
    return rows


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_value(item)}" for key, item in value.items())
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
