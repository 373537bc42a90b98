"""Runs a module of the attack in a process of its own, and reads its answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
"""The repository, or a copy of it."""
SECONDS = 3_000
CACHE = "cache"
"""Directory of a copy of the repository with its formulas: those that a bug makes must not come into the user's cache."""


class Died(Exception):
    """The process gave no answer."""


def answer(module: str, *words: object, root: Path = ROOT, seconds: float = SECONDS) -> Any:
    """What a module of ``tests.attack`` in ``root`` prints as JSON.

    Args:
        seconds: it is ended after so many.
        root: of a copy, :data:`CACHE` is the cache.

    Raises:
        Died: it ended otherwise; the message has the end of its stderr.
    """
    environment = os.environ | {"PYTHONPATH": str(root)} | ({} if root == ROOT else {"PEAKCAST_CACHE": str(root / CACHE)})
    try:
        done = subprocess.run([sys.executable, "-m", f"tests.attack.{module}", *map(str, words)], cwd=root, env=environment, capture_output=True,
                              text=True, timeout=seconds, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise Died(f"the process took more than {seconds} s") from None
    if done.returncode or not done.stdout.strip():
        raise Died(f"the process ended with {done.returncode}: {done.stderr[-1500:]}")
    return json.loads(done.stdout.splitlines()[-1])
