"""The number of ranks that a command or a script starts, whatever program trains in them."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.common.errors import InputError
from predictor.common.files import read_text
from predictor.common.suggestions import file_name
from predictor.readers import accelerate, command


def started(path: str | None, words: Sequence[str]) -> int | None:
    """The number of ranks; None if nothing says it, so that there is one for each GPU of the machine.

    Args:
        path: a shell script; None: ``words`` are the command.

    Raises:
        InputError: the launcher's options say a number that is not known.
    """
    try:
        given = command.from_words(words) if path is None else \
            command.from_script(read_text(path, "a shell script"), file_name(path), path)
        launched = accelerate.launched(given)
    except InputError:  # a command of its own kind: it may start what it wants
        return None
    if launched.problem:
        raise InputError(launched.problem)
    return launched.world_size
