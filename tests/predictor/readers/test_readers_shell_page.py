"""Every example of ``docs/pages/reference/shell.md`` is read as the page says, and as bash runs it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest

from predictor.readers import shell, shell_expansion
from tests.documents import PAGES

CELL = r"(?:`` (.+?) ``|`(.+?)`)"
ROW = re.compile(rf"^\| {CELL} \| (.+) \|$", re.MULTILINE)
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", (PAGES / "reference/shell.md").read_text(),
                           re.MULTILINE | re.DOTALL))


def rows(section: str) -> list[tuple[str, str]]:
    return [(one or other, said) for one, other, said in ROW.findall(SECTIONS[section])]


WORKED_OUT, OPEN = rows("What is worked out"), rows("What stays open")


def of_train(script: str) -> shell.Command:
    [command] = [command for command in shell.commands(script, "run.sh") if command.words[0] == "train"]
    return command


def test_the_page_has_examples():
    assert len(WORKED_OUT) > 10 and len(OPEN) > 10


@pytest.mark.parametrize("script, words", WORKED_OUT, ids=[script for script, _ in WORKED_OUT])
def test_words_are_those_that_the_page_shows(script, words):
    assert of_train(script).words[1:] == words.strip("`").split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="compares with bash")
def test_words_are_those_of_bash(tmp_path):
    (tmp_path / "folder").mkdir()
    lines = [f"(unset BS N; {script})" for script, _ in WORKED_OUT]
    program = "train() { printf '%s\\n' \"train $*\"; }\n" + "\n".join(lines)
    ran = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    printed = [line.removeprefix("train ") for line in ran.stdout.splitlines() if line.startswith("train ")]
    assert printed == [words.strip("`") for _, words in WORKED_OUT]


@pytest.mark.parametrize("script, reason", OPEN, ids=[script for script, _ in OPEN])
def test_a_value_stays_open_for_the_reason_that_the_page_gives(script, reason):
    command = of_train(script)
    left = next(word for word in command.words if shell_expansion.LEFT.match(word))
    assert shell_expansion.why(left, command.unknown).startswith(reason)


@pytest.mark.parametrize("start", re.findall(r"`([^`…]+)`", SECTIONS["Which command is the training"].partition(
    "These start a training:")[2].partition("Any of them")[0]), ids=shlex.quote)
def test_every_command_that_the_page_names_is_known(start):
    from predictor.readers import command

    if not start.startswith("--"):
        assert command.parse([*shlex.split(start), "job.yaml" if start.startswith("-m") else "train.py"], "run.sh")
