"""``scripts/build_explore_site.py``: the site of explore pages, with ``peakcast explore`` replaced where time matters."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from predictor import cli
from predictor.commands import options
from predictor.commands.registry import load_command
from predictor.formula import store

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import build_explore_site as site  # noqa: E402

PAGES = site.PAGES[:3]


@pytest.fixture
def explored(monkeypatch) -> list[list[str]]:
    """The calls of ``peakcast explore``, each of which writes an empty page."""
    calls = []

    def main(words):
        calls.append(words)
        Path(words[words.index("-o") + 1]).write_text("")
        return 0

    monkeypatch.setattr(site.cli, "main", main)
    return calls


def test_the_index_links_to_every_page_that_was_made(explored, tmp_path):
    assert site.main(["-o", str(tmp_path)], PAGES) == 0
    links = re.findall(r'<a href="(.+?)">', (tmp_path / "index.html").read_text())
    assert sorted(links) == sorted(path.name for path in tmp_path.glob("*.html") if path.name != "index.html")


def test_an_interrupted_build_makes_only_what_is_missing(explored, tmp_path):
    site.main(["-o", str(tmp_path)], PAGES[:2])
    site.main(["-o", str(tmp_path)], PAGES)
    assert len(explored) == len(PAGES)


def test_all_makes_every_page_again(explored, tmp_path):
    site.main(["-o", str(tmp_path)], PAGES)
    site.main(["-o", str(tmp_path), "--all"], PAGES)
    assert len(explored) == 2 * len(PAGES)


def test_a_page_that_fails_ends_the_build_without_an_index(monkeypatch, tmp_path):
    monkeypatch.setattr(site.cli, "main", lambda words: 2)
    assert site.main(["-o", str(tmp_path)], PAGES) == 2
    assert not (tmp_path / "index.html").exists()


@pytest.mark.parametrize("page", site.PAGES, ids=[page.name for page in site.PAGES])
def test_no_page_needs_a_trace_for_the_engine_that_it_starts_with(page):
    module, parser = load_command("explore")
    workload = options.workload(cli.parsed(parser, [*page.words, "-o", "page.html"]))
    from predictor.explore import settings

    with store.existing_only():
        settings.find(workload, (1,), iter)
