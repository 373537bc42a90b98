"""The README is short, and its first commands and its picture are today's."""

from __future__ import annotations

import re
import shlex

from predictor.cli import main
from tests import documents
from tests.documents import ROOT

TEXT = (ROOT / "README.md").read_text()
MOST_LINES, MOST_WORDS = 120, 1_200
FIRST = documents.examples(ROOT / "README.md")[0]


def test_it_is_short():
    assert len(TEXT.splitlines()) <= MOST_LINES and len(TEXT.split()) <= MOST_WORDS


def test_the_first_output_is_whole(capsys):
    main(FIRST.words)
    assert FIRST.output.splitlines() == [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_the_picture_is_what_its_command_draws(tmp_path, capsys):
    command, file = re.findall(r"<!-- peakcast (explain .+) --picture (\S+) -->", TEXT)[0]
    main([*shlex.split(command), "--picture", str(tmp_path / "run.svg")])
    assert (ROOT / file).read_text() == (tmp_path / "run.svg").read_text()
