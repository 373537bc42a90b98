"""README and documentation: commands print what the pages show, options exist, links lead somewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from calibrate.checks.registry import CHECKS
from predictor import cli
from tests import documents
from tests.documents import FILES, PAGES, ROOT, Example

SPEC = importlib.util.spec_from_file_location("generated", ROOT / "docs" / "generated.py")
generated = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generated)

EXAMPLES = [example for file in FILES for example in documents.examples(file)]
COMPARED_ELSEWHERE = {("docs/pages/how-to/reports.md", "report"): "tests/calibrate/commands/test_report_command.py"}
"""Page and command of an example that takes long -> the test that runs it for further claims, too."""
SHOWN = [example for example in EXAMPLES
         if example.output is not None and (example.page, example.words[0]) not in COMPARED_ELSEWHERE]
MADE = {PAGES / page: path for page, path in generated.ELSEWHERE.items()}
"""Pages that stand elsewhere, by the place that the site gives them."""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """The working directory: files of the repository are there, and what commands write is not written into it."""
    for entry in ("docs", "profiles", "scripts", "tests", "README.md"):
        (tmp_path / entry).symlink_to(ROOT / entry)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # of ``python`` in a command


@pytest.mark.parametrize("example", SHOWN, ids=str)
def test_a_command_prints_what_the_page_shows(example: Example, repository, formula_cache, capfd):
    code = cli.main(example.words)
    printed = capfd.readouterr()
    assert (code in (0, 1), documents.missing(example.output, printed.out)) == (True, []), printed.err


@pytest.mark.parametrize("page, command", COMPARED_ELSEWHERE)
def test_what_is_compared_elsewhere_is_named_there(page, command):
    text = (ROOT / COMPARED_ELSEWHERE[page, command]).read_text()
    assert f'"{page.removeprefix("docs/pages/")}"' in text and "documents.missing(" in text


@pytest.mark.parametrize("example", [example for example in EXAMPLES if example.output is None and example.words], ids=str)
def test_a_command_without_output_has_arguments_that_exist(example: Example):
    if not example.words[0].startswith("-"):
        cli.parsed(cli.load_command(example.words[0])[1], example.words[1:])


@pytest.mark.parametrize("file", FILES, ids=documents.name)
def test_scripts_and_checks_exist(file: Path):
    text = " ".join(file.read_text().split())
    assert [path for path in re.findall(r"python (scripts/\w+\.py)", text) if not (ROOT / path).exists()] == []
    checks = {*CHECKS, *re.findall(r'^    "(\w+)": Check\(', (ROOT / "scripts/check.py").read_text(), re.MULTILINE)}
    assert set(re.findall(r"scripts/check\.py ([a-z]\w+)", text)) <= checks


@pytest.mark.parametrize("file", documents.LINKED, ids=documents.name)
def test_every_link_leads_to_a_file_of_the_repository_and_a_heading(file: Path):
    for link in documents.links(file):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = file if not path else (file.parent / path).resolve()
        assert target.exists(), link
        assert not anchor or anchor in documents.anchors(target.read_text()), link


@pytest.mark.parametrize("page, link, of_the_site", [
    ("how-to/course.md", "[a](../../../profiles/pages/course.md#b)", "[a](../evidence/course.md#b)"),
    ("evidence/index.md", "[`a`](../../../profiles/pages/course.md)", "[`a`](course.md)"),
    ("index.md", "[a](../SECURITY.md)", "[a](reference/security.md)"),
    ("../SECURITY.md", "[a](../profiles/pages/attack.md)", "[a](../evidence/attack.md)"),
    ("../../CHANGELOG.md", "[a](docs/pages/how-to/plan.md)", "[a](how-to/plan.md)"),
    ("index.md", "`[a](../SECURITY.md)`", "`[a](../SECURITY.md)`"),
    ("index.md", "[a](#b)", "[a](#b)"), ("index.md", "[a](https://b/c)", "[a](https://b/c)")])
def test_the_site_translates_links_to_files_of_the_repository(page, link, of_the_site):
    assert generated.with_links_of_the_site(link, (PAGES / page).resolve()) == of_the_site


@pytest.mark.parametrize("page, path, shown", [(documents.name(file), *example) for file in FILES
                                               for example in documents.example_files(file)])
def test_a_page_shows_an_example_as_it_is(page, path, shown):
    assert shown + "\n" == (ROOT / path).read_text()


@pytest.mark.parametrize("page, code", [(documents.name(file), code) for file in FILES
                                        for code in documents.python(file)])
def test_python_of_a_page_runs(page, code, repository, capsys):
    exec(compile(code, page, "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", re.findall(r"[\w./-]+\.md", (ROOT / "docs/mkdocs.yml").read_text()))
def test_every_page_of_the_navigation_exists(path: str):
    assert MADE.get(PAGES / path, PAGES / path).exists()


def test_every_page_is_in_the_navigation():
    named = set(re.findall(r"[\w./-]+\.md", (ROOT / "docs/mkdocs.yml").read_text()))
    pages = {path.as_posix() for path in (file.relative_to(PAGES) for file in [*PAGES.rglob("*.md"), *MADE])
             if path.suffix == ".md"}
    assert pages == named


@pytest.mark.parametrize("name", generated.PARTS)
def test_every_generated_part_stands_in_one_page(name: str):
    assert sum(name == found["name"] for file in FILES for found in generated.PART.finditer(file.read_text())) == 1


def test_the_sentence_that_stands_for_a_part_is_not_in_the_site():
    assert "The built site" not in generated.with_parts((PAGES / "reference/supported.md").read_text())


def test_the_reference_has_every_command_and_every_key():
    commands, keys = generated.commands(), generated.workload_keys()
    assert all(f"## peakcast {name}\n" in commands for name in cli.COMMANDS)
    assert all(f"| `{name}` |" in keys for name in generated.KEYS if name != "torch_compile")
    assert "| `--gpu GPU` |" in commands.partition("## peakcast dryrun")[2].partition("\n## ")[0]
    assert "| `verdict` | `fits`, `uncertain` or `does_not_fit`" in generated.result_keys()


def test_the_page_of_security_has_every_command():
    table = re.findall(r"^\| (`.+?) \|", (ROOT / "docs/SECURITY.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"`(\w+)(?: --run)?`", " ".join(table))) == set(cli.COMMANDS)


def test_the_site_builds_without_warnings(tmp_path):
    build(load_config(str(ROOT / "docs/mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    pages = [path.read_text() for path in tmp_path.rglob("*.html")]
    assert len(pages) > 30
    assert any('<code class="option">--json</code>' in page for page in pages)
    assert not any("\\|" in page for page in pages)
    assert not [link for page in pages for link in re.findall(r'(?:src|<link[^>]+href)="(https?://[^"]+)', page)]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_examples_of_a_help_text_parse(name: str):
    module, parser = cli.load_command(name)
    examples = re.findall(r"^ *(peakcast .+?)(?: {3,}.*)?$", re.sub(r"\\\n +", "", module.EXAMPLES), re.MULTILINE)
    for line in examples:
        for words in documents.peakcast(line):
            cli.parsed(parser, words[1:])
    assert examples
