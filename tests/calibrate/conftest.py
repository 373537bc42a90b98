"""Fixtures of more than one file."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def formula_cache(tmp_path_factory):
    """Formulas that the tests of a file trace are kept for each other, and for nobody else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAKCAST_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
