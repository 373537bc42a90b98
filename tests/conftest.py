"""Fixtures of all tests."""

from __future__ import annotations

import pytest

from calibrate import warm


@pytest.fixture(scope="session", autouse=True)
def warm_jobs():
    """Measured jobs need not import PyTorch each anew."""
    with warm.jobs(apart_from=("PEAKCAST_CACHE", "PYTEST_CURRENT_TEST")):
        yield
