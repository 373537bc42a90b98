"""The command that installs missing packages beside peakcast, for messages."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path


def pip_install(*packages: str, interpreter: str | None = None) -> str:
    """The command, as the user types it in the current directory.

    It names the interpreter, because the ``pip`` of a shell may belong to another one, which has no peakcast: then
    ``pip install 'peakcast[trace]'`` looks for a release of peakcast and finds none.

    Args:
        packages: what to install, as pip names it.
        interpreter: where to install it; the one that runs peakcast unless given.
    """
    python = _shown(interpreter or sys.executable or "python")
    if interpreter is None and importlib.util.find_spec("pip") is None:  # uv's environments have none
        return _joined(["uv", "pip", "install", "--python", python, *packages])
    return _joined([python, "-m", "pip", "install", *packages])


def _shown(path: str) -> str:
    """A path, relative to the current directory if it is below that."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (OSError, ValueError):  # the current directory is gone, or the path is elsewhere
        return path


def _joined(words: list[str]) -> str:
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)
