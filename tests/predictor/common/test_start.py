"""A started interpreter finds peakcast's packages in their directory, and nothing else there."""

from __future__ import annotations

import subprocess
import sys

from predictor.common.start import OWN, ROOT, OwnPackages


def test_only_own_packages_are_found():
    finder = OwnPackages()
    assert all(finder.find_spec(name) for name in OWN)
    assert finder.find_spec("numpy") is None and finder.find_spec("tests") is None


def test_started_where_its_directory_is_a_link_python_has_its_own_modules(tmp_path):
    """As in a home directory that is a link. ``fractions`` needs ``numbers``, of which ``predictor.common`` has one too."""
    (tmp_path / "link").symlink_to(ROOT)
    process = subprocess.run([sys.executable, tmp_path / "link/predictor/common/start.py", "fractions"],
                             capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")
