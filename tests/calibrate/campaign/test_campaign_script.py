"""``scripts/calibrate_cluster.py``: the options that it adds to ``peakcast calibrate``."""

from __future__ import annotations

import importlib.util

import pytest

from tests.calibrate.small_jobs import ROOT


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The script, its profiles in a directory of their own."""
    spec = importlib.util.spec_from_file_location("calibrate_cluster", ROOT / "scripts" / "calibrate_cluster.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PROFILES", tmp_path)
    return module


def test_the_profile_goes_where_predictions_look_for_it(script, tmp_path):
    assert script.arguments(["--gpu", "3090"]) == (
        ["calibrate", "--gpu", "3090", "--device", "cuda", "-o", str(tmp_path / "rtx-3090" / "profile-device.json")],
        tmp_path / "rtx-3090")


def test_without_a_driver_no_directory_is_left(script, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("calibrate.emulator.job_environment.has_real_driver", lambda: False)
    assert script.run(["--gpu", "rtx-3090"]) == 2
    assert "no NVIDIA driver" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_directory_with_measurements_stays(script, monkeypatch, tmp_path):
    monkeypatch.setattr(script, "main", lambda words: (tmp_path / "rtx-3090" / "profile-device.jsonl").touch())
    script.run(["--gpu", "rtx-3090"])
    assert (tmp_path / "rtx-3090" / "profile-device.jsonl").exists()
