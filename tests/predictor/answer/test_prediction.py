"""The attributes of a prediction: integers named as the keys of its JSON, and the old names of its intervals."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

from predictor import Workload, predict
from predictor.answer.prediction import Bound, Prediction
from predictor.profile.corrections import ASSUMED_RUNTIME_BYTES
from tests.predictor import samples

COUNTERS = ("requested", "allocated", "reserved", "device")
SIZES = [f"peak_{counter}_bytes{end}" for counter in COUNTERS for end in ("", "_low", "_high")] + [
    "fragmentation_bytes", "capacity_bytes", "headroom_bytes", "minimum_capacity_bytes"]
NEVER_NULL = {"peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "fragmentation_bytes"}


def small(**keys) -> Prediction:
    return predict(Workload(**{"model": "llava-1.5-7b", "sequence_length": 1024, "data_parallel_size": 8, "zero_stage": 2} | keys),
                   minimum_capacity="gpu" in keys)


def check(prediction: Prediction) -> None:
    document = prediction.to_json()
    assert [key for key in document if "_bytes" in key] == SIZES
    for name in SIZES:
        size = getattr(prediction, name)
        assert type(size) is int or size is None and name not in NEVER_NULL, name
        assert size == document[name], name


def test_every_size_of_the_json_is_a_plain_integer_attribute_of_the_same_name():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for prediction in (small(), small(gpu="h200", profile="none"), small(gpu="h200"), small(gpu="l4"),
                           samples.prediction()):
            check(prediction)


def test_without_a_capacity_its_sizes_are_none():
    prediction = small()
    assert prediction.capacity_bytes is prediction.headroom_bytes is prediction.minimum_capacity_bytes is None


@pytest.mark.parametrize("counter", COUNTERS)
def test_the_integers_are_those_of_the_interval(counter):
    prediction = replace(samples.prediction(), **{counter: Bound(7, 5, 9)})
    assert [getattr(prediction, f"peak_{counter}_bytes{end}") for end in ("", "_low", "_high")] == [7, 5, 9]


def test_without_a_profile_the_device_peak_is_none():
    prediction = samples.prediction()
    assert prediction.device is None
    assert prediction.peak_device_bytes is prediction.peak_device_bytes_low is prediction.peak_device_bytes_high is None


@pytest.mark.parametrize("counter", COUNTERS)
def test_the_old_name_of_an_interval_works_and_warns_with_the_new_name(counter):
    prediction = samples.prediction()
    with pytest.warns(DeprecationWarning, match=f"peak_{counter} is deprecated: use .*peak_{counter}_bytes.*prediction.{counter}") as seen:
        assert getattr(prediction, f"peak_{counter}") is getattr(prediction, counter)
    assert seen[0].filename == __file__


def test_the_lower_end_of_a_whole_is_no_less_than_that_of_its_part():
    assert Bound(10, 5, 15).not_below(Bound(9, 7, 11)) == Bound(10, 7, 15)
    assert Bound(10, 8, 15).not_below(Bound(9, 7, 11)) == Bound(10, 8, 15)
    assert Bound(10).not_below(Bound(9, 7, 11)) == Bound(10)


def test_a_loop_that_turns_an_uncertain_verdict_into_does_not_fit_is_told_with_its_bytes():
    workload = Workload(model="llava-1.5-7b", recipe="finetune", per_device_train_batch_size=16, sequence_length=2048, zero_stage=2, data_parallel_size=8, profile="none")
    capacity = predict(workload, minimum_capacity=True).minimum_capacity_bytes - ASSUMED_RUNTIME_BYTES
    uncertain, kept = (predict(workload.replace(capacity_bytes=capacity, **keys)) for keys in ({}, {"keep_outputs": "next_forward"}))
    assert (uncertain.verdict, kept.verdict) == ("uncertain", "does_not_fit")
    (caution,) = uncertain.cautions
    assert caution.verdict == "uncertain" and caution.more_bytes == kept.reserved.bytes - uncertain.reserved.bytes
    assert 0 < caution.free_bytes < min(caution.more_bytes, capacity - uncertain.reserved.bytes)
    assert not predict(workload.replace(capacity_bytes=capacity, keep_outputs="none")).cautions
