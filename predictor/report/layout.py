"""Tables and wrapped lines in the one style that all reports have."""

from __future__ import annotations

import string
import textwrap
from typing import TYPE_CHECKING

from predictor.common.safe_text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def table(*heads: str, numbers: bool = False) -> Table:
    """An empty table in the one style; with ``numbers`` every column but the first is aligned right.

    Breaks of the line in a head are ours: a name from outside is made printable before.
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
    """``text`` in lines that the console has room for; lines after the first are indented further."""
    lines = textwrap.wrap(printable(text, keep=string.whitespace), console.width, initial_indent=" " * indent,
                          subsequent_indent=" " * (indent + 2), break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]
