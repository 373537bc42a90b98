"""Runs ``peakcast`` in this process."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any, NamedTuple

from predictor.formula import store


class Ran(NamedTuple):
    """How a command ended.

    Attributes:
        code: its exit code.
        out: what it wrote on stdout.
        said: what it wrote on stderr.
    """

    code: int
    out: str
    said: str


def run(*words: str) -> Ran:
    """Runs a command to its end."""
    from predictor import cli

    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = cli.main(list(words))
    return Ran(code, out.getvalue(), errors.getvalue())


def predicted(*words: str) -> dict[str, Any] | None:
    """What ``peakcast predict --json`` answers to these words without a trace; None if it refuses them."""
    with store.existing_only():
        ran = run("predict", "--json", *words)
    return json.loads(ran.out) if ran.code in (0, 1) else None
