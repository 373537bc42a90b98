"""The page that lists every operator with a workspace."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from predictor.events import workspaces
from predictor.trace import operators

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
import list_workspaces  # noqa: E402


def test_the_page_is_what_the_tables_say():
    assert list_workspaces.TARGET.read_text() == list_workspaces.page()


def test_every_formula_is_used_by_an_operator():
    used = {name for play in operators.TABLE.values() for name in list_workspaces.formulas(play)}
    assert used == workspaces.FUNCTIONS.keys()


@pytest.mark.parametrize("word", ["--help", "--unknown"])
def test_only_a_bare_call_writes_the_page(word, monkeypatch, tmp_path, capsys):
    target = tmp_path / "page.md"
    monkeypatch.setattr(list_workspaces, "TARGET", target)
    monkeypatch.setattr(sys, "argv", ["list_workspaces.py", word])
    with pytest.raises(SystemExit):
        list_workspaces.main()
    assert not target.exists()
