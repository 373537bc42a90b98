"""Commands that run real jobs, without PyTorch: they print one line and leave no files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from predictor.common.installing import pip_install

ROOT = Path(__file__).parents[3]
SCRIPT = "import sys; sys.modules['torch'] = None; from predictor.cli import main; sys.exit(main(sys.argv[1:]))"
JOB = ["llava-1.5-7b", "--sequence-length", "1024", "--per-device-train-batch-size", "2", "--device", "emulated"]


@pytest.mark.parametrize("words", [
    ["learn", *JOB, "-o", "x.npz"], ["learn", "-o", "x.npz", "--", sys.executable, "train.py"],
    ["measure", *JOB, "-o", "x.json"], ["dryrun", "-o", "x.json", "--", sys.executable, "train.py"],
    ["calibrate", "--device", "emulated", "--gpu", "h100-80gb", "-o", "x.json"],
], ids=["learn", "learn a script", "measure", "dryrun", "calibrate"])
def test_a_job_without_torch_is_one_line(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the advice names the interpreter relative to it
    found = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True,
                           env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == (f"peakcast: error: PyTorch is not installed here: {pip_install('peakcast[calibrate]')} (with a "
                            "CUDA build of torch)\n")
    assert not list(tmp_path.iterdir())
