"""Jobs that are forked from a process that has done the imports."""

from __future__ import annotations

import signal
import sys

import pytest

from calibrate.job.job import JobRequest
from calibrate.measure import warm_workers
from calibrate.measure.measure import measure
from predictor.common import gpus
from predictor.common.errors import InputError
from tests.calibrate.small_jobs import needs_emulator, workload


@pytest.fixture(scope="module")
def forked():
    """Workers of this file's own, which its jobs share."""
    with warm_workers.forked_jobs(apart_from=("PYTEST_CURRENT_TEST",)):
        yield


def order_of(parent: int = 0) -> JobRequest:
    return JobRequest(workload={}, rank=0, answer="", snapshot=None, limit_bytes=None, event_completion="immediate", parent=parent)


@needs_emulator
def test_a_forked_job_measures_what_a_started_one_does(forked, tmp_path, monkeypatch):
    asked = workload(tmp_path, gpu="h100-80gb", zero_stage=2, data_parallel_size=8, rank=7)
    first, second = measure(asked), measure(asked)
    monkeypatch.setattr(warm_workers, "run", lambda *_: None)
    started = measure(asked)
    for record in (first, second):
        assert (record.job.memory_stats, record.job.moments) == (started.job.memory_stats, started.job.moments)
        assert (record.job.device, record.job.settings) == (started.job.device, started.job.settings)


@needs_emulator
def test_a_forked_job_is_on_its_own_gpu(forked, tmp_path):
    asked, wanted = workload(tmp_path), [("h100-80gb", "immediate"), ("a10", "synchronization"), ("b200", "launches:3")]
    found = [measure(asked.replace(gpu=name), events=events).job.device for name, events in wanted]
    assert len(warm_workers._workers.get()._known) == 1
    assert [(gpu.compute_capability, gpu.capacity_bytes, gpu.event_completion) for gpu in found] == [
        (gpus.find(name).compute_capability, gpus.find(name).capacity_bytes, events) for name, events in wanted]


@needs_emulator
def test_a_job_finds_the_variables_that_its_measurement_has(forked, tmp_path):
    """Another allocator is set by a variable that is read once."""
    asked = workload(tmp_path, gpu="h100-80gb")
    jobs = [measure(asked.replace(allocator_conf=conf)).job for conf in (None, "expandable_segments:True", None)]
    assert len(warm_workers._workers.get()._known) == 1
    for of in (lambda job: job.settings, lambda job: job.memory_stats):
        assert of(jobs[0]) == of(jobs[2]) != of(jobs[1])


def test_another_allocator_has_a_worker_of_its_own(monkeypatch):
    """PyTorch chooses it during import."""
    class Worker:
        def __init__(self, environment, _):
            self.conf = environment["PYTORCH_ALLOC_CONF"]

        def run(self, *_):
            return 0

    monkeypatch.setattr(warm_workers, "_Worker", Worker)
    workers = warm_workers._Workers(())
    for conf in ("backend:native", "max_split_size_mb:20", "expandable_segments:True"):
        assert workers.run(order_of(), {"PYTORCH_ALLOC_CONF": conf}, "", sys.executable) == 0
    assert [worker.conf for worker in workers._known.values()] == ["backend:native", "max_split_size_mb:20"]


def test_outside_nothing_is_forked(monkeypatch):
    monkeypatch.setattr(warm_workers, "_workers", type(warm_workers._workers)("empty", default=None))
    assert warm_workers.run(order_of(), {}, "", sys.executable) is None


def test_what_cannot_fork_leaves_the_job_to_be_started(tmp_path):
    """A process that ends while it imports, here for want of Python's own modules."""
    with warm_workers.forked_jobs():
        assert warm_workers.run(order_of(), {"PYTHONHOME": str(tmp_path)}, str(tmp_path / "log"), sys.executable) is None


@needs_emulator
def test_a_job_that_is_killed_says_by_what(tmp_path, monkeypatch):
    asked = workload(tmp_path, gpu="h100-80gb")
    monkeypatch.setattr(warm_workers._Worker, "run", lambda *_: -signal.SIGKILL)
    with warm_workers.forked_jobs(), pytest.raises(InputError, match="was killed by SIGKILL"):
        measure(asked)


@needs_emulator
def test_origins_beyond_the_last_used_end(tmp_path, monkeypatch):
    asked = workload(tmp_path, gpu="h100-80gb")
    monkeypatch.setattr(warm_workers, "MOST", 1)
    with warm_workers.forked_jobs():
        for number in range(warm_workers.MOST + 1):
            monkeypatch.setenv("NUMBER", str(number))
            measure(asked)
        workers = warm_workers._workers.get()._known.values()
        assert len(workers) == warm_workers.MOST
        processes = [worker._process for worker in workers]
        assert all(process.poll() is None for process in processes)
    assert all(process.poll() is not None for process in processes)
