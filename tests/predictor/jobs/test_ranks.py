"""Ranks that differ, and the worst rank: no other rank has a higher peak."""

from __future__ import annotations

import json

import numpy as np
import pytest

from predictor.answer.predict import predict
from predictor.engine.setup import STEPS
from predictor.events.composed_run import Run
from predictor.jobs import dispatch, training_job
from predictor.report.verdict import bounds
from predictor.workload.workload import Workload
from tests.predictor.model.test_tensor_parallel import asked
from tests.predictor.small import small_config, small_llama

ROUND_ROBIN = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "round_robin_gradients": True}}
OVERLAP = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "overlap_comm": True,
                                                            "contiguous_gradients": False}}
LARGE = {"model": "llava-1.5-7b", "per_device_train_batch_size": 8, "sequence_length": 777, "zero_stage": 2,
         "profile": "none"}


def job(directory, degree: int, **keys) -> training_job.Job:
    (directory / "config.json").write_text(json.dumps(small_config()))
    return dispatch.prepare(Workload(**{"model": str(directory), "sequence_length": 16, "profile": "none",
                                        "gpu": "h100-80gb", "data_parallel_size": degree} | keys))


def seen(run: Run) -> tuple:
    """All that an allocator sees of a run, its buffers numbered by when they first live."""
    events, size = run.events, run.row_bytes[run.events.buffers.size[run.events.buffer]]
    of_none = (np.abs(events.kind) == 1) & (size == 0)
    kind, buffer, size = (column[~of_none] for column in (events.kind, events.buffer, size))
    _, first, number = np.unique(buffer, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))[number]
    return tuple(column.tobytes() for column in (kind, order, size, events.buffers.stream[buffer]))


def check_different(asked: training_job.Job) -> None:
    """Every rank has the events of one that is judged."""
    judged = {seen(asked.run(None, rank)) for rank in asked.ranks(None)}
    assert {seen(asked.run(None, rank)) for rank in range(asked.setup.world_size)} == judged


@pytest.mark.parametrize("degree", [2, 3, 8, 64])
@pytest.mark.parametrize("keys", [
    {"zero_stage": 1}, {"zero_stage": 2, "gradient_accumulation_steps": 2}, {"deepspeed": ROUND_ROBIN},
    {"deepspeed": OVERLAP}, {"zero_stage": 2, "offload": "optimizer"}, {"zero_stage": 3}, {"zero_stage": 0},
    {"engine": "ddp"}, {"engine": "fsdp2"}, {"engine": "fsdp2", "recipe": "full"}], ids=str)
def test_every_rank_has_the_events_of_one_that_is_judged(tmp_path, keys, degree):
    check_different(job(tmp_path, degree, **keys))


@pytest.mark.parametrize("stage", [0, 1])
def test_every_rank_that_shares_its_layers_has_the_events_of_one_that_is_judged(tmp_path, stage):
    check_different(dispatch.prepare(asked(tmp_path, small_llama(), zero_stage=stage, data_parallel_size=4)))


@pytest.mark.parametrize("keys", [{"engine": "ddp"}, {"zero_stage": 3}], ids=str)
def test_ranks_that_are_all_alike_are_judged_once(tmp_path, keys):
    assert job(tmp_path, 64, **keys).ranks(None) == [0]


@pytest.mark.parametrize("keys", [
    {"gradient_checkpointing": False, "data_parallel_size": 4},
    {"gradient_checkpointing": False, "data_parallel_size": 4, "capacity_bytes": 88 << 30},
    {"gradient_checkpointing": False, "data_parallel_size": 4, "capacity_bytes": 79 << 30}, {"data_parallel_size": 8}],
    ids=str)
def test_the_worst_rank_is_no_better_than_any_other_in_any_peak(keys):
    worst = predict(Workload(**LARGE | keys))
    each = [predict(Workload(**LARGE | keys, rank=rank)) for rank in range(keys["data_parallel_size"])]
    for peak in ("requested", "allocated", "reserved"):
        assert getattr(worst, peak).bytes == max(getattr(one, peak).bytes for one in each), peak
    order = (None, "fits", "uncertain", "does_not_fit")
    assert worst.verdict == max((one.verdict for one in each), key=order.index)
    assert sum(worst.factors.values()) == worst.peak_allocated_bytes


def test_a_peak_of_another_rank_is_said_to_be():
    found = predict(Workload(**LARGE, gradient_checkpointing=False, data_parallel_size=4))
    assert (found.peak.rank, found.peak.allocated_rank, found.peak.reserved_rank) == (3, 3, 2)
    meanings = {peak.name: peak.meaning for peak in bounds(found)}
    assert meanings["reserved"].endswith(" on rank 2") and "rank" not in meanings["allocated"]


def test_where_ranks_are_too_many_to_simulate_some_are_and_the_answer_says_so(tmp_path, monkeypatch):
    asked = job(tmp_path, 8, zero_stage=2)
    assert not any("ranks whose memory differs" in note for note in asked.notes())
    different = asked.different_ranks()
    monkeypatch.setattr(training_job, "MOST_EVENTS", 3 * STEPS * len(asked.formula.micro.events))
    assert asked.judged_ranks() == [different[0], different[(len(different) - 1) // 2], different[-1]]
    assert set(asked.ranks(None)) >= set(asked.judged_ranks())
    note, = (note for note in asked.notes() if "ranks whose memory differs" in note)
    assert note.startswith(f"{len(different) - 3} of the {len(different)} ranks")
    assert not any("ranks whose memory differs" in note for note in job(tmp_path, 8, zero_stage=2, rank=1).notes())
