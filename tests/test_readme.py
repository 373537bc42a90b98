"""The README is short, and its first commands and its picture are today's."""

from __future__ import annotations

import re
import shlex

from predictor.cli import main
from predictor.workload import support_matrix
from tests.documents import ROOT

TEXT = (ROOT / "README.md").read_text()
MOST_LINES, MOST_WORDS = 120, 1_200


def test_it_is_short():
    assert len(TEXT.splitlines()) <= MOST_LINES and len(TEXT.split()) <= MOST_WORDS


def test_the_picture_is_what_its_command_draws(tmp_path, capsys):
    command, file = re.findall(r"<!-- peakcast (explain .+) --picture (\S+) -->", TEXT)[0]
    main([*shlex.split(command), "--picture", str(tmp_path / "run.svg")])
    assert (ROOT / file).read_text() == (tmp_path / "run.svg").read_text()


def test_rows_of_the_matrix_are_those_of_the_support_matrix():
    engines = support_matrix.page().partition("## Precisions")[0].splitlines()
    rows = [line for line in TEXT.splitlines() if line.startswith(("| feature", "| no feature")) or " yes |" in line]
    assert len(rows) > 5 and [row for row in rows if row not in engines] == []


def test_the_row_of_the_emulated_gpu_is_what_the_report_says():
    report = " ".join((ROOT / "docs/pages/how-to/reports.md").read_text().split())
    cases = re.findall(r"allocated nothing; reserved nothing; .+? in (\d+) of", report)[0]
    assert f"| {cases} |  | {cases} of {cases}, +0.000% | {cases} of {cases}, +0.000% |" in TEXT
