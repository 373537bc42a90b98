"""Profiles: writing, reading, display, and the effect of each part on a prediction."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from predictor.cli import main
from predictor.common import gpus
from predictor.common.json_dataclasses import to_plain
from predictor.events.calls import calls
from predictor.events.composed_run import evaluate
from predictor.events.events import FACTORS, Factor
from predictor.events.sizes import Shape
from predictor.jobs import dispatch
from predictor.profile import corrections, profile
from predictor.profile.calibration import (
    AllocatorFit,
    Coefficient,
    Device,
    Interval,
    OperatorWorkspace,
    Profile,
    Runtime,
)
from predictor.profile.corrections import ASSUMED_RUNTIME_BYTES, Margin, margin, with_workspaces
from predictor.profile.job_traits import COUNTERS, traits_of
from predictor.profile.outside_pytorch import Outside, Range
from predictor.profile.profile import Choice
from predictor.workload.keys import PINNED
from predictor.workload.workload import Workload
from tests.predictor.formula.test_formula import key, made

H100 = gpus.find("h100-80gb")
SHAPE = Shape(2, 64, 2)
MIB = 1 << 20


def calibration(**changes) -> Profile:
    """A profile without effect but for what is changed."""
    values = {
        "schema_version": 1, "peakcast_version": "0", "device": Device("h100-80gb", "NVIDIA H100 80GB HBM3", 80 << 30, None),
        "software": dict(PINNED), "measured_on": "device", "coefficients": {}, "workspaces": (),
        "allocator": AllocatorFit(0, 0), "runtime": Runtime(500 * MIB, 0, 0, 1.0, "device", "measured"),
        "residuals": {}, "calibrated": {}, "provenance": {}}
    return Profile(**values | changes)


def covered(workload: Workload) -> dict[str, tuple[str, ...]]:
    """What a campaign of this one job would have measured."""
    job = dispatch.prepare(workload.replace(profile="none"))
    return {name: (kind,) for name, kind in traits_of(job.request, job.formula).items()}


PLAIN = Workload(model="llava-1.5-7b", sequence_length=1024)


def written(tmp_path, document) -> str:
    path = tmp_path / "profile.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def test_a_profile_survives_its_file(tmp_path):
    original = calibration(residuals={"reserved": Interval(-0.01, 0.02, 0.9, 60)}, calibrated={"tokens": (64.0, 128.0)})
    path = str(tmp_path / "p.json")
    profile.write(path, original)
    assert profile.read(path) == original


def test_the_runtime_grows_with_the_ranks_of_a_communicator():
    runtime = Runtime(500, 100, 7, None, "device", "")
    assert [runtime.bytes(ranks) for ranks in (1, 2, 8)] == [500, 614, 656]


def test_the_limits_leave_room_for_runtime_and_residuals():
    profile_ = calibration(runtime=Runtime(1000, 0, 0, 50.0, "device", ""),
                           residuals={"reserved": Interval(-0.5, 0.25, 0.9, 60)})
    found = margin(Choice(profile_, "p"), 1, Outside(Range(0, 7000)))
    assert (found.runtime_low, found.runtime_high) == (900, 1100)
    assert found.limits(11_100) == (8_000, 20_400)
    assert found.capacity(8_000) == 11_100


@pytest.mark.parametrize("capacity_bytes, at_best", [(11_100, None), (1000, None), (900, 0)])
def test_an_interval_down_to_nothing_leaves_any_prediction_possible_where_the_runtime_fits(capacity_bytes, at_best):
    found = Margin(900, 1100, (("reserved", (-1.0, 3.0)),))
    assert found.limits(capacity_bytes)[1] == at_best


def test_an_assumed_runtime_has_the_range_of_its_gpu_whatever_the_profile_says():
    found = margin(Choice(calibration(runtime=Runtime(1000, 0, 0, None, "assumed", "x")), "p"), 1, Outside(Range(300, 700)))
    assert (found.runtime_low, found.runtime_high) == (300, 700)
    assert Margin().limits(ASSUMED_RUNTIME_BYTES + 5) == (5, ASSUMED_RUNTIME_BYTES + 5)


@pytest.mark.parametrize("has_communicators, expected", [(True, (900, 1100)), (False, (940, 1788))])
def test_communicators_that_no_profile_measured_are_assumed(has_communicators, expected):
    runtime = Runtime(1000, 0, 0, 50.0, "device", "", has_communicators)
    found = margin(Choice(calibration(runtime=runtime), "p"), 8, Outside(Range(0, 7000), Range(40, 688)))
    assert (found.runtime_low, found.runtime_high) == expected


def test_a_workspace_joins_every_call_of_its_operator_and_nothing_else():
    micro = made(key()).micro
    workspace = OperatorWorkspace("aten::mm", 4096, 0, 0.5, 0, 9, "test")
    more = with_workspaces(micro, [workspace], SHAPE, H100)
    row_bytes = micro.events.sizes.at(SHAPE, H100)
    names = micro.events.names
    products = [call for call in calls(micro.events, row_bytes) if names[call.operator] == "aten::mm"]
    added = more.events.sizes.at(SHAPE, H100)[more.events.buffers.size[len(micro.events.buffers):]]
    assert added.tolist() == [4096 + -(-call.result_bytes // 2) for call in products] and len(products) > 10
    kept = more.events.buffer < len(micro.events.buffers)
    assert np.array_equal(more.events.buffer[kept], micro.events.buffer)
    assert np.array_equal(more.events.kind[~kept], np.tile([1, -1], len(products)))


BACKWARD = "aten::_scaled_dot_product_cudnn_attention_backward"


def backward_calls(micro) -> list[tuple[int, int]]:
    """Of each call of attention's backward: its workspace (row of the buffers), and the bytes of its largest result.

    Three gradients of 2 bytes an element; the workspace of 4, with as many for each row of ``width`` elements.
    """
    events, row_bytes = micro.events, micro.events.sizes.at(SHAPE, H100)
    found = []
    for call in calls(events, row_bytes):
        if events.names[call.operator] == BACKWARD:
            *gradients, workspace = (int(events.buffer[at]) for at in call.made)
            size = int(row_bytes[events.buffers.size[workspace]])
            elements = [int(row_bytes[events.buffers.size[gradient]]) // 2 for gradient in gradients]
            assert len(set(elements)) == 1 and len(elements) == 3 and size > 4 * elements[0]
            found.append((workspace, 2 * elements[0]))
    assert len(found) == 3
    return found


def buffer_bytes(micro) -> np.ndarray:
    return micro.events.sizes.at(SHAPE, H100)[micro.events.buffers.size]


def test_a_workspace_that_grows_makes_the_temporary_of_each_call_larger_and_nothing_else():
    micro = made(key()).micro
    expected = buffer_bytes(micro)
    for workspace, result_bytes in backward_calls(micro):
        expected[workspace] += 4096 + result_bytes // 2
    more = with_workspaces(micro, [OperatorWorkspace(BACKWARD, 4096, 0, 0.5, 0, 9, "test", grows=True)], SHAPE, H100)
    assert np.array_equal(buffer_bytes(more), expected)
    assert (more.events.kind is micro.events.kind) and (more.events.buffer is micro.events.buffer)


@pytest.mark.parametrize("less", [1000, 1 << 20])
def test_a_workspace_below_0_makes_the_temporary_smaller_down_to_nothing(less):
    micro = made(key()).micro
    expected = buffer_bytes(micro)
    for workspace, _ in backward_calls(micro):
        expected[workspace] = max(0, expected[workspace] - less)
    more = with_workspaces(micro, [OperatorWorkspace(BACKWARD, -less, 0, 0, 0, 9, "test", grows=True)], SHAPE, H100)
    assert np.array_equal(buffer_bytes(more), expected)


def test_where_a_call_has_no_temporary_a_workspace_that_grows_is_a_buffer_of_its_own():
    micro = made(key()).micro
    forward = OperatorWorkspace("aten::_scaled_dot_product_cudnn_attention", 4096, 0, 0.5, 0, 9, "test")
    own, grown = (with_workspaces(micro, [replace(forward, grows=grows)], SHAPE, H100) for grows in (False, True))
    assert len(own.events.buffers) > len(micro.events.buffers)
    assert np.array_equal(buffer_bytes(grown), buffer_bytes(own))
    assert np.array_equal(grown.events.buffer, own.events.buffer)


def test_a_buffer_of_its_own_cannot_be_below_0():
    micro = made(key()).micro
    forward = OperatorWorkspace("aten::_scaled_dot_product_cudnn_attention", -512, 0, 0, 0, 9, "test")
    assert with_workspaces(micro, [forward, replace(forward, grows=True)], SHAPE, H100) is micro


@pytest.mark.parametrize("operator", [BACKWARD, "aten::_scaled_dot_product_cudnn_attention"])
def test_both_workspaces_of_a_call_are_held_at_once(operator):
    micro = made(key()).micro
    row_bytes = micro.events.sizes.at(SHAPE, H100)
    both = [OperatorWorkspace(operator, size, 0, 0, 0, 9, "test", grows) for size, grows in ((1 << 40, False), (1 << 30, True))]
    more = with_workspaces(micro, both, SHAPE, H100)
    before, after = (evaluate(one.events, 0, SHAPE, H100).live for one in (micro, more))
    last = [call.made[-1] for call in calls(micro.events, row_bytes)
            if micro.events.names[call.operator] == operator]
    assert after.max() == before[last].max() + (1 << 40) + (1 << 30)


def test_a_profile_that_does_not_say_whether_its_workspaces_grow_has_buffers_of_their_own(tmp_path):
    document = to_plain(calibration(workspaces=(OperatorWorkspace("aten::mm", 4096, 0, 0.5, 0, 9, "test"),)))
    del document["workspaces"][0]["grows"]
    assert not profile.read(written(tmp_path, document)).workspaces[0].grows


def test_hooks_stay_at_their_events_when_workspaces_come_between():
    micro = made(key()).micro
    more = with_workspaces(micro, [OperatorWorkspace("aten::mm", 512, 0, 0, 0, 1, "")], SHAPE, H100)
    old, new = micro.events, more.events
    for before, after in zip(micro.ready[:, 0].tolist(), more.ready[:, 0].tolist()):
        if before < len(old):
            assert (old.kind[before], old.buffer[before]) == (new.kind[after], new.buffer[after])


def test_without_workspaces_the_micro_step_is_the_same_object():
    micro = made(key()).micro
    assert with_workspaces(micro, [OperatorWorkspace("aten::nothing", 512, 0, 0, 0, 1, "")], SHAPE, H100) is micro


def test_coefficients_multiply_the_bytes_of_their_factor_only():
    events = made(key()).micro.events
    doubled = tuple(2.0 if factor is Factor.ACTIVATIONS else 1.0 for factor in FACTORS)
    plain, scaled = (evaluate(events, 0, SHAPE, H100, given) for given in (None, doubled))
    activation = events.buffers.factor == FACTORS.index(Factor.ACTIVATIONS)
    before, after = (run.row_bytes[run.events.buffers.size] for run in (plain, scaled))
    assert np.array_equal(after, np.where(activation, 2 * before, before)) and activation.any()


def test_a_coefficient_that_is_not_applied_changes_nothing():
    given = {"activations": Coefficient(1.004, 0.001, 9, True, False, "theory's 1")}
    assert corrections.coefficients(Choice(calibration(coefficients=given), "p")) is None
    applied = {"activations": replace(given["activations"], applied=True)}
    assert 1.004 in corrections.coefficients(Choice(calibration(coefficients=applied), "p"))


def test_the_rounding_that_a_profile_found_gives_way_to_the_workloads_own_settings():
    choice = Choice(calibration(allocator=AllocatorFit(4, 9)), "p")
    assert max(corrections.allocator_settings(None, choice).roundup_power2_divisions) == 4
    assert max(corrections.allocator_settings("max_split_size_mb:64", choice).roundup_power2_divisions) == 0


def test_the_answer_names_its_profile_and_has_intervals(tmp_path, capsys):
    path = written(tmp_path, to_plain(calibration(residuals={
        counter: Interval(-0.01, 0.02, 0.9, 60) for counter in ("requested", "allocated", "reserved")},
        covered=covered(PLAIN))))
    command = ["predict", "llava-1.5-7b", "--sequence-length", "1024", "--profile", path, "--json"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    reserved = document["peak_reserved_bytes"]
    assert document["peak_reserved_bytes_low"] == int(np.floor(reserved * 0.99))
    assert document["peak_reserved_bytes_high"] == int(np.ceil(reserved * 1.02))
    assert document["peak_device_bytes"] == reserved + 500 * MIB
    assert document["provenance"]["profile"]["name"] == path and document["provenance"]["measured_on"] == "device"
    assert document["provenance"]["profile"]["level"] == {"requested": 0.9, "allocated": 0.9, "reserved": 0.9}


def test_counters_without_residuals_have_no_interval_and_the_answer_says_so(tmp_path, capsys):
    path = written(tmp_path, to_plain(calibration(residuals={"allocated": Interval(-0.01, 0.02, 0.9, 60)})))
    assert main(["predict", "llava-1.5-7b", "--sequence-length", "1024", "--profile", path, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    ends = {counter: [document[f"peak_{counter}_bytes_{end}"] is None for end in ("low", "high")]
            for counter in COUNTERS}
    assert ends == {"requested": [True] * 2, "allocated": [False] * 2, "reserved": [True] * 2, "device": [False] * 2}
    assert f"the profile {path} has no intervals for requested, reserved (no held-out job was measured)" in \
        document["not_modelled"][-1]


def test_a_profile_without_any_residuals_is_not_shown_as_a_perfect_one(tmp_path, capsys):
    path = written(tmp_path, to_plain(calibration()))
    assert main(["predict", "llava-1.5-7b", "--sequence-length", "1024", "--profile", path, "--details"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert " GiB to " not in shown and "measured on a real GPU; no intervals are known." in shown


def test_an_answer_that_extrapolates_says_that_its_intervals_are_wider(tmp_path, capsys):
    path = written(tmp_path, to_plain(calibration(residuals={"reserved": Interval(0.0, 0.0, 0.9, 60)},
                                                  calibrated={"sequence_length": (64.0, 256.0)},
                                                  covered=covered(PLAIN))))
    assert main(["predict", "llava-1.5-7b", "--sequence-length", "1024", "--profile", path, "--details"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "this job is outside what it covered (see: not modelled): intervals are wider" in shown
    assert "90%" not in shown
    assert "did not cover: sequence length 1,024 (calibrated from 64 to 256); how far measured" in shown


def test_an_answer_says_which_intervals_hold_where_only_allocator_settings_were_not_covered(tmp_path, capsys):
    residuals = {counter: Interval(0.0, 0.0, 0.9, 60) for counter in ("requested", "allocated", "reserved")}
    path = written(tmp_path, to_plain(calibration(residuals=residuals, covered=covered(PLAIN))))
    assert main(["predict", "llava-1.5-7b", "--sequence-length", "1024", "--profile", path, "--allocator-conf",
                 "max_split_size_mb:64", "--details"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "intervals hold 90% of held-out jobs, those of requested bytes; of the others this job is outside" in shown


# --- the command -------------------------------------------------------------------------------------


def test_profiles_lists_what_is_shipped(capsys):
    assert main(["profiles", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed.keys() == profile.shipped().keys()
    assert all(one["device"]["gpu"] == name.partition("/")[0] for name, one in listed.items())


def test_profiles_shows_a_file(tmp_path, capsys):
    path = written(tmp_path, to_plain(calibration(residuals={"reserved": Interval(-0.01, 0.02, 0.9, 60)})))
    assert main(["profiles", path]) == 0
    shown = capsys.readouterr().out
    assert "-1.000000% to +2.000000%" in shown and "rounds as the workload's settings say" in shown
    assert main(["profiles", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runtime"]["fixed_bytes"] == 500 * MIB


LEFT_OUT = {"workspaces_left_out": {"aten::amax": "up to 3,562 bytes in calls of which nothing is predicted"}}


@pytest.mark.parametrize("provenance, said", [(LEFT_OUT, "none kept"), ({}, "none: every")])
def test_that_no_operator_has_a_workspace_is_said_as_it_was_found(tmp_path, capsys, provenance, said):
    assert main(["profiles", written(tmp_path, to_plain(calibration(provenance=provenance)))]) == 0
    shown = capsys.readouterr().out
    assert [text for text in ("none kept", "none: every") if text in shown] == [said]


def test_operators_that_were_left_out_are_shown_with_the_reason(tmp_path, capsys):
    assert main(["profiles", written(tmp_path, to_plain(calibration(provenance=LEFT_OUT)))]) == 0
    assert "Left out: aten::amax: up to 3,562 bytes in calls of which nothing is predicted." in capsys.readouterr().out


def test_a_profile_without_intervals_says_so(tmp_path, capsys):
    assert main(["profiles", written(tmp_path, to_plain(calibration()))]) == 0
    assert "none measured: it has no intervals" in capsys.readouterr().out


def test_every_shipped_profile_can_be_read_and_says_where_it_was_measured():
    for name, one in profile.shipped().items():
        assert one.measured_on in profile.MEASURED and one.provenance["date"], name
