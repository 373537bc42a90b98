"""Settings of ``zero_optimization`` are added to a config, whatever the section was before."""

from __future__ import annotations

import json

import pytest

from predictor.cli import main
from predictor.workload.deepspeed_settings import with_zero


@pytest.mark.parametrize(("section", "expected"), [
    ({"stage": 3, "overlap_comm": True}, {"stage": 3, "overlap_comm": False}), (None, {"overlap_comm": False}),
    (True, {"stage": 1, "overlap_comm": False}), (False, {"overlap_comm": False})])
def test_a_setting_is_added_to_the_section(section, expected):
    assert with_zero({"zero_optimization": section}, overlap_comm=False) == {"zero_optimization": expected}


@pytest.mark.parametrize("config", [5, {"zero_optimization": [1]}, {"zero_optimization": "x"}, "no.json"])
def test_a_stage_beside_what_is_no_config_is_one_line(config, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.json").write_text(json.dumps({"model": "llava-1.5-7b", "sequence_length": 1024, "deepspeed": config}))
    assert main(["predict", "--workload", "job.json", "--zero-stage", "2"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("peakcast: error: ") and error.count("\n") == 1
