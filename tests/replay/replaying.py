"""Runs the requests of the replay set and splits each answer into numbers and wording.

``requests.jsonl`` holds a request a line: its name, the words of the command line, and the files that it reads.
``answers.jsonl.xz`` holds, under the same names, what the command answered when the set was recorded:

- *numbers*: the exit code, and the JSON answer with every sentence replaced by an ellipsis: bytes, verdicts, keys, names;
- *wording*: the text on the terminal, the error, and the sentences of the JSON answer, in order.

Paths, durations, dates and the state of the cache do not count.
"""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from predictor import cli
from predictor.formula import tracing

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REQUESTS, ANSWERS = HERE / "requests.jsonl", HERE / "answers.jsonl.xz"
SNAPSHOTS = ROOT / "tests/data/snapshots"
SENTENCE = "…"
ONLY_TEXT = ("explore", "--help", "--version", "help")
"""Commands that have no JSON answer, or one that says only what was written."""
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
"""Requests that run ``python`` mean the interpreter of the tests."""
PASSING = re.compile(r"^seconds$|(^|_)(date|commit|command|machine|python|host|peak_host_bytes)$")
"""Keys of JSON answers that differ from run to run. A plan's estimated costs, such as ``products_seconds``, do not."""


@dataclass(frozen=True)
class Request:
    """One command line; ``layer`` is ``test`` (answered from shipped formulas) or ``all`` (traces or runs jobs)."""

    name: str
    argv: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    layer: str = "test"


@dataclass(frozen=True)
class Answer:
    """What a request was answered; see the module's docstring."""

    numbers: Any
    wording: Any


def requests() -> dict[str, Request]:
    """All requests by name, in their order."""
    rows = (json.loads(line) for line in REQUESTS.read_text().splitlines())
    return {row["name"]: Request(**row | {"argv": tuple(row["argv"])}) for row in rows}


def recorded() -> dict[str, Answer]:
    """The recorded answers by the names of their requests."""
    if not ANSWERS.is_file():
        return {}
    rows = (json.loads(line) for line in lzma.decompress(ANSWERS.read_bytes()).splitlines())
    return {row.pop("name"): Answer(**row) for row in rows}


def record(answers: Mapping[str, Answer]) -> None:
    """Writes answers in the order of their requests; those of requests that are gone are left out."""
    lines = (json.dumps({"name": name} | asdict(answers[name]), ensure_ascii=False) + "\n"
             for name in requests() if name in answers)
    ANSWERS.write_bytes(lzma.compress("".join(lines).encode(), preset=9))


def answer(request: Request) -> Answer:
    """Runs a request in a directory of its own, as text and, where there is such a form, as JSON."""
    with _directory(request) as (directory, argv):
        code, text, errors = _run(argv)
        numbers: dict[str, Any] = {"exit_code": code}
        wording: dict[str, Any] = {"text": _plain(text, directory), "errors": _plain(errors, directory)}
        if code in (0, 1) and not any(word in ONLY_TEXT for word in argv):
            end = argv.index("--") if "--" in argv else len(argv)
            again, document, _ = _run([*argv[:end], "--json", "--force", *argv[end:]]
                                      if "-o" in argv else [*argv[:end], "--json", *argv[end:]])
            sentences: list[str] = []
            numbers |= {"exit_code_of_json": again, "answer": _numbers(_document(document, directory), sentences)}
            wording["sentences"] = [_plain(sentence, directory) for sentence in sentences]
    return Answer(json.loads(json.dumps(numbers)), wording)


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Each leaf that differs, a line each: where it is, what it was, what it is."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from differences(old.get(key, "(absent)"), new.get(key, "(absent)"), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new)):
            yield from differences(before, after, f"{path}[{index}]")
    elif old != new:
        yield f"{path}: {json.dumps(old, ensure_ascii=False)} -> {json.dumps(new, ensure_ascii=False)}"


@contextlib.contextmanager
def without_tracing() -> Iterator[None]:
    """Requests that are answered from shipped formulas trace nothing."""
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("this request must be answered from shipped formulas, and was about to be traced")

    with mock.patch.object(tracing, "trace_formula", refuse):
        yield


@contextlib.contextmanager
def _directory(request: Request) -> Iterator[tuple[Path, list[str]]]:
    """An empty current directory with the request's files and an empty cache, and the words of its command line."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name).resolve()
        for path, text in request.files.items():
            (directory / path).write_text(text.replace("{root}", "root"))
        (directory / "root").symlink_to(ROOT)  # so that paths, and the lines that hold them, are as long everywhere
        argv = [word.replace("{root}", "root") for word in request.argv]
        for index, word in enumerate(argv):
            if word.startswith("snapshot:"):
                packed = SNAPSHOTS / f"{word.partition(':')[2]}.pickle.xz"
                argv[index] = packed.stem
                (directory / packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))
        cache = directory / "cache"
        os.chdir(directory)
        try:
            with mock.patch.dict(os.environ, {"COLUMNS": "100", "NO_COLOR": "1", "PEAKCAST_CACHE": str(cache),
                                              "HF_HUB_OFFLINE": "1", "PATH": PATH}):
                yield directory, argv
        finally:
            os.chdir(before)
            shutil.rmtree(cache, ignore_errors=True)


def _run(argv: list[str]) -> tuple[int, str, str]:
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = cli.main(argv)
    return code, out.getvalue(), errors.getvalue()


def _document(text: str, directory: Path) -> Any:
    return json.loads(_plain(text, directory)) if text else None


def _plain(text: str, directory: Path) -> str:
    """``text`` without what differs from machine to machine and from run to run."""
    text = text.replace(str(directory), "<directory>").replace(str(ROOT), "<root>")
    text = re.sub(r"\b\d+(\.\d+)? (s|ms|seconds|minutes)\b", r"<number> \2", text)
    return re.sub(r"\b20\d\d-\d\d-\d\d(T[\d:.]+(Z|[+-]\d\d:\d\d))?(?![\w-])", "<date>", text)


def _numbers(value: Any, sentences: list[str]) -> Any:
    """``value`` with each sentence replaced, and kept in ``sentences``; floats have nine digits."""
    if isinstance(value, dict):
        return {key: _numbers(entry, sentences) for key, entry in value.items() if not PASSING.search(key)}
    if isinstance(value, list):
        entries = [_numbers(entry, sentences) for entry in value]
        return SENTENCE if entries and all(entry == SENTENCE for entry in entries) else entries
    if isinstance(value, str) and re.search(r"\s", value):
        sentences.append(value)
        return SENTENCE
    return float(f"{value:.9g}") if isinstance(value, float) else value
