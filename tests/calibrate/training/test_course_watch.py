"""A training beside its simulated course: the error is announced, and a training that leaves the course is told once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibrate.training import course_watch
from calibrate.training.course_watch import CourseWatch
from calibrate.training.messages import RankMessages
from predictor.common.errors import InputError

GIB = 1 << 30
FAILURE = {"step": 15, "tokens": 1024, "samples": [3, 9]}
TRIALS = [{"setting": "torch_empty_cache_steps 1", "failed_at": 3, "failed": 0},
          {"setting": "max_split_size_mb:128", "failed_at": None, "failed": 1},
          {"setting": "expandable_segments:True", "failed_at": None, "failed": 0}]
ERROR = "runs out of memory at step 15, with a batch of 2 x 1,024 tokens"
CURE = "; prevented by expandable_segments:True"


def course_file(directory: Path, **changes) -> str:
    course = {"rank": 0, "columns": {"reserved_bytes": [GIB] * 16}, "failure": FAILURE, "trials": TRIALS} | changes
    path = directory / "course.json"
    path.write_text(json.dumps({"course": course}))
    return str(path)


def followed(path: str, reserved: list[int], rank: int = 0, done: int = 0) -> list[str]:
    """What is said while a training reserves so much after its steps."""
    lines: list[str] = []
    watch = CourseWatch(course_watch.read(path), RankMessages(lines.append, rank), rank, done)
    watch.begin()
    for step, size in enumerate(reserved, start=1):
        watch.after_step(step, size)
    return lines


def test_an_error_is_announced_at_the_start_and_ten_steps_before(tmp_path):
    assert followed(course_file(tmp_path), [GIB] * 4) == [f"the simulated course {ERROR}{CURE}"]
    assert followed(course_file(tmp_path), [GIB] * 14)[1:] == [
        f"warning: step 5 is as simulated, and the simulated course {ERROR}{CURE}"]


def test_packed_samples_are_told_with_the_tokens_of_their_row(tmp_path):
    path = course_file(tmp_path, failure=FAILURE | {"packed": True})
    assert "with a batch of 2 samples packed into one row of 1,024 tokens" in followed(path, [GIB])[0]


def test_a_training_that_leaves_the_course_is_told_once(tmp_path):
    lines = followed(course_file(tmp_path), [GIB, 2 * GIB, 3 * GIB, *[GIB] * 12])
    assert len(lines) == 2 and lines[1].startswith("step 2: PyTorch reserves 2.00 GiB, more than the simulated 1.00 GiB")


def test_a_step_that_should_have_failed_and_did_not_is_told(tmp_path):
    assert followed(course_file(tmp_path), [GIB] * 15)[-1] == (
        f"step 15 survived, although the simulated course {ERROR}: this training differs from the simulated one")


def test_what_an_evaluation_reserves_is_not_compared_before_it(tmp_path):
    path = course_file(tmp_path, failure=None, trials=[], eval_steps=3, columns={"reserved_bytes": [GIB] * 3 + [2 * GIB] * 9})
    assert followed(path, [GIB, GIB, GIB, 2 * GIB, 2 * GIB, 2 * GIB]) == []


def test_an_evaluation_that_should_have_failed_and_did_not_is_told_after_the_next_step(tmp_path):
    path = course_file(tmp_path, failure=FAILURE | {"evaluated": 2}, eval_steps=15)
    error = ERROR.replace("at step 15", "at the evaluation after step 15")
    assert followed(path, [GIB] * 15)[-1].endswith(f"the simulated course {error}{CURE}")
    assert followed(path, [GIB] * 16)[-1] == (
        f"step 16 survived, although the simulated course {error}: this training differs from the simulated one")


def test_a_resumed_training_is_told_of_the_error_and_its_reserved_memory_is_not_compared(tmp_path):
    resumed = "the training resumes after step 4 with an empty cache, so its reserved memory is not compared with the simulated course"
    assert followed(course_file(tmp_path), [GIB // 2] * 9, done=4) == [
        resumed, f"the simulated course {ERROR}{CURE}", f"warning: step 5 is done, and the simulated course {ERROR}{CURE}"]


def test_a_training_that_resumes_after_the_error_or_the_course_is_told_of_no_error(tmp_path):
    assert followed(course_file(tmp_path), [GIB], done=15) == [
        "the training resumes after step 15 with an empty cache, so its reserved memory is not compared with the simulated course"]
    assert followed(course_file(tmp_path), [GIB], done=16) == []


def test_a_course_that_survives_and_other_ranks_are_silent(tmp_path):
    assert followed(course_file(tmp_path, failure=None, trials=[]), [GIB] * 20) == []
    assert followed(course_file(tmp_path), [GIB, 5 * GIB], rank=3) == []


@pytest.mark.parametrize("text", ("{}", '{"course": null}', '{"course": {"rank": 0}}', "[]"))
def test_a_file_without_a_course_is_one_line(tmp_path, text):
    path = tmp_path / "prediction.json"
    path.write_text(text)
    with pytest.raises(InputError, match="prediction.json: has no course: make it with peakcast predict"):
        course_watch.read(str(path))
