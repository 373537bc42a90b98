"""README and documentation: commands print what the pages show, options exist, links lead somewhere."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
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

LONG = {
    ("how-to/from-your-files.md", "predict --from docs/examples/finetune.sh"): "traced",
    ("how-to/from-your-files.md", "predict --from docs/examples/swift.sh"): "traced",
    ("how-to/in-training.md", "dryrun"): "runs a script on the emulated GPU",
    ("how-to/inference.md", "predict llava-1.5-7b --mode inference --sequence-length 700"): "traced",
    ("how-to/inference.md", "predict llava-1.5-7b --mode inference --conversation"): "traced",
    ("how-to/largest-batch.md", "predict --workload docs/examples/job.yaml --samples"): "many lengths",
    ("how-to/measure.md", "measure llava-1.5-7b"): "runs a job on the emulated GPU",
    ("how-to/plan.md", "plan llava-1.5-7b --sequence-length 1024 --gpu a100-40gb --gpus 4 --global-batch-size 64 --write"):
        "the search of the command above it, once more",
    ("how-to/reports.md", "report profiles/h200"): "traced",
    ("how-to/whole-training.md", "predict llama-3.1-8b"): "traced",
    ("tutorials/your-own-model.md", "predict Qwen/Qwen2.5-VL-7B-Instruct"): "traced",
}
"""Page and first words of a command that the long tests run -> why it takes many seconds."""
NOT_RUN = {
    ("how-to/calibrate.md", "calibrate"): "needs a GPU; tests/calibrate/campaign runs small ones on the emulated GPU"}
"""Page and first words of a command whose arguments are only parsed -> why."""
IN_TURN = {
    ("how-to/calibrate.md", "predict"): "reads the profile that the command above it makes",
    ("how-to/explore.md", "explore"): "a minute",
    ("how-to/in-training.md", "report run.json"): "reads the record that the script above it makes",
    ("how-to/learn.md", "learn llava-1.5-7b"): "minutes",
    ("how-to/learn.md", "learn --batches"): "runs a script of the reader's",
    ("how-to/learn.md", "predict mine.npz"): "reads what the command above it makes",
    ("how-to/measure.md", "measure --snapshot"): "goes on with the command above it",
    ("how-to/measure.md", "explain --measured"): "reads what the command above it makes",
    ("how-to/other-versions.md", "predict"): "needs an environment of the reader's",
    ("how-to/out-of-memory.md", "replay"): "reads a snapshot of the reader's",
    ("how-to/run-a-job.md", "dryrun"): "runs a script on the emulated GPU",
    ("tutorials/your-own-model.md", "predict path/to/config.json"): "reads a file of the reader's",
}
"""Page and first words of a command that tests/test_docs_in_turn.py runs among the long tests -> why not by itself."""
COMPARED_ELSEWHERE = {
    ("how-to/reports.md", "report profiles/h100-80gb"): "tests/calibrate/commands/test_report_command.py"}
"""Page and first words of a command that takes long -> the test that runs it for further claims, too."""
EXAMPLES = [example for file in FILES for example in documents.examples(file)
            if example.words and not example.words[0].startswith("-")]


def is_in(table: Mapping[tuple[str, str], str], example: Example) -> bool:
    return any(example.page == f"docs/pages/{page}" and shlex.join(example.words).startswith(start) for page, start in table)


RUN = [example for example in EXAMPLES if not any(is_in(table, example) for table in (LONG, NOT_RUN, IN_TURN, COMPARED_ELSEWHERE))]
MADE = {PAGES / page: path for page, path in generated.ELSEWHERE.items()}
"""Pages that stand elsewhere, by the place that the site gives them."""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """The working directory: files of the repository are there, and what commands write is not written into it."""
    for entry in ("docs", "profiles", "scripts", "tests", "README.md"):
        (tmp_path / entry).symlink_to(ROOT / entry)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # of ``python`` in a command


@pytest.mark.parametrize("example", RUN, ids=str)
def test_a_command_prints_what_the_page_shows(example: Example, repository, formula_cache, capfd):
    check_output(example, capfd)


@pytest.mark.parametrize("example", [example for example in EXAMPLES if is_in(LONG, example)], ids=str)
def test_a_command_that_takes_long_prints_what_the_page_shows(example: Example, repository, formula_cache, capfd):
    check_output(example, capfd)


def check_output(example: Example, capfd) -> None:
    code = cli.main(example.words)
    printed = capfd.readouterr()
    shown = example.output or "…"
    lost = documents.missing(shown, printed.out) and documents.missing(shown, printed.err + printed.out)
    assert (code in (0, 1), lost) == (True, []), printed.err


@pytest.mark.parametrize("page, start", COMPARED_ELSEWHERE)
def test_what_is_compared_elsewhere_is_named_there(page, start):
    text = (ROOT / COMPARED_ELSEWHERE[page, start]).read_text()
    assert f'"{page}"' in text and "documents.missing(" in text


@pytest.mark.parametrize("example", [example for example in EXAMPLES if is_in(NOT_RUN | IN_TURN, example)], ids=str)
def test_a_command_that_is_not_run_here_has_arguments_that_exist(example: Example):
    cli.parsed(cli.load_command(example.words[0])[1], example.words[1:])


@pytest.mark.parametrize("page, start", [*LONG, *NOT_RUN, *IN_TURN, *COMPARED_ELSEWHERE])
def test_one_command_of_a_page_begins_so(page, start):
    assert sum(is_in({(page, start): ""}, example) for example in EXAMPLES) == 1


def test_a_page_says_which_of_its_outputs_the_test_command_does_not_compare():
    not_compared = [example for example in EXAMPLES if example.output and is_in(LONG | NOT_RUN | IN_TURN, example)]
    assert [example for example in EXAMPLES if example.is_recorded] == not_compared


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


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The directory of the built site; a warning is an error."""
    directory = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "docs/mkdocs.yml"), site_dir=str(directory), strict=True))
    return directory


