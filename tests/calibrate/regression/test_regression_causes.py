"""Causes of the worst predictions: those that the record shows, and the command that finds out more."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from calibrate.regression import causes
from calibrate.regression.cases import Cause
from calibrate.report.regression.words import explained_lines
from predictor.cli import Parser
from predictor.commands import options
from tests.calibrate.regression.test_regression_files import record, saved
from tests.calibrate.regression_cases import case, compared

DIV = Cause("device_only", "aten::div", "backward", 1, 4, 0)
CONVOLUTION = Cause("never_came", "aten::convolution_backward", "backward", 2, 0, 60)


def off(by: int, sequence: int = 1024, **changes):
    """All peaks predicted so much above 1000."""
    return compared(case(sequence, sizes=(1000, 1000, 1000, None), **changes), (1000 + by, 1000 + by, 1000 + by, None))


def test_every_case_beyond_two_percent_is_explained_the_worst_first():
    made = [off(21, 1024), off(-40, 2048), off(20, 3072), off(0, 4096)]
    assert [one.comparison.worst_error for one in causes.explain(made, least=0)] == [0.04, 0.021]


def test_the_worst_are_explained_even_if_they_are_near():
    made = [off(1, 1024), off(0, 2048), off(2, 3072)]
    assert [one.comparison.worst_error for one in causes.explain(made, least=3)] == [0.002, 0.001]


def test_what_the_record_knows_is_the_cause():
    [one] = causes.explain([off(56, causes=(DIV, CONVOLUTION))])
    assert (one.source, one.found_bytes) == ("record", 60 - 4)
    assert one.causes == (CONVOLUTION, DIV)
    assert one.note == ("+56 bytes requested: most by aten::convolution_backward in backward (never came, +60 bytes)")


def test_what_only_the_blocks_hold_is_told_apart():
    one = compared(case(sizes=(1000, 1000, 1000, None)), (1000, 1512, 3000, None))
    [found] = causes.explain([one])
    assert found.by_allocator_bytes == 512
    assert found.note.startswith("+512 bytes allocated: the blocks that hold them; +2,000 bytes reserved: the segments")


def test_without_a_cause_the_command_that_finds_it_is_given():
    [one] = causes.explain([off(50)])
    assert (one.source, one.causes) == ("none", ())
    assert one.note == "+50 bytes requested; which buffers it is needs a memory history"
    assert one.command.endswith(f"--snapshot {one.comparison.case.id}.pickle -o {one.comparison.case.id}.json --json")


@pytest.mark.parametrize("by, known", [(50, ()), (1, ()), (56, (DIV, CONVOLUTION))])
def test_every_case_without_a_memory_history_has_the_command_that_records_it(by, known):
    [one] = causes.explain([off(by, causes=known)])
    assert [line.strip() for line in explained_lines(one)[-2:]] == [
        causes.measure_command(one.comparison.case), f"peakcast explain --measured {one.comparison.case.id}.json"]


def test_a_case_whose_memory_history_explains_it_needs_no_command(monkeypatch):
    monkeypatch.setattr(causes, "_causes", lambda case: ((replace(DIV, measured_bytes=0, predicted_bytes=50),), "snapshot", ""))
    [one] = causes.explain([off(50)])
    assert (one.left_bytes, one.command) == (0, None)


def test_bytes_that_no_cause_explains_are_told():
    [one] = causes.explain([off(50, causes=(DIV,))])
    assert (one.found_bytes, one.left_bytes) == (-4, 54)
    assert one.note.endswith("+54 of the requested bytes are of no such cause: this release predicts otherwise than "
                             "the one that measured")
    assert one.command is not None


def test_a_peak_that_is_predicted_elsewhere_says_where():
    made = case(sizes=(1000, 1000, 1000, None), causes=(DIV,))
    [one] = causes.explain([compared(made, (1050, 1050, 1050, None), moment="forward")])
    assert one.note.endswith("the peak is predicted in forward")


def test_what_a_profile_changes_is_a_cause_by_factor(monkeypatch):
    monkeypatch.setattr(causes, "compare", lambda made, profile: compared(made, (1000, 1000, 1000, None)))
    with_profile = replace(off(50), profile="wrong.json")  # its one factor has 1050 bytes, without the profile 1000
    [one] = causes.explain([with_profile])
    assert one.causes == (Cause("profile", "", "backward", 0, 1000, 1050, "parameters"),)
    assert one.note == "+50 bytes requested: most by parameters as the profile has them (+50 bytes)"


def test_the_command_measures_the_same_job():
    keys = {"deepspeed": {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "overlap_comm": True}},
            "data_parallel_size": 8, "rank": 7, "recipe": "full", "frozen": ["a.b", "c"],
            "gradient_checkpointing_kwargs": {"use_reentrant": True}, "per_device_train_batch_size": 4,
            "capacity_bytes": 400 << 30, "allocator_conf": "max_split_size_mb:64", "sdpa_backend": "flash"}
    made = case(keys=keys, completion="synchronization")
    words = shlex.split(causes.measure_command(made))
    assert words[:2] == ["peakcast", "measure"]
    parser = Parser()
    options.add_workload(parser)
    arguments, rest = parser.parse_known_args(words[2:])
    assert options.workload(arguments).resolved() == made.workload.resolved() | {"profile": None}
    assert rest[:4] == ["--device", "emulated", "--events", "synchronization"]


def test_a_snapshot_that_is_gone_says_so(tmp_path):
    made = replace(record(), snapshot="gone.pickle")
    path = saved(tmp_path, content=json.dumps(made.to_json()))
    [one] = causes.explain([off(50, snapshot="gone.pickle", file=path, line=0)])
    assert "its memory history gone.pickle is gone" in one.note
    assert one.command is not None
