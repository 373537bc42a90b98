"""The page of a regression report: self-contained, reproducible, all figures drawn, names never taken for markup."""

import re
import xml.etree.ElementTree as xml
from dataclasses import replace
from pathlib import Path

import pytest

from calibrate.regression import causes, statistics
from calibrate.regression.baselines import Estimate
from calibrate.regression.baselines.grid import grid
from calibrate.regression.cases import Skipped
from calibrate.regression.gates import Gate, Result
from calibrate.regression.histories import DEVICE_ONLY, History
from calibrate.regression.report import Report
from calibrate.report.regression import chart, tables
from calibrate.report.regression.files import table
from calibrate.report.regression.markdown import markdown
from calibrate.report.regression.page import page
from tests.calibrate.regression_cases import GIB, case, compared

FIGURES = ["predicted-against-measured", "errors-by-group", "paper", "methods", "breakdown"]
NASTY = "/models/<script>alert(1)&|x`y"


def others(workload) -> dict[str, Estimate]:
    return {"equation_1": Estimate(9 * GIB), "deepspeed": Estimate(None, "it is <b>not</b> asked")}


def report(*, said=others, model: str = "llava-1.5-7b", survived: bool = True, off: int = GIB) -> Report:
    """Four jobs of the paper's grid, one beyond 2 %, with a memory history."""
    made = []
    for recipe in ("finetune", "pretrain"):
        for degree in (1, 8):
            one = case(sizes=(10 * GIB, 11 * GIB, 12 * GIB, None), group="paper", survived=survived, keys={
                "model": model, "recipe": recipe, "zero_stage": 2, "data_parallel_size": degree, "rank": degree - 1})
            made.append(compared(one, (10 * GIB, 11 * GIB, 12 * GIB, None)))
    made[-1] = compared(made[-1].case, (10 * GIB, 11 * GIB + off, 12 * GIB, None))
    history = History(made[-1].case, {"parameters": 9 * GIB, DEVICE_ONLY: GIB}, {"parameters": 10 * GIB})
    return Report(tuple(made), (Skipped(NASTY, 3, "cut <off>"),), tuple(statistics.groups(made)),
                  tuple(causes.explain(made)), history if survived else None, grid(made, said))


def figures(text: str) -> list[str]:
    return re.findall(r'<figure id="figure-([a-z-]+)">', text)


def test_nothing_is_loaded_from_anywhere():
    text = page(report(), command="peakcast report x")
    assert not re.search(r"https?://|<script|<iframe|<img|@import|url\(|\bsrc=", text)
    assert {link.split(":")[0][0] for link in re.findall(r'href="([^"]*)"', text)} == {"#", "d"}
    assert "default-src 'none'" in text


def test_the_same_report_is_the_same_bytes():
    assert page(report(), command="c") == page(report(), command="c")


def test_every_figure_is_there_once():
    assert figures(page(report())) == FIGURES


def test_without_other_methods_theirs_is_left_out():
    assert figures(page(report(said=None))) == [name for name in FIGURES if name != "methods"]


def test_without_a_measured_peak_there_is_none():
    assert figures(page(report(survived=False))) == []


@pytest.mark.parametrize("off", [0, 1, GIB], ids=["equal", "a byte", "a tenth"])
def test_figures_are_well_formed_whatever_the_errors(off):
    text = page(report(off=off))
    for drawn in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        assert xml.fromstring(drawn).find("title").text


def test_links_lead_to_what_is_there():
    text = page(report())
    assert set(re.findall(r'href="#([^"]*)"', text)) <= set(re.findall(r'id="([^"]*)"', text))


def test_a_name_cannot_become_markup():
    text = page(report(model=NASTY), command="peakcast report '<script>'")
    assert "<script" not in text and "<b>" not in text and "<off>" not in text
    assert "&lt;script&gt;alert(1)&amp;|x`y" in text


def test_a_name_cannot_break_a_markdown_table():
    lines = markdown(report(model=NASTY)).splitlines()
    row = next(line for line in lines if line.startswith("| model |"))
    assert row.count("|") - row.count("\\|") == len(tables.by_group(report().groups).heads) + 1
    assert "\\<script\\>alert(1)&\\|x\\`y" in row


def renamed(file: str) -> Report:
    """The report with one case of this file, and the file skipped."""
    made = report()
    first, *rest = made.comparisons
    return replace(made, comparisons=(replace(first, case=replace(first.case, file=file)), *rest),
                   skipped=(Skipped(file, 3, file),))


@pytest.mark.parametrize("form", [page, markdown, table])
def test_a_name_steers_no_terminal_in_any_form(form):
    text = form(renamed("runs\x1b]0;title\x07\u202e\nx.jsonl"))
    assert "x1b" in text and not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_a_name_is_no_formula_of_a_spreadsheet():
    text = table(renamed("=HYPERLINK(1)"))
    assert ",'=HYPERLINK(1)," in text and ",=HYPERLINK" not in text


def test_a_broken_gate_is_marked():
    gate = Gate("strict", {}, {})
    text = page(report(), [Result(gate, 4, ("strict: too far",)), Result(gate, 4, ())])
    assert '<li class="bad">Gate strict: too far</li>' in text
    assert '<li class="good">Gate strict: holds (4 cases)</li>' in text


def test_every_row_of_every_table_has_a_cell_for_each_head():
    made = report()
    found = [tables.overall(made.overall), tables.by_group(made.groups), tables.by_group(made.groups, short=True),
             tables.errors(made.groups, "allocated"), tables.verdicts(made.groups), tables.paper(made.paper),
             tables.methods(made.grid), tables.cases(made)]
    assert all(len(row) == len(table.heads) for table in found for row in table.rows)


def test_the_last_row_of_the_papers_grid_is_the_mean_error_of_each_method():
    table = tables.paper(report().paper)
    assert table.rows[-1] == ("MAPE, %", "", "", "", "", "2.27", "18.18", "")  # (1 / 11) / 4 and 2 / 11


def test_a_memory_history_is_drawn_by_factor_on_both_sides():
    text = page(report())
    assert "<title>device only: 1.00 GiB</title>" in text and text.count("<title>parameters: 10.00 GiB</title>") == 1


def test_what_no_memory_history_tells_apart_is_an_outline_with_a_legend_entry():
    text = page(report())
    assert ">measured (no history)</text>" in text and "<title>measured (no history): 11.00 GiB</title>" in text
    assert re.search(r"\.f-measured { fill: var\(--ground\); stroke: var\(--ink\);", text)


def test_styles_are_part_of_the_package():
    assert (Path(chart.__file__).parent / "page.css").read_text() in page(report())


@pytest.mark.parametrize("low, high", [(1, 1.69), (3, 4.5), (0.02, 300), (7e-8, 9e-8)])
def test_a_logarithmic_scale_has_ticks_wherever_it_is(low, high):
    assert all(low <= value <= high for value in chart.decades(low, high)) and chart.decades(low, high)


def test_a_legend_goes_on_in_the_next_row():
    places = chart.flow(700, [("", "first"), ("", "second")])
    assert places == [(700, 0), (700, 1)]
