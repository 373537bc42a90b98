"""The figure of peaks by factor: stacked bars of some cases, predicted above measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calibrate.regression.histories import DEVICE_ONLY
from calibrate.regression.report import Report
from calibrate.report.regression import chart
from calibrate.report.regression.chart import Scale
from calibrate.report.regression.figures import Figure
from predictor.report.timeline_columns import STACK
from predictor.report.units import GIB, gib, size_text

WHOLE = "measured"
"""Name in place of a factor for all measured bytes of a case without a memory history. Drawn as an outline."""
STACKED = (*(factor.value for factor in STACK), DEVICE_ONLY, WHOLE)
"""Parts of a bar from left to right; also classes of ``page.css``."""
LEFT, RIGHT, EACH = 84, 652, 138


@dataclass(frozen=True)
class Pair:
    """The two bars of one case: bytes by factor, predicted and measured."""

    title: str
    predicted: Mapping[str, int]
    measured: Mapping[str, int]

    @property
    def sizes(self) -> tuple[int, int]:
        """Predicted and measured bytes."""
        return sum(self.predicted.values()), sum(self.measured.values())


def breakdown(report: Report) -> Figure | None:
    """Draws the worst case, a case in the middle, and the worst case with a memory history, if any."""
    pairs = _pairs(report)
    if not pairs:
        return None
    used = [name for name in STACKED if any(pair.predicted.get(name) or pair.measured.get(name) for pair in pairs)]
    items = [(chart.box(-5, -5, 10, 10, f"f-{name}"), _words(name)) for name in used]
    body = chart.legend(LEFT, 16, items)
    top = 46 + chart.LEGEND_ROW * chart.flow(LEFT, items)[-1][1]
    for place, pair in enumerate(pairs):
        body += _bars(pair, top + EACH * place)
    sizes = "; ".join(f"{pair.title}, predicted {size_text(pair.sizes[0])}, measured {size_text(pair.sizes[1])}"
                     for pair in pairs)
    history = " With a memory history, requested bytes at each peak, both by factor (predicted without a profile)." \
        if report.history else ""
    return Figure("breakdown", "Cases side by side", f"{sizes}.",
                  "Predicted allocated bytes by factor at the predicted peak, above the measured peak: of the case "
                  "whose allocated peak is furthest off, and of one in the middle by size (of another recipe, if there "
                  f"is one).{history}",
                  top - 20 + EACH * len(pairs), tuple(body))


def _words(name: str) -> str:
    return "measured (no history)" if name == WHOLE else name.replace("_", " ")


def _pairs(report: Report) -> list[Pair]:
    known = sorted((comparison for comparison in report.comparisons if comparison.error("allocated") is not None),
                   key=lambda comparison: comparison.peaks["allocated"].both_bytes[0])
    chosen = {}
    if known:
        worst = max(known, key=lambda comparison: abs(comparison.error("allocated") or 0.0))
        others = [comparison for comparison in known
                  if comparison.case.workload.recipe != worst.case.workload.recipe] or \
            [comparison for comparison in known if comparison is not worst]
        chosen = {"Furthest off": worst} | ({"In the middle": others[len(others) // 2]} if others else {})
    pairs = [Pair(f"{place}: {comparison.case.name}", comparison.factors,
                  {WHOLE: comparison.peaks["allocated"].both_bytes[0]}) for place, comparison in chosen.items()]
    if report.history:
        pairs.append(Pair(f"With its memory history: {report.history.case.name}", report.history.predicted,
                          report.history.measured))
    return pairs


def _bars(pair: Pair, y: float) -> list[str]:
    scale = Scale(0, max(pair.sizes) / GIB, LEFT, RIGHT)
    parts = [chart.text(8, y + 4, chart.fitting(pair.title, 440), "label"),
             *chart.level(scale, chart.even(scale.high), y + 14, y + 84, "{:g}".format)]
    for row, words, sizes, total in ((20, "predicted", pair.predicted, pair.sizes[0]),
                                     (52, "measured", pair.measured, pair.sizes[1])):
        parts += [chart.text(LEFT - 6, y + row + 16, words, "", "end"),
                  chart.text(scale(total / GIB) + 6, y + row + 16, f"{gib(total)} GiB")]
        x = 0
        for name in STACKED:
            left, x = x, x + sizes.get(name, 0)
            if x > left:
                parts.append(chart.box(scale(left / GIB), y + row, scale(x / GIB) - scale(left / GIB), 24,
                                       f"f-{name}", f"{_words(name)}: {size_text(x - left)}"))
    difference = pair.sizes[0] - pair.sizes[1]
    how = "more" if difference > 0 else "less"
    words = f"predicted {abs(difference):,} bytes {how}" if difference else "equal to the byte"
    return [*parts, chart.text(752, y + 4, words, "tick", "end")]
