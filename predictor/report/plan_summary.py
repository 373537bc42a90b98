"""Renders the short answer of ``peakcast plan``: at most 40 lines of 100 characters, unless ``--top`` is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.plan.plan import Plan
from predictor.plan.search import WORTH
from predictor.report import plan as whole
from predictor.report import remedies
from predictor.report.layout import counted, details_line, on_one_screen, print_wrapped, table
from predictor.report.units import gib, size_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SIZES = ((6, 5), (6, 3), (4, 3), (3, 2), (2, 1))
"""Configurations and knobs, the most that fit. On one GPU a plain loop may be a sixth configuration."""
LONG_WORD = len("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
"""Characters of the longest word of a knob, which must not be broken."""
LONGEST_NAME = 60
"""Characters of a line of a knob's name; longer names are wrapped, to leave room for their costs."""
OTHER = " *"
"""Follows the name of a configuration that trains something else, or in another loop."""


def report(console: Console, plan: Plan, *, all_ranked: bool = False, wrote: str = "") -> None:
    """Prints the proposal, the first of the ranking, the knobs that give most, how to launch it, and where the rest is.

    Args:
        all_ranked: whether to print the whole ranking, whatever fits on one screen.
    """
    def sized(console: Console, size: tuple[int, int]) -> None:
        whole.head(console, plan)
        if plan.found.fitting:
            _ranking(console, plan, size[0])
        if any(knob.gives_reserved_bytes for knob in plan.knobs):
            console.print(changes(plan, size[1]))
            console.print()
        whole.files(console, plan, wrote)
        if plan.proposed and plan.source is None:
            whole.typed(console, plan.proposed)
            console.print()
        cautions = plan.proposed.prediction.cautions if plan.proposed else ()
        print_wrapped(console, *map(remedies.caution, cautions), _rest(plan, size[0]))

    found = len(plan.found.fitting)
    on_one_screen(console, sized, [(found if all_ranked else rows, knobs) for rows, knobs in SIZES])


def _ranking(console: Console, plan: Plan, most: int) -> None:
    """Prints the first configurations with their costs, relative to the cost of the first."""
    shown = plan.found.fitting[:most]
    lengths = len({row.candidate.sequence for row in shown}) > 1
    rows = table("configuration", "micro\nbatch", "accumu-\nlation", *(["tokens"] if lengths else []),
                 "reserved\n(GiB)", "cost", numbers=True)
    rows.columns[0].no_wrap = False
    unit = whole.cost(plan, shown[0]).seconds or 1  # 0 for a learned job without a list of parameters
    for row in shown:
        rows.add_row(row.setting.name + (OTHER if row.setting.differs else ""), f"{row.candidate.batch:,}",
                     f"{row.candidate.accumulation:,}", *([f"{row.candidate.sequence or 0:,}"] if lengths else []),
                     gib(row.prediction.peak_reserved_bytes), f"{whole.cost(plan, row).seconds / unit:.3f}")
    console.print(rows)
    if any(whole.cost(plan, row).seconds < unit and not row.setting.differs for row in shown) and plan.gpus == 1:
        print_wrapped(console, "On one GPU DeepSpeed, which partitions nothing there, comes before a plain loop only "
                               f"if it saves more than {WORTH:.0%}.")
    if any(row.setting.differs for row in shown):
        print_wrapped(console, "* trains something else, or not in Hugging Face's Trainer (--details says how): such "
                               "configurations come last, whatever they cost.")
    console.print()


def changes(plan: Plan, most: int) -> Table:
    """A table of the changes that lower the reserved peak most."""
    before = f"{size_text(plan.before.reserved_bytes)} on a larger GPU"
    rows = table(f"from {whole.STANDING[plan.standing]},\n{before}", "reserved\nsaved (GiB)", "costs")
    rows.columns[1].no_wrap, rows.columns[1].justify = True, "right"
    rows.columns[0].min_width, rows.columns[0].max_width = LONG_WORD, LONGEST_NAME
    rows.columns[2].ratio, rows.expand = 1, True  # else rich cuts off what a column of minimal width leaves no room for
    giving = [knob for knob in plan.knobs if (knob.gives_reserved_bytes or 0) > 0]
    for knob in sorted(giving, key=lambda knob: -(knob.gives_reserved_bytes or 0))[:most]:
        rows.add_row(whole.knob_text(knob), whole.signed(knob.gives_reserved_bytes), knob.costs)
    return rows


def _rest(plan: Plan, most: int) -> str:
    """A sentence that says what ``--details`` has beside the short answer."""
    return details_line(
        f"what was read from {plan.source.file}" if plan.source else "",
        counted(len(plan.found.fitting) - most, "configuration"), "the best of each method" if plan.methods else "",
        "what was left out", "all knobs", "how costs are estimated", counted(len(plan.not_modelled), "caution"))
