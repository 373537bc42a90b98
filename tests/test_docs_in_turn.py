"""Commands of the pages that go on with another one, or with a file of the reader's: run with what they need."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import documents
from tests.calibrate.learn.test_learn_truth import SCRIPT
from tests.calibrate.small_jobs import needs_emulator
from tests.documents import ROOT, Example
from tests.predictor.small import small_llama
from tests.test_docs import EXAMPLES, IN_TURN, is_in, repository  # noqa: F401 - a fixture

Words = tuple[str, ...]
READER = "/home/user/"
"""The directory of the reader in outputs that name it."""


def command(page: str, start: str) -> Example:
    """The one command of a page that begins so."""
    [found] = [example for example in EXAMPLES if is_in({(page, start): ""}, example)]
    return found


def run(words: Words) -> str:
    """What a command prints, in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "predictor", *words], text=True, capture_output=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"})
    assert done.returncode in (0, 1), done.stderr
    return done.stderr + done.stdout


def calibrated(here: Path, words: Words) -> Words:
    shutil.copy(ROOT / "profiles/h100-80gb/profile-emulated.json", here / "h100.json")
    return words


def measured(here: Path, words: Words) -> Words:
    """The command above has the job."""
    return (*command("how-to/measure.md", "measure llava-1.5-7b").words, *words[1:])


def with_record(here: Path, words: Words) -> Words:
    run(measured(here, command("how-to/measure.md", "measure --snapshot").words))
    return words


def with_run(here: Path, words: Words) -> Words:
    run((*command("how-to/measure.md", "measure llava-1.5-7b").words, "--json", "-o", "run.json"))
    return words


def with_script(here: Path, words: Words) -> Words:
    (here / "train.py").write_text(SCRIPT)
    return tuple(sys.executable if word == "python" else word for word in words)


def learned(here: Path, words: Words) -> Words:
    run(with_script(here, command("how-to/learn.md", "learn --batches").words))
    return words


def with_environment(here: Path, words: Words) -> Words:
    """``~/venv/bin/python`` starts the interpreter of these tests."""
    shutil.copy(ROOT / "docs/examples/job.yaml", here / "job.yaml")
    python = here / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return tuple(str(python) if word.startswith("~") else word for word in words)


def with_snapshot(here: Path, words: Words) -> Words:
    run(("predict", "--workload", "docs/examples/job.yaml", "--snapshot", "snapshot.pickle"))
    return words


def with_config(here: Path, words: Words) -> Words:
    (here / "path/to").mkdir(parents=True)
    (here / "path/to/config.json").write_text(json.dumps(small_llama(max_position_embeddings=4096)))
    return words


def as_it_is(here: Path, words: Words) -> Words:
    return words


PREPARED: dict[tuple[str, str], Callable[[Path, Words], Words]] = {
    ("how-to/calibrate.md", "predict"): calibrated, ("how-to/explore.md", "explore"): as_it_is,
    ("how-to/in-training.md", "report run.json"): with_run, ("how-to/learn.md", "learn llava-1.5-7b"): as_it_is,
    ("how-to/learn.md", "learn --batches"): with_script, ("how-to/learn.md", "predict mine.npz"): learned,
    ("how-to/measure.md", "measure --snapshot"): measured, ("how-to/measure.md", "explain --measured"): with_record,
    ("how-to/other-versions.md", "predict"): with_environment, ("how-to/out-of-memory.md", "replay"): with_snapshot,
    ("how-to/run-a-job.md", "dryrun"): as_it_is, ("tutorials/your-own-model.md", "predict path/to/config.json"): with_config,
}
"""Page and first words of a command -> what makes its files, and returns its words."""


@needs_emulator
@pytest.mark.usefixtures("repository", "formula_cache")
@pytest.mark.parametrize("page, start", PREPARED)
def test_a_command_that_needs_files_runs_with_them(page, start, tmp_path):
    example = command(page, start)
    printed = run(PREPARED[page, start](tmp_path, example.words))
    lost = documents.missing(example.output or "…", printed)
    assert [unit for unit in lost if READER not in unit] == []


def test_each_such_command_has_what_makes_its_files():
    assert PREPARED.keys() == IN_TURN.keys()
