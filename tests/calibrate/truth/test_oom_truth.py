"""Out-of-memory errors of the real PyTorch on the emulated GPU: messages tell the allocator's numbers, predictions agree."""

import json
from functools import cache

import pytest

from calibrate.measure.measure import measure
from predictor.cli import main
from predictor.oom.explanation import Cure, Explanation, explain
from predictor.oom.message import Message, find
from predictor.oom.recorded import recorded_failure
from predictor.oom.reproduction import reproduce
from predictor.snapshot import read
from predictor.workload.workload import Workload
from tests.calibrate.emulator.test_emulator import run_job
from tests.calibrate.small_jobs import model_file, needs_emulator, workload

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

MIB, GIB = 1 << 20, 1 << 30

PROVOKE = """
def provoke(size):
    try:
        torch.empty(size, dtype=torch.uint8, device="cuda")
        answer({"message": None})
    except RuntimeError as error:
        stats, (free, total) = torch.cuda.memory_stats(), torch.cuda.mem_get_info()
        answer({"message": str(error), "allocated": stats["allocated_bytes.all.current"], "free": free,
                "capacity": total, "reserved": stats["reserved_bytes.all.current"]})
"""
FRAGMENTED = """
large = torch.empty(720 << 20, dtype=torch.uint8, device="cuda")
del large
kept = [torch.empty(90 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
del kept[1::2]
"""
SITUATIONS = {
    "full": ("kept = torch.empty(900 << 20, dtype=torch.uint8, device='cuda')", 200_000_001),
    "fragmented": (FRAGMENTED, 400 << 20),
    "fraction": ("torch.cuda.set_per_process_memory_fraction(0.25)\nkept = torch.empty(777, device='cuda')", 300 << 20),
    "pools": ("""
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    kept = [torch.empty(60 << 20, dtype=torch.uint8, device="cuda") for _ in range(5)]
    del kept[1], kept[1]
""" + FRAGMENTED.replace("kept", "more").replace("720", "360").replace("90", "45"), 500 << 20),
}


def provoked(name: str) -> tuple[Message, dict]:
    """The message of one situation on a GPU of 1 GiB, and what PyTorch's statistics say right after it."""
    facts = run(name)
    [message] = find(f"some log\n{facts['message']}\nmore of it")
    return message, facts


@cache
def run(name: str, **variables: str) -> dict:
    before, size = SITUATIONS[name]
    return run_job(f"{PROVOKE}\n{before}\nprovoke({size})", capacity_bytes=GIB, extra=variables)


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_message_tells_the_numbers_of_the_allocator(name):
    message, facts = provoked(name)
    for counter in ("allocated", "reserved", "free", "capacity"):
        assert getattr(message, counter).may_be(facts[counter])
    assert message.requested.may_be(-(-SITUATIONS[name][1] // (2 * MIB)) * 2 * MIB)
    assert (message.allowed is not None, message.pools is not None) == (name == "fraction", name == "pools")


def test_what_is_called_allocated_in_private_pools_is_free():
    message, facts = provoked("pools")
    assert message.pools.bytes == 120 * MIB  # of five tensors of 60 MiB, two were freed
    assert facts["message"].count("allocated in private pools") == 1


@pytest.mark.parametrize("name, cure", [("fragmented", Cure.EXPANDABLE_SEGMENTS), ("fraction", Cure.MEMORY_FRACTION),
                                        ("full", Cure.SMALLER_JOB)])
def test_the_remedy_is_that_of_the_situation(name, cure):
    assert [advice.cure for advice in explain(provoked(name)[0]).advice] == [cure]


def test_expandable_segments_cure_what_they_are_named_for():
    assert run("fragmented", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")["message"] is None
    assert run("full", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")["message"] is not None


def explained(record) -> Explanation:
    """The only message of a measured job."""
    [message] = find(record.job.out_of_memory.message)
    return explain(message)


JOBS = {
    "plain": {"capacity_bytes": 48 * MIB},
    "expandable": {"capacity_bytes": 44 * MIB, "allocator_conf": "expandable_segments:True"},
    "zero-2": {"capacity_bytes": 30 * MIB, "zero_stage": 2, "data_parallel_size": 2, "rank": 1},
}


@pytest.mark.parametrize("job", JOBS)
def test_the_predicted_failure_is_the_reported_one(job, tmp_path):
    asked = workload(tmp_path, **JOBS[job])
    record = measure(asked)
    explanation = explained(record)
    found = reproduce(explanation, asked, explanation.message.capacity.bytes)
    assert found.agrees and found.outcome.failure.moment == record.job.out_of_memory.moment
    assert found.outcome.failure.step == record.job.out_of_memory.step
    assert found.outcome.segment_bytes == record.job.out_of_memory.tried_to_allocate_bytes
    assert sum(found.outcome.factors.values()) == found.outcome.failure.allocated_bytes


@pytest.mark.parametrize("keys", [{}, {"zero_stage": 2, "data_parallel_size": 2, "rank": 1}])
def test_the_command_explains_the_death_and_its_remedies_survive(keys, tmp_path, capsys):
    asked = {"model": model_file(tmp_path), "sequence_length": 256, "per_device_train_batch_size": 8,
             "capacity_bytes": 81 * MIB, "profile": "emulated"} | keys
    log, file = tmp_path / "train.log", tmp_path / "job.json"
    log.write_text(f"step 1\n[rank1]: torch.OutOfMemoryError: {measure(Workload(**asked)).job.out_of_memory.message}\n")
    file.write_text(json.dumps(asked))
    assert main(["oom", str(log), "--workload", str(file), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["reproduction"]["agrees"] and said["reproduction"]["out_of_memory"]["operator"]
    first = next(remedy for remedy in said["remedies"] if remedy["fits"])
    assert measure(Workload(**asked | first["keys"])).job.out_of_memory is None


def test_another_job_is_not_taken_for_the_reported_one(tmp_path):
    explanation = explained(measure(workload(tmp_path, **JOBS["plain"])))
    other = workload(tmp_path, **JOBS["plain"] | {"sequence_length": 96})
    assert not reproduce(explanation, other, explanation.message.capacity.bytes).agrees


def test_the_snapshot_of_a_failed_job_has_the_same_failure(tmp_path):
    path = tmp_path / "history.pickle"
    message = explained(measure(workload(tmp_path, **JOBS["plain"]), snapshot=str(path))).message
    failure = recorded_failure(read(path), 0)
    assert failure.is_of(message) and message.reserved.may_be(failure.reserved_bytes)
    assert message.free.may_be(failure.free_bytes)
    assert sum(group.bytes for group in failure.allocations) <= failure.allocated_bytes
    assert failure.fits_unfragmented is False
