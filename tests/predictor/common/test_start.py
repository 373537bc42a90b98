"""A started interpreter finds peakcast's packages in their directory, and nothing else there."""

from __future__ import annotations

from predictor.common.start import OWN, OwnPackages


def test_only_own_packages_are_found():
    finder = OwnPackages()
    assert all(finder.find_spec(name) for name in OWN)
    assert finder.find_spec("numpy") is None and finder.find_spec("tests") is None
