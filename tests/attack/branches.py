"""The share of the branches of some code that the attack reached, by coverage.py."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from predictor.common.errors import InputError
from tests.attack.programs import ROOT

OF = "predictor/readers"
"""The code whose branches are counted."""


@dataclass(frozen=True)
class Branches:
    """Numbers of branches, and of those that were taken at least once; the lines, too."""

    all: int
    reached: int
    lines: int
    lines_reached: int

    @property
    def share(self) -> float:
        return self.reached / self.all


def _coverage(path: Path):
    try:
        import coverage
    except ImportError:
        raise InputError("--branches needs coverage.py: pip install coverage") from None
    return coverage.Coverage(data_file=str(path), branch=True, source=[str(ROOT / OF)], config_file=False)


@contextmanager
def recorded_to(path: Path) -> Iterator[None]:
    """Records the branches that are taken inside this context. Nothing of the code should be imported before."""
    measured = _coverage(path)
    measured.start()
    try:
        yield
    finally:
        measured.stop()
        measured.save()


def of(paths: list[Path]) -> Branches:
    """The branches that were taken in any of several records."""
    with tempfile.TemporaryDirectory() as directory:
        measured = _coverage(Path(directory) / "all")
        measured.combine([str(path) for path in paths], keep=True)
        report = Path(directory) / "report.json"
        measured.json_report(outfile=str(report), ignore_errors=True)
        totals = json.loads(report.read_text())["totals"]
    return Branches(totals["num_branches"], totals["covered_branches"], totals["num_statements"], totals["covered_lines"])
