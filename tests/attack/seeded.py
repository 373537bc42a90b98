"""Seeded bugs: each is put into a copy of the code, and the attack must find it there."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.attack import fuzzing, programs
from tests.attack.fuzzing import Batch
from tests.attack.programs import ROOT, Died
from tests.attack.seeded_bugs import TABLE
from tests.attack.worker import CURRENT

COPIED = ("predictor", "calibrate", "tests", "scripts")
BATCHES = 40
"""Batches of a format that are tried, the first of them those of the attack itself."""


@dataclass(frozen=True)
class Bug:
    """A bug, as a patch.

    Attributes:
        name: what is wrong.
        file: where, relative to the repository.
        old, new: text of the file, and what it becomes.
        by: the parts of the attack that are run until one finds it: ``fuzz FORMAT``, ``relations KIND ROUNDS``, or
            ``disturbances NAME``. An attack that ends without an answer has found nothing.
        met: the commit that mended it in this project; empty if it was made up.
    """

    name: str
    file: str
    old: str
    new: str
    by: str
    met: str = ""


BUGS = tuple(Bug(*row) for row in TABLE)


@contextmanager
def copy(bug: Bug) -> Iterator[Path]:
    """A copy of the code with the bug in it. Shipped formulas and measurements are not copied."""
    with tempfile.TemporaryDirectory(prefix="attack-") as name:
        root = Path(name)
        for directory in COPIED:
            shutil.copytree(ROOT / directory, root / directory, ignore=shutil.ignore_patterns("__pycache__", "snapshots", "release-*"))
        (root / "profiles").symlink_to(ROOT / "profiles")
        shutil.copy(ROOT / "pyproject.toml", root)
        path = root / bug.file
        content = path.read_text()
        if content.count(bug.old) != 1:
            raise ValueError(f"{bug.name}: {bug.file} has its text {content.count(bug.old)} times: write the patch anew")
        path.write_text(content.replace(bug.old, bug.new))
        yield root


def found(bug: Bug) -> dict[str, Any]:
    """Whether the attack finds a bug, and by what."""
    with copy(bug) as root:
        part, *words = bug.by.split(" ", 1)
        try:
            problem = {"fuzz": _fuzz, "relations": _relations, "disturbances": _disturbances}[part](words[0], root)
            said = problem or ""
        except Died as error:
            problem, said = None, f"no answer: {error}"
    for place in (sys.prefix, sys.base_prefix):  # results name no directory of a machine
        said = said.replace(place, "/venv")
    return {"met": bug.met, "file": bug.file, "found_by": bug.by if problem else "", "problem": said[-800:]}


def _fuzz(grammar: str, root: Path) -> str | None:
    for seed in range(BATCHES):
        row = fuzzing.run(Batch(grammar, seed), root, "--until-first")
        for finding in row["findings"]:
            if _is_fine(finding["input"]):
                return finding["problem"]
    return None


def _is_fine(found: dict[str, Any] | None) -> bool:
    """Whether the code without the bug has no problem with an input; False if it is not known."""
    if found is None:
        return False
    with tempfile.TemporaryDirectory(prefix="attack-") as name:
        (Path(name) / CURRENT).write_text(json.dumps(found))
        (Path(name) / "inside").mkdir()
        return programs.answer("worker", "--current", name)["problem"] is None


def _relations(words: str, root: Path) -> str | None:
    kind, _, rounds = words.rpartition(" ")
    row = programs.answer("relations", kind, 0, rounds, "--until-first", root=root)
    return str(row["violations"][0]) if row["violations"] else None


def _disturbances(name: str, root: Path) -> str | None:
    return next(iter(programs.answer("disturbances", name, root=root)), None)
