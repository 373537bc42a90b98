"""Starts the commands that are killed or disturbed, waits for their ends, and for those of what they started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.attack.programs import ROOT

SECONDS = 300
"""After so many seconds a command counts as hanging."""


class NotTried(Exception):
    """What is killed or disturbed does not work before that, so nothing is known of it."""


def start(words: tuple[str, ...], directory: Path, **how: Any) -> subprocess.Popen:
    """Starts a command in a session of its own, with a cache in the directory."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PEAKCAST_CACHE": str(directory / "cache"), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    return subprocess.Popen([word.replace("{directory}", str(directory)) for word in words], cwd=directory, env=environment | how.pop("env", {}),
                            stdin=subprocess.DEVNULL, stdout=how.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE, start_new_session=True,
                            preexec_fn=how.pop("preexec_fn", _hear_interrupts), **how)


def _hear_interrupts() -> None:
    """Undoes that a shell has its background commands, such as a long attack, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ended(words: tuple[str, ...], directory: Path, **how: Any) -> tuple[int, str]:
    """Runs a command to its end: exit code, and what it said on stderr."""
    process = start(words, directory, **how)
    try:
        _, said = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return -1, f"took more than {SECONDS} s"
    return process.returncode, said.decode(errors="replace")


def all_gone(group: int) -> bool:
    """Whether no process of a session is left, after a while for them to end."""
    for _ in range(150):
        if not any(_runs(entry, group) for entry in Path("/proc").iterdir() if entry.name.isdecimal()):
            return True
        time.sleep(0.1)
    return False


def _runs(entry: Path, session: int) -> bool:
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[3]) == session and fields[0] != "Z"
