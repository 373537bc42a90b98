"""Small jobs for the tests of measuring: a tiny LLaVA as a file, and records made by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from calibrate.emulator import build
from calibrate.measure.measure import measure
from calibrate.records.moment_peaks import MomentPeaks
from calibrate.records.record import Device, MeasuredJob, MeasuredOn, RankChoice, Record
from predictor.allocator.simulate import Simulation
from predictor.common.errors import InputError
from predictor.events.composed_run import Run
from predictor.events.events import Moment
from predictor.jobs import dispatch, survival
from predictor.version import VERSION
from predictor.workload.workload import Workload
from tests.predictor.small import small_config

ROOT = Path(__file__).parents[2]
SEQUENCE, BATCH = 64, 2


def can_emulate() -> bool:
    """A CUDA build of PyTorch and a C compiler."""
    try:
        build.find_torch()
    except InputError:
        return False
    return bool(shutil.which("cc") or shutil.which("gcc")) and shutil.which("nm") is not None


needs_emulator = pytest.mark.skipif(not can_emulate(), reason="needs a CUDA build of PyTorch and a C compiler")


def model_file(directory: Path) -> str:
    """The path of a ``config.json`` with a tiny LLaVA."""
    path = directory / "config.json"
    path.write_text(json.dumps(small_config()))
    return str(path)


def sample(samples: int = 2, tokens: int = 64, images: int = 2) -> dict:
    """A batch as the tiny LLaVA takes it."""
    import torch

    return {"input_ids": torch.ones(samples, tokens, dtype=torch.int64),
            "labels": torch.ones(samples, tokens, dtype=torch.int64), "pixel_values": torch.zeros(images, 3, 28, 28)}


def workload(directory: Path, **changes) -> Workload:
    """Two samples of 64 tokens."""
    return Workload(**{"model": model_file(directory), "sequence_length": SEQUENCE,
                       "per_device_train_batch_size": BATCH} | changes)


def measured_and_predicted(asked: Workload) -> tuple[Record, Run, Simulation]:
    """A job on the emulated GPU, its predicted run as the same rank, and that through the simulated allocator."""
    record, job = measure(asked), dispatch.prepare(asked)
    run = job.run(asked.capacity, record.rank)
    return record, run, survival.simulate_run(run, job.setup.allocator, completion="immediate", total_bytes=asked.capacity)


def check_predicted(asked: Workload, events: str, *, reserved_off_bytes: int = 0) -> None:
    """A job on the emulated GPU, whose events complete as said, needs what is predicted of it."""
    job = dispatch.prepare(asked)
    run = job.run(asked.capacity)
    simulation = survival.simulate_run(run, job.setup.allocator, completion=events, total_bytes=asked.capacity)
    record = measure(asked, events=events)
    if events == "immediate":  # blocks that wait for another stream still count as requested
        assert record.peak("requested_bytes").bytes == run.peak
    assert record.peak("allocated_bytes").bytes == simulation.peak_allocated_bytes
    assert 0 <= record.peak("reserved_bytes").bytes - simulation.peak_reserved_bytes <= reserved_off_bytes


def words(directory: Path, *more: str) -> list[str]:
    """The same workload on a command line."""
    return ["measure", model_file(directory), "--sequence-length", str(SEQUENCE), "--per-device-train-batch-size",
            str(BATCH), "--device", "emulated", *more]


def record(**changes) -> Record:
    """A record made by hand: requested bytes are highest in backward of steps 2 and 3."""
    def row(step, moment, size):
        return MomentPeaks(step, moment, size, size + 512, size + 4096)

    rows = (row(0, Moment.INIT, 1000), row(1, Moment.FORWARD, 2000), row(2, Moment.BACKWARD, 3000),
            row(3, Moment.BACKWARD, 3000))
    job = MeasuredJob(
        measured_on=MeasuredOn.EMULATED, device=Device("H100", 1 << 30, (9, 0), 132, None, "immediate"),
        software={"torch": "2.11.0", "deepspeed": None}, settings={}, process_group="none", moments=rows, out_of_memory=None,
        memory_stats={"num_ooms": 0}, device_used_bytes=8192, nvml_used_bytes=None,
        started_at="2026-01-01T00:00:00+00:00", finished_at="2026-01-01T00:00:05+00:00", seconds=5.0)
    values = {"schema_version": 1, "peakcast_version": VERSION, "workload": {"model": "small"}, "rank": 0,
              "rank_chosen_by": RankChoice.WORKLOAD, "job": job, "command": ("peakcast",), "snapshot": None,
              "predicted": None, "not_predicted": "made by hand"}
    return Record(**values | changes)
