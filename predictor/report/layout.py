"""Tables, wrapped lines and answers of one screen, in the style that all reports share."""

from __future__ import annotations

import re
import string
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from predictor.common.safe_text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SCREEN = 40
"""Lines of an answer without ``--details``, where the user did not ask for more."""
NAMES = re.compile(r"\.(?![^{}]*})")
"""The dots between the names of a path. Those of ``{0..31}`` are none."""
Size = TypeVar("Size")


def table(*heads: str, numbers: bool = False) -> Table:
    """An empty table in the common style. With ``numbers`` all columns except the first are right-aligned.

    Heads may contain line breaks. Pass names from outside through ``printable`` first.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold", show_header=any(heads[1:]))
    for index, head in enumerate(heads):
        rows.add_column(Text(printable(head, keep="\n")), justify="right" if numbers and index else "left",
                        no_wrap=bool(numbers), overflow="fold", vertical="top")
    return rows


def wrapped(console: Console, text: str, indent: int = 2) -> list[str]:
    """``text`` in lines of the console's width. Lines after the first are indented by two more characters."""
    lines = textwrap.wrap(printable(text, keep=string.whitespace), console.width, initial_indent=" " * indent,
                          subsequent_indent=" " * (indent + 2), break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]


def print_wrapped(console: Console, *texts: str, style: str | None = None) -> None:
    """Prints sentences, each in lines of the console's width."""
    for text in texts:
        for line in wrapped(console, text, indent=0):
            console.print(line, style=style)


def on_one_screen(console: Console, report: Callable[[Console, Size], None], sizes: Sequence[Size]) -> None:
    """Prints a report in the first of several sizes in which it has at most 40 lines, else in the last.

    Args:
        report: prints the report in one size.
        sizes: what the report may be cut to, the longest first.
    """
    def lines(size: Size) -> int:
        with console.capture() as captured:
            report(console, size)
        return captured.get().count("\n")

    report(console, next((size for size in sizes[:-1] if lines(size) <= SCREEN), sizes[-1]))


def details_line(*parts: str) -> str:
    """A sentence that says what ``--details`` has beside the short answer. Empty parts are left out."""
    *listed, last = (part for part in parts if part)
    shown = f"{', '.join(listed)} and {last}" if listed else last
    return f"--details shows {shown}; --json has all as data."


def numbered(number: int, what: str) -> str:
    """``1 sequence``, ``3 sequences``; ``what`` is the noun in singular."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def counted(number: int, what: str) -> str:
    """``3 further cautions``, ``one further caution``; empty if there is none.

    Args:
        what: the noun in singular.
    """
    return f"{number:,} further {what}s" if number > 1 else f"one further {what}" if number == 1 else ""


def shortened(path: str, most: int) -> str:
    """A dotted path in at most ``most`` characters: ``…`` stands for its first names where it is longer."""
    if len(path) <= most:
        return path
    names = NAMES.split(path)
    while len(names) > 1 and len(".".join(names)) >= most:
        names.pop(0)
    return "…" + ".".join(names)[-(most - 1):]
