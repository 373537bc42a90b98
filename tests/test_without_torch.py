"""Requests that shipped formulas answer need neither torch nor transformers, nor other optional packages."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKED = """
import sys
for name in ("torch", "transformers", "scipy", "pandas", "deepspeed", "peft", "accelerate"):
    sys.modules[name] = None
from predictor.cli import main
sys.exit(main(sys.argv[1:]))
"""
JOB = ["llava-1.5-7b", "--sequence-length", "1024"]


@pytest.mark.parametrize("words", [
    ["predict", *JOB, "--zero-stage", "2", "--data-parallel-size", "8", "--gpu", "a100-40gb"], ["explain", *JOB],
    ["plan", *JOB, "--gpu", "h100-80gb", "--no-trace", "--keep", "engine,optim"], ["models"], ["profiles"],
    ["predict", *JOB, "--samples", "samples.csv"]], ids=lambda words: " ".join(words[:1] + words[-2:]))
def test_a_command_answers_without_the_extras(words, tmp_path):
    (tmp_path / "samples.csv").write_text("tokens,images\n700,1\n800,1\n")
    done = subprocess.run([sys.executable, "-c", BLOCKED, *words], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
