"""The pages of the documentation as the tests read them: blocks of code, commands with their outputs, links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "pages"
FILES = [ROOT / "README.md", *sorted(PAGES.rglob("*.md"))]
LINKED = [*FILES, *(ROOT / file for file in ("CHANGELOG.md", "CONTRIBUTING.md", "docs/SECURITY.md")),
          *sorted((ROOT / "profiles" / "pages").glob("*.md"))]
"""Every file whose links are followed."""
BLOCK = re.compile(r"^```(?P<language>\w*)(?P<title>[^\n]*)\n(?P<content>.*?)\n?^```$|^(?P<heading>#+) (?P<text>[^\n]+)$",
                   re.MULTILINE | re.DOTALL)
RECORDED = 'title="recorded'
"""How the title of an output begins whose command the test command does not run."""


@dataclass(frozen=True)
class Example:
    """A command of a page.

    Attributes:
        output: what the page shows of its output; None if it shows none.
        is_recorded: whether the page says that the test command does not run it.
    """

    page: str
    words: tuple[str, ...]
    output: str | None = None
    is_recorded: bool = False

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"[:100]


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def examples(file: Path) -> list[Example]:
    """The commands of a page in order. A block ``text`` shows the output of the last command of the block before it.

    Raises:
        ValueError: no command stands before an output in the same section.
    """
    found: list[Example] = []
    is_last_shown = True
    for block in BLOCK.finditer(file.read_text()):
        language, content = block["language"], block["content"]
        if block["heading"]:
            is_last_shown = True
        elif language == "bash":
            commands = [Example(name(file), words) for line in lines(content) for words in peakcast(line)]
            found += commands
            is_last_shown = not commands
        elif language == "text":
            if is_last_shown:
                raise ValueError(f"{name(file)}: no command stands before the output {content[:60]!r}")
            found[-1] = Example(found[-1].page, found[-1].words, content, RECORDED in block["title"])
            is_last_shown = True
    return found


def missing(shown: str, printed: str) -> list[str]:
    """The parts between lines ``…`` that do not stand in the output, as they are and one after the other.

    The first part must begin it, and the last one must end it, unless a line ``…`` says that there is more.
    """
    lost, after = [], "\n".join(line.rstrip() for line in printed.strip("\n").splitlines()) + "\n"
    parts = re.split(r"^…\n", shown + "\n", flags=re.MULTILINE)
    for place, part in enumerate(parts):
        if part:
            before, found, rest = after.partition(part)
            is_whole = not (place == 0 and before) and not (place == len(parts) - 1 and rest)
            lost += [] if found and is_whole else [part]
            after = rest if found else after
    return lost


def python(file: Path) -> list[str]:
    """The Python of a page, without files of ``docs/examples``."""
    return [block["content"] for block in BLOCK.finditer(file.read_text())
            if block["language"] == "python" and not block["title"]]


def example_files(file: Path) -> list[tuple[str, str]]:
    """The files that a page shows: path in the repository, and the content that the page has."""
    return [(found[1], block["content"]) for block in BLOCK.finditer(file.read_text())
            if block["title"] and (found := re.fullmatch(r' title="(docs/examples/\S+)"', block["title"]))]


def lines(content: str) -> list[str]:
    """The lines of a shell block, joined where they end with a backslash, without comments."""
    joined = content.replace("\\\n", " ").splitlines()
    return [line for line in joined if line.strip() and not line.startswith("#")]


def peakcast(line: str) -> Iterator[tuple[str, ...]]:
    """The arguments of each ``peakcast`` in a line; ``…`` stands for arguments that do not matter there."""
    for part in line.split(" && "):
        words = shlex.split(part, comments=True)
        if words and Path(words[0]).name == "peakcast":
            yield tuple(word for word in words[1:] if word != "…")


def named_commands(text: str) -> list[tuple[str, ...]]:
    """The arguments of the commands that a text names: in backticks, or on an indented line of their own."""
    named = re.findall(r"`+(peakcast [^`\n]+)`|^ {4,}(peakcast [a-z].*)$", text, re.MULTILINE)
    return [words for command in named for words in peakcast(command[0] or command[1])]


def links(file: Path) -> list[str]:
    """The targets of the links and pictures of a page, outside its code."""
    return re.findall(r"\]\(([^)\s]+)\)", without_code(file.read_text()))


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as mkdocs and GitHub make them, and those that it writes out."""
    headings = [block["text"] for block in BLOCK.finditer(text) if block["heading"]]
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings} \
        | set(re.findall(r'<a id="([^"]+)"', text))