def test_the_site_builds_without_warnings(site):
    pages = [path.read_text() for path in site.rglob("*.html")]
    assert len(pages) > 30
    assert any('<code class="option">--json</code>' in page for page in pages)
    assert not any("\\|" in page for page in pages)
    assert not [link for page in pages for link in re.findall(r'(?:src|<link[^>]+href)="(https?://[^"]+)', page)]


def test_the_search_leaves_out_the_tables_of_evidence(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {name for name in found if name.startswith("evidence/")} == {"evidence/index.html"}


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_examples_of_a_help_text_parse(name: str):
    module, parser = cli.load_command(name)
    examples = re.findall(r"^ *(peakcast .+?)(?: {3,}.*)?$", re.sub(r"\\\n +", "", module.EXAMPLES), re.MULTILINE)
    for line in examples:
        for words in documents.peakcast(line):
            cli.parsed(parser, words[1:])
    assert examples


NAMED = [(documents.name(file), words) for file in [*(ROOT / ".github").rglob("*.yml"), *(ROOT / "scripts").glob("*.py")]
         for words in documents.named_commands(file.read_text()) if words[0] in cli.COMMANDS]
"""The commands that issue forms and the helps of scripts name."""


def test_issue_forms_and_helps_of_scripts_name_commands():
    assert {".github/ISSUE_TEMPLATE/measurement.yml", "scripts/file_measurement.py"} <= {file for file, _ in NAMED}


@pytest.mark.parametrize("file, words", NAMED)
def test_a_command_that_a_form_or_a_help_names_parses(file: str, words: tuple[str, ...]):
    cli.parsed(cli.load_command(words[0])[1], words[1:])


ONLY_JSON = ("calibrate", "schema")
"""Commands whose ``-o`` writes JSON in any case."""


@pytest.mark.parametrize("words", [words for words in sorted({example.words for example in EXAMPLES} | {words for _, words in NAMED})
                                   if "-o" in words and words[0] not in ONLY_JSON], ids=shlex.join)
def test_a_command_that_writes_a_json_file_asks_for_json(words: tuple[str, ...]):
    assert not words[words.index("-o") + 1].endswith(".json") or "--json" in words
