"""Starts Python processes that run a module of this package and import nothing from the current directory.

    subprocess.run(**child.python("calibrate.job.job"), stdout=output)

``python -m`` and ``python -c`` search the current directory first, so a ``numpy.py`` there would run unasked. Python
3.10 has no option that prevents this and leaves the rest of the path as it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from predictor.common import start


def python(module: str, *words: str, variables: Mapping[str, str] | None = None,
           interpreter: str = sys.executable) -> dict[str, Any]:
    """The arguments for ``subprocess`` that run a module of ours like ``python -m module words``.

    Args:
        module: the module's full name.
        words: the arguments of its command line.
        variables: the environment of the process; None for this process's own.
        interpreter: the Python that runs it; another environment's has only our packages in common with this one.
    """
    environment = dict(os.environ if variables is None else variables)
    if "PYTHONPATH" in environment:
        environment["PYTHONPATH"] = _absolute(environment["PYTHONPATH"])
    return {"args": [interpreter, start.__file__, module, *words], "env": environment}


def _absolute(path: str) -> str:
    """A path with absolute directories and without empty entries.

    An empty entry, as in ``PYTHONPATH=$PYTHONPATH:/mine`` without a value, means the current directory.
    """
    return os.pathsep.join(os.path.abspath(entry) for entry in path.split(os.pathsep) if entry)
