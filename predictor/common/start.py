"""Runs a module of peakcast in any interpreter, like ``python -m module words``: ``python start.py module words``.

Only peakcast's own packages come from the directory that holds them; all others are those of the interpreter. Nothing
is imported from the current directory: Python puts the directory of this file first on the path, with its links
followed, and it is removed, because a module such as ``numbers`` here would take the place of Python's own.
"""

import os
import runpy
import sys
from importlib.machinery import PathFinder

OWN = ("predictor", "calibrate", "profiles")
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
"""The directory that holds peakcast's packages; it may be an environment's ``site-packages``."""


class OwnPackages:
    """Finds peakcast's packages, and no others, in the directory that holds them."""

    def find_spec(self, name, path=None, target=None):
        """The package, if it is peakcast's own; None leaves the search to the interpreter."""
        return PathFinder.find_spec(name, [ROOT]) if name in OWN else None


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != os.path.realpath(HERE)]
    sys.meta_path.insert(0, OwnPackages())
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
