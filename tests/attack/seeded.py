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
from typing import Any, NamedTuple

from predictor.common.storage import cache_directory
from tests.attack import fuzzing, programs
from tests.attack.fuzzing import Batch
from tests.attack.programs import ROOT, Died
from tests.attack.seeded_bugs import TABLE
from tests.attack.worker import CURRENT

COPIED = ("predictor", "calibrate", "tests", "scripts")


@dataclass(frozen=True)
class Bug:
    """A bug, as a patch.

    Attributes:
        name: what is wrong.
        file: where, relative to the repository.
        old, new: text of the file, and what it becomes.
        by: the part of the attack that is run until it finds the bug: ``fuzz FORMAT``, ``relations KIND ROUNDS``, or
            ``disturbances NAME``. Of a format, only the whole attack's own batches are run. An attack that ends without
            an answer has found nothing.
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
    """A copy of the code with the bug in it, and of the formulas that were traced so far. Shipped formulas and measurements are linked."""
    with tempfile.TemporaryDirectory(prefix="attack-") as name:
        root = Path(name)
        for directory in COPIED:
            shutil.copytree(ROOT / directory, root / directory, ignore=shutil.ignore_patterns("__pycache__", "snapshots", "release-*"))
        (root / "profiles").symlink_to(ROOT / "profiles")
        shutil.copy(ROOT / "pyproject.toml", root)
        traced = (cache_directory() or root) / "formulas"
        if traced.is_dir():
            shutil.copytree(traced, root / programs.CACHE / "formulas")
        path = root / bug.file
        content = path.read_text()
        if content.count(bug.old) != 1:
            raise ValueError(f"{bug.name}: {bug.file} has its text {content.count(bug.old)} times: write the patch anew")
        path.write_text(content.replace(bug.old, bug.new))
        yield root


class Finding(NamedTuple):
    """What the attack said of a bug, and the number of the batch whose input showed it, if it was a batch."""

    said: str
    batch: int | None = None


def found(bug: Bug) -> dict[str, Any]:
    """Whether the attack finds a bug, and by what; of a batch, its number and how many the attack has of its format."""
    part, words = bug.by.split(" ", 1)
    with copy(bug) as root:
        try:
            finding = {"fuzz": _fuzz, "relations": _relations, "disturbances": _disturbances}[part](words, root)
            said = finding.said if finding else ""
        except Died as error:
            finding, said = None, f"no answer: {error}"
    for place in (sys.prefix, sys.base_prefix):  # results name no directory of a machine
        said = said.replace(place, "/venv")
    row = {"met": bug.met, "file": bug.file, "found_by": bug.by if finding else "", "problem": said[-800:]}
    return row | ({"batch": finding.batch, "batches": fuzzing.share(words)} if finding and finding.batch is not None else {})


def _fuzz(grammar: str, root: Path) -> Finding | None:
    for seed in range(fuzzing.share(grammar)):
        row = fuzzing.run(Batch(grammar, seed), root, "--until-first")
        for finding in row["findings"]:
            if _is_fine(finding["input"]):
                return Finding(finding["problem"], seed)
    return None


def _is_fine(found: dict[str, Any] | None) -> bool:
    """Whether the code without the bug has no problem with an input; False if it is not known."""
    if found is None:
        return False
    with tempfile.TemporaryDirectory(prefix="attack-") as name:
        (Path(name) / CURRENT).write_text(json.dumps(found))
        (Path(name) / "inside").mkdir()
        return programs.answer("worker", "--current", name)["problem"] is None


def _relations(words: str, root: Path) -> Finding | None:
    """The first violation, if the code without the bug has none in that round."""
    kind, _, rounds = words.rpartition(" ")
    violations = programs.answer("relations", kind, 0, rounds, "--until-first", root=root)["violations"]
    if not violations or programs.answer("relations", kind, violations[0]["round"], 1)["violations"]:
        return None
    return Finding(str(violations[0]))


def _disturbances(name: str, root: Path) -> Finding | None:
    """What is wrong after a disturbance, if without the bug nothing is; that it could not be made finds nothing."""
    wrong = programs.answer("disturbances", name, root=root)["disturbance"]
    return Finding(wrong[0]) if wrong and not programs.answer("disturbances", name)["disturbance"] else None
