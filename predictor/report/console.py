"""The console that reports are printed on."""

from __future__ import annotations

from typing import Any, TextIO

from predictor.common.safe_text import printable

WIDTH = 100
"""Columns of a report that does not go to a terminal."""


def console(stream: TextIO, width: int | None) -> Any:
    """A rich console that prints text as it is: no markup, no guesses at what to colour.

    What in a string would steer a terminal is shown instead, a break of the line too: a line is a call, and ours inside
    a table's cell are in a rich Text.
    """
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise  # rich would exit by itself; main() decides that

        def render_str(self, text: str, **how: Any) -> Text:  # all strings come by here, those of tables too
            return super().render_str(printable(text), **how)

    return Plain(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)
