"""Reserved memory in other training loops: the reference loop is the prediction, and the interval includes them all."""

import json
from dataclasses import replace

import pytest

from predictor import cli
from predictor.answer import loop_variants
from predictor.answer.predict import predict
from predictor.answer.prediction import LoopVariant
from predictor.common.errors import InputError
from predictor.jobs import dispatch
from predictor.report.loops import sentences
from predictor.workload.workload import Workload

JOBS = {"zero2": {"zero_stage": 2, "data_parallel_size": 8}, "plain": {"recipe": "pretrain"},
        "accumulated": {"zero_stage": 2, "data_parallel_size": 4, "gradient_accumulation_steps": 2}}


@pytest.mark.parametrize("keys", JOBS.values(), ids=JOBS)
def test_the_reference_loop_is_the_prediction_and_the_interval_has_every_loop(keys):
    workload = Workload(model="llava-1.5-7b", sequence_length=1024, per_device_train_batch_size=4, profile="none", **keys)
    prediction = predict(workload, loops=True)
    peaks = [variant.reserved_bytes for variant in prediction.loops]
    assert peaks[0] == prediction.peak_reserved_bytes
    assert prediction.peak_reserved_bytes_low == min(peaks) and prediction.peak_reserved_bytes_high == max(peaks)
    assert len({variant.loop for variant in prediction.loops}) == len(peaks) >= 6
    assert prediction.is_fragile is prediction.to_json()["is_fragile"] is (max(peaks) > 1.01 * min(peaks))


def test_loops_with_too_many_events_are_refused_with_their_number(monkeypatch):
    workload = Workload(model="llava-1.5-7b", sequence_length=1024, gradient_accumulation_steps=100)
    events = loop_variants.STEPS * loop_variants.MOST_MICRO_STEPS * len(dispatch.prepare(workload).formula.micro.events)
    monkeypatch.setattr(loop_variants, "MOST_EVENTS", events - 1)
    with pytest.raises(InputError, match=f"have {events:,} allocations and frees, and at most {events - 1:,} are simulated"):
        predict(workload, loops=True)


def test_the_order_of_addresses_is_a_variant_unless_a_profile_knows_it():
    workload = Workload(model="llava-1.5-7b", sequence_length=1024, gpu="h200")
    loops = {profile: [one.loop for one in predict(workload.replace(profile=profile), loops=True).loops]
             for profile in ("none", None)}
    assert [any("go down" in loop for loop in names) for names in loops.values()] == [True, False]


def test_without_the_option_nothing_changes():
    workload = Workload(model="llava-1.5-7b", sequence_length=1024, profile="none")
    prediction = predict(workload)
    assert (prediction.loops, prediction.peak_reserved_bytes_low, sentences(prediction)) == (None, None, [])
    assert "loops" not in prediction.to_json()


@pytest.mark.parametrize("peaks, words", [
    ((100 << 30, 103 << 30), "is fragile"), ((100 << 30, 100 << 30), "hardly depends"),
    ((None, None), "In every simulated loop it runs out of memory"), ((100 << 30, None), "where it survives (100.00 GiB to 100.00 GiB, 0.0%), and the job runs out of memory in 1 of 2:")])
def test_the_spread_is_put_into_words(peaks, words):
    prediction = predict(Workload(model="llava-1.5-7b", sequence_length=1024, profile="none"))
    told = replace(prediction, loops=tuple(LoopVariant("a loop", peak) for peak in peaks), is_fragile="fragile" in words)
    lines = sentences(told)
    assert words in lines[0] and len(lines) == 3


def test_the_command_prints_each_loop(capsys):
    words = ["predict", "llava-1.5-7b", "--sequence-length", "1024", "--loops", "--json"]
    assert cli.main(words) == 0
    loops = json.loads(capsys.readouterr().out)["loops"]
    assert all(isinstance(entry["reserved_bytes"], int) for entry in loops) and len(loops) >= 6
    assert cli.main(words[:-1]) == 0
    assert all(entry["loop"] in " ".join(capsys.readouterr().out.split()) for entry in loops[:1])
