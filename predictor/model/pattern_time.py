"""Whether a regular expression of the user answers in time. Python's own matching cannot be given a limit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable

from predictor.common.errors import InputError
from predictor.common.suggestions import quoted

SECONDS = 3
"""The most that a pattern may take for all names of a model's modules. Usual ones take some milliseconds."""
MATCHES = "import json, re, sys\npattern, texts = json.load(sys.stdin)\nfor text in texts: re.fullmatch(pattern, text)"


def check(key: str, pattern: str, texts: Iterable[str]) -> None:
    """Matches a pattern in a process of its own, which is killed after :data:`SECONDS`.

    Args:
        key: the key of the workload, for the message.
        texts: what is matched.

    Raises:
        InputError: the pattern takes longer.
    """
    try:
        subprocess.run([sys.executable, "-I", "-S", "-c", MATCHES], input=json.dumps([pattern, list(texts)]), text=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(f"{key} {quoted(pattern)}: takes more than {SECONDS} s to match the names of the model's "
                         "modules: write it without repetitions of repetitions") from None
