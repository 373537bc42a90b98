"""Entry point through which `import torch` starts the integer tracker of an emulated job, in whichever environment."""

import importlib
import runpy
import sys
from pathlib import Path

START = Path(__file__).resolve().parents[3] / "predictor" / "common" / "start.py"


def own_module(name):
    """A module of peakcast. Its packages are found last, so that they hide none of the job's."""
    finder = runpy.run_path(str(START))["OwnPackages"]
    if not any(type(known).__name__ == finder.__name__ for known in sys.meta_path):
        sys.meta_path.append(finder())
    return importlib.import_module(name)


def track_integers():
    """Starts the tracker."""
    own_module("calibrate.emulator.host_values").install()
