"""The command that runs checks."""

from __future__ import annotations

import importlib.util

import pytest

from tests.calibrate.small_jobs import ROOT


@pytest.fixture
def check():
    """``scripts/check.py`` as a module."""
    spec = importlib.util.spec_from_file_location("check", ROOT / "scripts" / "check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
