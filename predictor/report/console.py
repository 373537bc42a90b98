"""The console that reports are printed on."""

from __future__ import annotations

from typing import Any, TextIO

from predictor.common.safe_text import printable

WIDTH = 100
"""Characters in a line of a report that does not go to a terminal."""


def console(stream: TextIO, width: int | None) -> Any:
    """A rich console that prints text literally, without markup or automatic highlighting.

    Control characters in a string, line breaks included, are printed in visible form, so that text from outside cannot
    control the terminal. Print each line with a call of its own; line breaks in table cells need a rich ``Text``.
    """
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise  # rich would exit by itself, but main() decides the exit code

        def render_str(self, text: str, **options: Any) -> Text:  # rich renders every string here, those of tables too
            return super().render_str(printable(text), **options)

    return Plain(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)
