"""Evaluations between the steps of a course."""

import json
from dataclasses import replace

import numpy as np
import pytest

from predictor.answer.course_prediction import LEFT_OUT, predict_course
from predictor.common.errors import InputError
from predictor.course.course import Request
from predictor.course.evaluation import Evaluating
from predictor.report import course as report
from predictor.report.verdict import verdict
from predictor.workload.samples import Samples
from predictor.workload.workload import Workload
from tests.predictor.small import small_llama

pytestmark = pytest.mark.usefixtures("formula_cache")
LENGTHS = Samples(np.arange(20, 60), np.zeros(40, dtype=np.int64))
HELD_OUT = Samples(np.arange(30, 49), np.zeros(19, dtype=np.int64))


@pytest.fixture
def workload(tmp_path):
    (tmp_path / "llama.json").write_text(json.dumps(small_llama()))
    return Workload(model=str(tmp_path / "llama.json"), per_device_train_batch_size=2, sequence_length=64, profile="none",
                    rank=0)


def course(workload, evaluating=None, steps=4):
    return predict_course(workload, LENGTHS, Request(steps=steps, evaluating=evaluating))


def test_every_rank_evaluates_its_share_in_batches_of_eight(workload):
    found = course(workload.replace(engine="ddp", data_parallel_size=2), Evaluating(2, HELD_OUT)).course
    assert (found.eval_steps, found.eval_batches) == (2, 2)  # 19 samples on 2 ranks


def test_an_evaluation_counts_to_the_step_before_it(workload):
    """Forward passes of 16 samples request more than training on 2, and leave no block behind."""
    plain, evaluated = (course(workload.replace(per_device_eval_batch_size=16), evaluating).course.columns
                        for evaluating in (None, Evaluating(3, HELD_OUT)))
    higher = np.greater(evaluated["peak_requested_bytes"], plain["peak_requested_bytes"])
    assert np.flatnonzero(higher).tolist() == [3]
    assert evaluated["requested_bytes"] == plain["requested_bytes"]
    assert evaluated["allocated_bytes"] == plain["allocated_bytes"]


def test_an_evaluation_that_fails_is_named(workload):
    plain = course(workload.replace(capacity_bytes=80 << 30)).course
    capacity = (80 << 30) - plain.limit_bytes + plain.peak_reserved_bytes
    large = workload.replace(per_device_eval_batch_size=512, capacity_bytes=capacity)
    prediction = course(large, Evaluating(2, Samples(np.full(512, 64), np.zeros(512, dtype=np.int64))))
    failure = prediction.course.failure
    assert (failure.step, failure.evaluated, failure.tokens) == (2, 1, 64)
    assert report.headline(prediction.course) == "This training may run out of memory in the evaluation after step 2 of 4."
    assert report._failed(failure).startswith("The evaluation after step 2 fails on rank 0 at its batch 1 in evaluation")
    assert " allocated by training's largest batch, " in verdict(prediction)
    tried = [trial.setting for trial in prediction.course.trials]
    assert tried[:2] == ["per_device_eval_batch_size 256", "per_device_eval_batch_size 64"]
    unhelped = replace(prediction, course=replace(prediction.course, trials=()))
    assert "a still smaller --per-device-eval-batch-size, or shorter --eval-samples." in report._advice(unhelped)[-1]


def test_evaluations_that_are_not_asked_for_are_said_to_be_left_out(workload):
    assert LEFT_OUT in course(workload.replace(per_device_eval_batch_size=4)).assumptions
    assert LEFT_OUT not in course(workload).assumptions
    assert LEFT_OUT not in course(workload.replace(per_device_eval_batch_size=4), Evaluating(2, HELD_OUT)).assumptions


def test_a_smaller_batch_of_the_evaluation_may_prevent_its_failure(workload):
    held_out = Evaluating(2, Samples(np.full(64, 64), np.zeros(64, dtype=np.int64)))
    small = course(workload.replace(per_device_eval_batch_size=8, capacity_bytes=80 << 30), held_out).course
    capacity = (80 << 30) - small.limit_bytes + small.peak_reserved_bytes
    found = course(workload.replace(per_device_eval_batch_size=64, capacity_bytes=capacity), held_out).course
    assert found.failure.evaluated and {trial.setting: trial.prevents for trial in found.trials}["per_device_eval_batch_size 8"]


@pytest.mark.parametrize(("keys", "evaluating", "words"), [
    ({}, (0, HELD_OUT), "eval_steps 0"), ({"zero_stage": 3, "data_parallel_size": 2}, (2, HELD_OUT), "evaluation")])
def test_what_cannot_be_evaluated_is_refused(workload, keys, evaluating, words):
    with pytest.raises(InputError, match=words):
        course(workload.replace(**keys), Evaluating(*evaluating))
