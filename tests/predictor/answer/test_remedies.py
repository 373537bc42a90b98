"""Remedies: every change that is said to fit does, those that keep training the same come first, nothing is traced."""

from __future__ import annotations

import pytest

from predictor import Workload, predict
from predictor.answer import changes
from predictor.answer.remedies import ENOUGH, remedies, with_remedies
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.profile.corrections import ASSUMED_RUNTIME_BYTES

LLAVA = {"model": "llava-1.5-7b", "sequence_length": 2048, "per_device_train_batch_size": 16}
JOBS = [
    LLAVA | {"zero_stage": 2, "data_parallel_size": 8, "gpu": "a100-40gb"},
    LLAVA | {"zero_stage": 3, "data_parallel_size": 4, "gpu": "l40s", "optim": "adamw_torch"},
    LLAVA | {"zero_stage": 2, "data_parallel_size": 8, "gpu": "h100-80gb", "per_device_train_batch_size": 32},
    LLAVA | {"engine": "ddp", "data_parallel_size": 2, "gpu": "h100-80gb", "gradient_accumulation_steps": 2},
    LLAVA | {"gpu": "rtx-4090"},
]


@pytest.fixture(autouse=True)
def _only_shipped_formulas(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path))


@pytest.mark.parametrize("keys", JOBS, ids=str)
def test_what_is_said_to_fit_is_predicted_to_fit_with_the_same_bytes(keys):
    workload = Workload(**keys)
    fitting = [remedy for remedy in remedies(workload) if remedy.fits]
    assert fitting
    for remedy in fitting:
        prediction = predict(workload.replace(**remedy.keys))
        assert prediction.verdict == "fits"
        assert (prediction.peak_allocated_bytes, prediction.peak_reserved_bytes) == (
            remedy.peak_allocated_bytes, remedy.peak_reserved_bytes)


@pytest.mark.parametrize("keys", JOBS, ids=str)
def test_changes_that_keep_training_the_same_come_before_others(keys):
    families = changes.of(Workload(**keys))
    ranks = [(family[0].is_hardware, bool(family[0].differs)) for family in families]
    assert ranks == sorted(ranks) and (False, False) in ranks


def test_of_smaller_batches_the_largest_that_fits_is_chosen():
    workload = Workload(**JOBS[0])
    family = next(family for family in changes.of(workload) if "per_device_train_batch_size" in family[0].keys)
    chosen = next(remedy for remedy in remedies(workload) if "micro batch" in remedy.changes[0])
    texts = [change.text for change in family]
    before = family[texts.index(chosen.changes[0]) - 1]
    assert predict(workload.replace(**before.keys)).verdict != "fits"


def test_smaller_batches_keep_the_global_batch_size_or_are_said_to_change_it():
    workload = Workload(**JOBS[3])
    for family in changes.of(workload):
        for change in family:
            if "per_device_train_batch_size" in change.keys:
                other = workload.replace(**change.keys)
                same = other.per_device_train_batch_size * other.gradient_accumulation_steps == 32
                assert same == (not change.differs)


def test_batch_sizes_in_the_users_deepspeed_config_change_with_the_batch():
    config = {"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 1,
              "train_batch_size": 128, "zero_optimization": {"stage": 2}}
    workload = Workload(model="llava-1.5-7b", sequence_length=2048, deepspeed=config, data_parallel_size=8,
                        gpu="a100-40gb")
    chosen = next(remedy for remedy in remedies(workload) if remedy.fits and "accumulation" in remedy.changes[0])
    assert chosen.keys["deepspeed"]["train_micro_batch_size_per_gpu"] * chosen.keys["deepspeed"][
        "gradient_accumulation_steps"] == 16


def test_changes_are_made_together_where_no_single_one_fits():
    workload = Workload(**JOBS[0], capacity_bytes=24 << 30).replace(gpu=None)
    together = remedies(workload)[-1]
    assert together.fits and len(together.changes) > 1
    assert not any(remedy.fits for remedy in remedies(workload)[:-1])
    assert predict(workload.replace(**together.keys)).verdict == "fits"


def test_a_change_without_a_formula_is_not_traced_but_named(monkeypatch):
    monkeypatch.setattr("predictor.formula.tracing.trace_formula", None)
    named = [remedy for remedy in remedies(Workload(**JOBS[0])) if remedy.needs_trace]
    assert any("use_liger_kernel" in remedy.changes[0] for remedy in named)
    assert {remedy.fits for remedy in named} == {None}


def test_the_search_ends_after_enough_that_fit():
    assert sum(bool(remedy.fits) for remedy in remedies(Workload(**JOBS[2]))) == ENOUGH


def test_only_a_job_that_does_not_surely_fit_gets_remedies():
    fitting = Workload(**JOBS[2], allocator_conf="expandable_segments:True")
    assert with_remedies(predict(fitting), fitting).remedies is None
    dying = Workload(**JOBS[2])
    assert with_remedies(predict(dying), dying).remedies


def test_remedies_need_a_gpu():
    with pytest.raises(InputError, match="remedies need a GPU"):
        remedies(Workload(**LLAVA))


def test_the_price_of_a_larger_gpu_says_where_its_capacity_is_assumed():
    family = next(family for family in changes.of(Workload(**LLAVA | {"gpu": "a100-40gb"})) if "gpu" in family[0].keys)
    assert {change.costs for change in family} == {"a larger GPU", "a larger GPU, of an assumed capacity"}
    for change in family:
        assert ("assumed" in change.costs) == (not gpus.find(change.keys["gpu"]).measured)


def test_a_change_whose_tensors_have_room_is_told_from_one_whose_tensors_alone_do_not_fit():
    workload = Workload(model="llava-1.5-7b", sequence_length=1024, per_device_train_batch_size=4, profile="none",
                        capacity_bytes=int(52.55 * (1 << 30)))
    failing = [remedy for remedy in remedies(workload) if remedy.fits is False]
    assert {remedy.room_bytes >= 0 for remedy in failing} == {True, False}
    for remedy in failing:
        other = workload.replace(**remedy.keys)
        alone = predict(other.replace(capacity_bytes=None))
        surely = workload.capacity_bytes - ASSUMED_RUNTIME_BYTES
        assert surely - remedy.peak_requested_bytes == remedy.room_bytes
        assert alone.peak_requested_bytes == remedy.peak_requested_bytes
        assert alone.peak_reserved_bytes > surely
