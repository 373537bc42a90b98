"""Fixtures of all tests."""

from __future__ import annotations

import gc

import pytest

from calibrate.measure import warm_workers


@pytest.fixture(scope="session", autouse=True)
def warm_jobs():
    """Measured jobs need not import PyTorch each anew."""
    with warm_workers.jobs(apart_from=("PEAKCAST_CACHE", "PYTEST_CURRENT_TEST")):
        yield


@pytest.fixture(scope="module", autouse=True)
def frozen():
    """Collections, of which every trace begins with one, need not look at what was imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def formula_cache(tmp_path_factory):
    """Formulas that the tests of a file trace are kept for each other, and for nobody else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAKCAST_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
