"""Interpreters that we start: they run a module of this very package, and take no file from the current directory.

    subprocess.run(**child.python("calibrate.job.job"), stdout=output)

``python -m`` and ``python -c`` look into the current directory before all others, so a ``numpy.py`` there would run
unasked. Python 3.10 has no option against that which leaves the rest of the path as it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

START = Path(__file__).resolve().parent / "start.py"


def python(module: str, *words: str, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What ``subprocess`` is given to run a module of ours as ``python -m module words`` would.

    Args:
        variables: its environment; None: this process's.
    """
    environment = dict(os.environ if variables is None else variables)
    if "PYTHONPATH" in environment:
        environment["PYTHONPATH"] = _named(environment["PYTHONPATH"])
    return {"args": [sys.executable, str(START), module, *words], "env": environment}


def _named(path: str) -> str:
    """The directories that a path names; an empty entry, as of ``PYTHONPATH=$PYTHONPATH:/mine``, is the current one."""
    return os.pathsep.join(os.path.abspath(entry) for entry in path.split(os.pathsep) if entry)
