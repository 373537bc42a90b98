"""What the README prints is what its commands print today."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from predictor.cli import main

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
FIRST = re.findall(r"\.venv/bin/peakcast (predict .+)", TEXT)[0]
LARGER = (FIRST.replace("size 16", "size 32").replace("length 1024", "length 2048")
          .replace("a100-40gb", "h100-80gb"))
REPORT = re.findall(r"^peakcast (report .+) -o report$", TEXT, re.MULTILINE)[0]
OUTPUTS = re.findall(r"^```text\n(.+?)\n```$", TEXT, re.MULTILINE | re.DOTALL)
"""Every block of text: the answers in order, and among them the drawing of how it works."""


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that ``peakcast`` prints, without spaces at their ends."""
    main(shlex.split(command))
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def missing(shown: str, lines: list[str]) -> list[str]:
    """The parts between ``…`` that do not stand in the output, as they are and one after the other."""
    text, lost = "\n".join(lines), []
    for part in shown.split("\n…\n"):
        _before, found, after = text.partition(part)
        lost += [] if found else [part]
        text = after if found else text
    return lost


@pytest.mark.parametrize("block, command", [(0, FIRST), (1, LARGER), (3, REPORT)], ids=["first", "larger", "report"])
def test_an_output_is_what_its_command_prints(block, command, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert missing(OUTPUTS[block], printed(command, capsys)) == []


def test_each_output_is_compared_but_the_drawing():
    assert len(OUTPUTS) == 4 and OUTPUTS[2].startswith(" config.json ─►")


def test_the_first_output_is_whole(capsys):
    assert OUTPUTS[0].splitlines() == printed(FIRST, capsys)


def test_the_largest_batch_and_the_longest_sequence_are_those_of_the_first_command(capsys):
    quoted, = re.findall(r'"(The\s+largest batch that fits is .+? tokens\.)"', TEXT, re.DOTALL)
    answer = " ".join(printed(f"{FIRST} --maximum-load", capsys))
    assert " ".join(quoted.split()) in " ".join(answer.split())
