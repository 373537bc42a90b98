"""Benchmarks, printed by pytest-benchmark and never asserted; run ``pytest tests/test_speed.py`` alone."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest

from predictor.allocator import AllocatorSettings
from predictor.answer.predict import predict
from predictor.common import gpus
from predictor.course.course import Request as Steps
from predictor.course.course import Simulation
from predictor.events import regimes, timeline
from predictor.events.sizes import Shape
from predictor.jobs import dispatch, survival, training_job
from predictor.model.request import Request
from predictor.workload.samples import Samples
from predictor.workload.workload import Workload
from tests.predictor.small import traced_at

H100 = gpus.find("h100-80gb")
SHAPE = Shape(16, 1024, 16)
JOB = Workload(model="llava-1.5-7b", recipe="finetune", per_device_train_batch_size=16, sequence_length=1024,
               images_per_sample=1, zero_stage=2, data_parallel_size=8, profile="none")


@pytest.fixture(scope="module", autouse=True)
def frozen():
    """Nothing is: a user's process looks at all that it imported."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture(scope="module")
def formula():
    return training_job.find_formula(Request.of(JOB, SHAPE).on(H100))


def test_one_warm_prediction_engine_and_worst_rank_included(benchmark, formula):
    assert benchmark(lambda: dispatch.prepare(JOB).run(None)).peak > 0  # shapes may change, the engine is kept


def test_one_prediction_whose_engine_must_be_composed_anew(benchmark, formula):
    def forget() -> None:
        training_job._composed.forget()
        training_job._engine_of.forget()

    run = benchmark.pedantic(lambda: dispatch.prepare(JOB).run(None), setup=forget, rounds=100, warmup_rounds=3)
    assert run.peak > 0


def test_peaks_of_a_million_shapes(benchmark, formula):
    events = training_job.compose(formula, training_job.setup_of(JOB, formula), 0)
    form = timeline.closed_form(events, at_least=regimes.smallest_shape(regimes.Regime.parse(("many", "many", "whole")), 576))
    rng = np.random.default_rng(0)
    batch, sequence = rng.integers(2, 64, 1_000_000), rng.integers(577, 8192, 1_000_000)
    peaks = benchmark.pedantic(form.peaks, (batch, sequence, batch, H100), rounds=2)
    assert len(peaks) == 1_000_000


def test_the_command_with_a_shipped_formula(benchmark):
    command = [sys.executable, "-m", "predictor.cli", "predict", "llava-1.5-7b", "--per-device-train-batch-size", "16",
               "--sequence-length", "1024", "--zero-stage", "2", "--data-parallel-size", "8", "--json"]
    benchmark.pedantic(subprocess.run, (command,), {"check": True, "capture_output": True}, rounds=3)


def test_tracing_llava_7b(benchmark):
    from predictor.model import models, parser

    model = parser.build(models.find("llava-1.5-7b"), attn_implementation="sdpa", recipe="finetune")
    model.gradient_checkpointing_enable()
    recording = benchmark.pedantic(traced_at, (model, SHAPE), rounds=2)
    assert recording.events


def test_allocator_events(benchmark):
    """Every allocation and free of the job, one after the other, through the simulated caching allocator."""
    run = dispatch.prepare(JOB).run(None)

    simulation = benchmark(survival.simulate_run, run, AllocatorSettings())
    assert simulation.peak_requested_bytes == run.peak
    benchmark.extra_info["events"] = len(run.events)


def test_a_thousand_steps_of_a_course(benchmark):
    tokens = np.clip(np.random.default_rng(0).lognormal(6.9, 0.35, 20_000).astype(int), 620, 2048)
    workload = Workload(model="llava-1.5-7b", per_device_train_batch_size=4, sequence_length=2048, zero_stage=2,
                        data_parallel_size=8, rank=0, profile="none").fill(images_per_sample=1)
    course = benchmark.pedantic(
        lambda: Simulation(workload, Samples(tokens, np.ones_like(tokens)), Steps(steps=1000)).run(), rounds=2)
    assert course.failure is None


def test_a_whole_prediction_with_reserved_memory(benchmark):
    assert benchmark(predict, JOB).peak_reserved_bytes > 0
