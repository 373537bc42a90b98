"""Tables and wrapped lines in the style that all reports share."""

from __future__ import annotations

import string
import textwrap
from typing import TYPE_CHECKING

from predictor.common.safe_text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


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
