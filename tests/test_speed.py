"""Benchmarks: printed by pytest-benchmark, never asserted."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from predictor import gpus, pipeline, regimes, timeline
from predictor.allocator import CachingAllocator, SimulatedDriver
from predictor.sizes import Shape
from predictor.workload import Workload

H100 = gpus.find("h100-80gb")
SHAPE = Shape(16, 1024, 16)
JOB = Workload(model="llava-1.5-7b", recipe="finetune", per_device_train_batch_size=16, sequence_length=1024,
               images_per_sample=1, zero_stage=2, data_parallel_size=8)


@pytest.fixture(scope="module")
def formula():
    return pipeline.find_formula(JOB, SHAPE, H100)


def test_one_warm_prediction_engine_and_worst_rank_included(benchmark, formula):
    assert benchmark(pipeline.worst_run, formula, JOB, SHAPE, H100).peak > 0  # shapes may change, the engine is kept


def test_one_prediction_whose_engine_must_be_composed_anew(benchmark, formula):
    def predict_anew():
        pipeline.compose.cache_clear()
        pipeline.zero2.cache_clear()
        return pipeline.worst_run(formula, JOB, SHAPE, H100)

    assert benchmark(predict_anew).peak > 0


def test_peaks_of_a_million_shapes(benchmark, formula):
    events = pipeline.compose(formula, pipeline.setup_of(JOB, formula), 0)
    form = timeline.closed_form(events, at_least=regimes.lowest(("many", "many", "whole"), 576))
    rng = np.random.default_rng(0)
    batch, sequence = rng.integers(2, 64, 1_000_000), rng.integers(577, 8192, 1_000_000)
    peaks = benchmark.pedantic(form.peaks, (batch, sequence, batch, H100), rounds=2)
    assert len(peaks) == 1_000_000


def test_the_command_with_a_shipped_formula(benchmark):
    command = [sys.executable, "-m", "predictor.cli", "predict", "llava-1.5-7b", "--per-device-train-batch-size", "16",
               "--sequence-length", "1024", "--zero-stage", "2", "--data-parallel-size", "8", "--json"]
    benchmark.pedantic(subprocess.run, (command,), {"check": True, "capture_output": True}, rounds=3)


def test_tracing_llava_7b(benchmark):
    from predictor import models, parser
    from predictor.trace import trace

    model = parser.build(models.find("llava-1.5-7b"), attn_implementation="sdpa", recipe="finetune")
    model.gradient_checkpointing_enable()
    facts = parser.describe(model)
    recording = benchmark.pedantic(trace, (model, facts, SHAPE), {"padding": "none", "sdpa_backend": "cudnn"}, rounds=2)
    assert recording.events


def test_allocator_events(benchmark):
    """Every allocation and free of the job, one after the other, through the simulated caching allocator."""
    _, _, run, _, _ = pipeline.run_of(JOB)
    buffers = run.events.buffers
    size, stream = run.row_bytes[buffers.size].tolist(), buffers.stream.tolist()
    events = [(kind, buffer) for kind, buffer in zip(run.events.kind.tolist(), run.events.buffer.tolist())
              if size[buffer]]  # a tensor without elements has no block

    def play():
        allocator, blocks = CachingAllocator(driver=SimulatedDriver(H100.capacity_bytes)), [None] * len(size)
        malloc, free = allocator.malloc, allocator.free
        for kind, buffer in events:
            if kind > 0:
                blocks[buffer] = malloc(size[buffer], stream[buffer])
            else:
                free(blocks[buffer])
        return allocator

    assert benchmark(play).peak_requested_bytes == run.peak
    benchmark.extra_info["events_per_second"] = int(len(events) / benchmark.stats.stats.min)
    print(f"\n{benchmark.extra_info['events_per_second']:,} allocator events a second ({len(events):,} events)")
