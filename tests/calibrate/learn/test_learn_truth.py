"""Learned formulas against jobs at other shapes, and against the analytical prediction."""

from __future__ import annotations

import json
import sys

import pytest

from calibrate.dryrun.dryrun import Streams, dryrun
from calibrate.learn.jobs import WorkloadSource
from calibrate.learn.learn import learn
from calibrate.learn.shapes import Plan
from calibrate.measure.measure import measure
from calibrate.records.record import MeasuredOn
from predictor import Workload, predict
from predictor.cli import main
from predictor.events.events import Factor
from predictor.events.sizes import Shape
from predictor.formula import learned
from tests.calibrate.small_jobs import needs_emulator, workload
from tests.predictor.small_models import ALL, MEDIA

pytestmark = needs_emulator

SCRIPT = """
import argparse, torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
parser.add_argument("--length", type=int)
options = parser.parse_args()
net = nn.Sequential(nn.Embedding(1000, 64), nn.TransformerEncoderLayer(64, 4, 128, batch_first=True),
                    nn.Linear(64, 1000)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for step in range(3):
    ids = torch.randint(0, 1000, (options.batch, options.length)).cuda()
    loss = nn.functional.cross_entropy(net(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
COUNTERS = ("requested", "allocated", "reserved")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / "cache"))


def peaks(answer) -> tuple[int, ...]:
    return tuple(getattr(answer, name).bytes for name in COUNTERS)


def test_a_script_with_placeholders_is_predicted_where_it_never_ran(tmp_path, capsys):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "train.py"), "--batch", "2", "--length"]
    path = str(tmp_path / "mine.npz")
    code = main(["learn", "--sequences", "56,104,168", "--per-device-train-batch-size", "2", "--no-probe", "--json",
                 "-o", path, "--", *command, "{sequence}"])
    assert code == 0 and json.loads(capsys.readouterr().out)["lists"][0]["interpolated"] == []
    # attention's row sums are rounded up to 32 tokens: 56, 104 and 168 show that
    answer = predict(Workload(model=path, per_device_train_batch_size=2, sequence_length=120, profile="none"))
    seen = dryrun([*command, "120"], optimizer_steps=3, streams=Streams(output=2))
    assert peaks(answer) == (seen.peak_requested_bytes, seen.peak_allocated_bytes, seen.peak_reserved_bytes)
    # SGD keeps one momentum a parameter
    assert answer.factors[Factor.OPTIMIZER_STATES] == answer.factors[Factor.PARAMETERS]


@pytest.mark.parametrize("name, words, asked", [
    ("gpt2", ["--batches", "2", "--sequences", "40,72,104", "--no-probe"],
     {"per_device_train_batch_size": 2, "sequence_length": 88}),
    ("whisper", ["--batches", "2", "--sequences", "40,72,104", "--no-probe"],
     {"per_device_train_batch_size": 2, "sequence_length": 88}),
    ("resnet", ["--no-gradient-checkpointing"], {"per_device_train_batch_size": 7, "gradient_checkpointing": False}),
])
def test_a_model_of_one_kind_of_sample_is_predicted_where_it_never_ran(tmp_path, capsys, name, words, asked):
    (tmp_path / "config.json").write_text(json.dumps((ALL | MEDIA)[name]))
    model, path = str(tmp_path / "config.json"), str(tmp_path / "mine.npz")
    assert main(["learn", model, "--device", "emulated", *words, "-o", path]) == 0
    answer = predict(Workload(model=path, profile="none", **asked))
    record = measure(Workload(model=model, gpu="h100-80gb", **asked), device=MeasuredOn.EMULATED)
    assert peaks(answer) == tuple(record.peak(f"{counter}_bytes").bytes for counter in COUNTERS)


def test_zero_3_which_has_no_analytical_engine_is_predicted_where_it_never_ran(tmp_path):
    asked = workload(tmp_path, zero_stage=3, data_parallel_size=2, rank=0, gpu="h100-80gb", profile="none")
    source = WorkloadSource.of(asked, MeasuredOn.EMULATED, ())
    made, checks = learn(source, Plan(tuple(Shape(2, sequence, 2) for sequence in (40, 64, 96))))
    assert all(not any(check.error_bytes.values()) for check in checks)
    learned.save(tmp_path / "zero3.npz", made)
    answer = predict(Workload(model=str(tmp_path / "zero3.npz"), per_device_train_batch_size=2, sequence_length=200,
                              profile="none"))
    record = measure(asked.replace(sequence_length=200), device=MeasuredOn.EMULATED)
    for name, size in zip(COUNTERS, peaks(answer)):
        assert abs(size - record.peak(f"{name}_bytes").bytes) <= 4096


def test_a_recorded_zero_2_job_has_the_factors_of_its_analytical_prediction(tmp_path):
    asked = workload(tmp_path, zero_stage=2, data_parallel_size=2, rank=1, gpu="h100-80gb", profile="none")
    source = WorkloadSource.of(asked, MeasuredOn.EMULATED, ())
    made, _ = learn(source, Plan((Shape(2, 64, 2),)))
    learned.save(tmp_path / "zero2.npz", made)
    recorded = predict(Workload(model=str(tmp_path / "zero2.npz"), per_device_train_batch_size=2, sequence_length=64,
                                profile="none"))
    analytical = predict(asked)
    assert recorded.peak.moment == analytical.peak.moment
    assert recorded.factors == analytical.factors


def test_a_command_without_placeholders_is_a_replay(tmp_path, capsys):
    (tmp_path / "train.py").write_text(SCRIPT)
    path = str(tmp_path / "mine.npz")
    assert main(["learn", "-o", path, "--", sys.executable, str(tmp_path / "train.py"), "--batch", "2", "--length",
                 "64"]) == 0
    assert "it is a replay of that job" in capsys.readouterr().out
    assert main(["predict", path, "--details"]) == 0
    assert "learned at one shape: this is a replay" in " ".join(capsys.readouterr().out.split())


def test_a_script_that_fails_is_told_by_its_own_words(tmp_path, capsys):
    (tmp_path / "train.py").write_text("import torch\ntorch.zeros(1, device='cuda')\nraise ValueError('no data')\n")
    assert main(["learn", "-o", str(tmp_path / "x.npz"), "--", sys.executable, str(tmp_path / "train.py")]) == 2
    assert "ended with exit code 1: ValueError: no data" in capsys.readouterr().err
