"""A whole fit finds the known deviations of the device that its made-up jobs were measured on."""

from dataclasses import replace

import pytest

from calibrate.campaign import design
from calibrate.campaign.rows import Row, Workspace
from calibrate.fit import coverage, cross_validate, fit_profile
from calibrate.fit.job_prediction import by_moment, calls, predict_peaks, run_of
from calibrate.fit.jobs import read
from calibrate.records.moment_peaks import MomentPeaks
from predictor.common.errors import InputError
from predictor.jobs import dispatch
from predictor.profile.calibration import AllocatorFit, Coefficient, Device, OperatorWorkspace, Profile, Runtime
from predictor.profile.profile import SCHEMA_VERSION, write
from predictor.profile.profile import read as read_profile
from tests.calibrate import small_jobs

MIB = 1 << 20
CONVOLUTION, BACKWARD = "aten::convolution", "aten::_scaled_dot_product_cudnn_attention_backward"
TRUTH = Profile(
    SCHEMA_VERSION, "0", Device("h100-80gb", "NVIDIA H100", 80 << 30, None), {}, "emulated",
    {"activations": Coefficient(1.04, None, 0, True, True, "")},
    (OperatorWorkspace(BACKWARD, 50e6, 0, 2.0, 0, 0, "", grows=True), OperatorWorkspace(CONVOLUTION, 20e6, 0, 1.5, 0, 0, "")),
    AllocatorFit(4, 0), Runtime(643_000_000, 0, 0, 0.0, "emulated", ""), {}, {}, {})
"""What the device does."""
SHAPES = ((2, 1024), (4, 1024), (16, 1024), (4, 2048), (8, 2048), (6, 1536))


def keys(batch: int, sequence: int, **more) -> dict:
    return {"model": "llava-1.5-7b", "per_device_train_batch_size": batch, "sequence_length": sequence,
            "images_per_sample": 1, "zero_stage": 2, "data_parallel_size": 8, "rank": 7} | more


def row(job: dict, role: str = "fit", group: str = "shape", truth: Profile | None = TRUTH) -> Row:
    """The row of a job on a device for which a profile is the whole truth."""
    workload = design.workload(job, gpu="h100-80gb", profile="none")
    name = str(sorted(job.items()))
    bare = Row(name, role, group, job, small_jobs.record(workload=workload.resolved(), rank=job["rank"]))
    peaks = predict_peaks(read([bare])[0], truth)
    moments = tuple(MomentPeaks(step, moment, int(factors.sum()), peaks.allocated_bytes, peaks.reserved_bytes)
                    for (step, moment), factors in by_moment(run_of(workload, truth)).items())
    extras = [Workspace(w.operator, "backward", call, w.bytes(call), count, w.grows)
              for w in (truth.workspaces if truth else ())
              for call, count in calls(workload)[w.operator].items()]
    used = peaks.reserved_bytes + (truth.runtime.fixed_bytes if truth else 0)
    held = {f"reserved_bytes.all.{when}": peaks.reserved_bytes for when in ("peak", "current")}
    measured = replace(bare.record.job, moments=moments, memory_stats=held, device_used_bytes=used)
    predicted = small_jobs.record(predicted="something").predicted
    return replace(bare, record=replace(bare.record, job=measured, predicted=predicted), workspaces=tuple(extras))


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Six shapes with and without checkpointing, a recipe and degrees; other shapes held out."""
    made = [row(keys(*shape, gradient_checkpointing=on), group="checkpointing" if on else "shape")
            for shape in SHAPES for on in (True, False) if on or shape[0] * shape[1] <= 4096]
    made += [row(keys(*shape, recipe="pretrain"), group="recipe") for shape in SHAPES[:3]]
    made += [row(keys(4, 1024, data_parallel_size=size, rank=0), group="degree") for size in (2, 4)]
    return made + [row(keys(*shape), role="holdout") for shape in ((3, 1024), (12, 900))]


@pytest.fixture(scope="module")
def profile(rows) -> Profile:
    return fit_profile(rows, measured_on="emulated", provenance={"date": "2026-01-01"})


@pytest.mark.parametrize("true", TRUTH.workspaces, ids=lambda one: one.operator)
def test_each_workspace_is_found(profile, true):
    found = {one.operator: one for one in profile.workspaces}[true.operator]
    assert found.fixed_bytes == pytest.approx(true.fixed_bytes, rel=1e-3)
    assert found.bytes_per_result_byte == pytest.approx(true.bytes_per_result_byte, rel=1e-3)
    assert found.grows == true.grows


def test_no_other_workspace_is_found(profile):
    assert [one.operator for one in profile.workspaces] == [BACKWARD, CONVOLUTION]


def test_the_coefficient_that_is_not_1_is_found_and_applied(profile):
    found = profile.coefficients["activations"]
    assert found.value == pytest.approx(1.04, abs=1e-4)
    assert found.applied


def test_every_other_coefficient_that_the_jobs_tell_is_1_and_not_applied(profile):
    others = [one for name, one in profile.coefficients.items() if name != "activations"]
    assert not any(one.applied for one in others)
    assert [one.value for one in others if one.fitted] == pytest.approx([1] * sum(one.fitted for one in others), abs=5e-3)


def test_rounding_and_runtime_are_found(profile):
    assert profile.allocator.roundup_power2_divisions == 4
    assert profile.runtime.fixed_bytes == 643_000_000


def test_ranges_are_those_of_the_fitted_jobs(profile):
    assert profile.calibrated == {"tokens": (2048.0, 16384.0), "sequence_length": (1024.0, 2048.0),
                                  "images": (2.0, 16.0), "data_parallel_size": (2.0, 8.0)}


def test_the_covered_kinds_of_jobs_are_those_that_were_held_out(profile):
    assert profile.covered["recipe"] == ("finetune",) and profile.covered["checkpointing"] == ("on",)
    assert (profile.covered["engine"], profile.covered["precision"]) == (("ZeRO-2",), ("bf16",))


def tripled(one: Row) -> Row:
    """The row of a job that took three times what is predicted."""
    return replace(one, record=replace(one.record, job=replace(one.record.job, moments=tuple(
        replace(peaks, requested_bytes=3 * peaks.requested_bytes) for peaks in one.record.job.moments))))


def test_a_kind_whose_held_out_job_lies_outside_of_the_intervals_is_not_covered():
    usual = row(keys(3, 1024), role="holdout", truth=None)
    unusual = tripled(row(keys(3, 1024, recipe="pretrain"), role="holdout", truth=None))
    made = fit_profile([row(keys(2, 1024), truth=None), *[usual] * 38, unusual], measured_on="emulated", provenance={})
    assert made.residuals["requested"].high < 1e-3
    assert made.covered["recipe"] == ("finetune",)


def test_without_held_out_jobs_all_fitted_kinds_are_covered():
    made = fit_profile([row(keys(2, 1024), truth=None), row(keys(2, 1024, recipe="pretrain"), truth=None)],
                       measured_on="emulated", provenance={})
    assert (made.residuals, made.covered["recipe"]) == ({}, ("finetune", "pretrain"))


def test_an_evaluation_is_part_of_the_job_that_a_fit_predicts():
    evaluated = design.workload(keys(1, 1024, per_device_eval_batch_size=8), gpu="h100-80gb", profile="none")
    assert run_of(evaluated, None).peak == dispatch.prepare(evaluated).run(evaluated.capacity).peak
    assert run_of(evaluated, None).peak > run_of(evaluated.replace(per_device_eval_batch_size=None), None).peak


def test_held_out_jobs_are_predicted_and_give_the_intervals(rows, profile):
    assert set(profile.residuals) == {"requested", "allocated", "reserved", "device"}
    assert max(abs(end) for one in profile.residuals.values() for end in (one.low, one.high)) < 1e-3
    assert profile.residuals["reserved"].samples == 2


def test_an_interval_of_a_few_jobs_that_took_more_than_twice_what_is_predicted_stops_at_0_bytes():
    made = fit_profile([row(keys(2, 1024), truth=None), tripled(row(keys(3, 1024), role="holdout", truth=None))],
                       measured_on="emulated", provenance={})
    assert made.residuals["requested"].low == -1.0
    assert made.residuals["requested"].high == pytest.approx(2.0, abs=0.1)


def test_no_group_that_is_left_out_gets_worse(rows, profile):
    groups = cross_validate(rows, profile)
    assert [one.group for one in groups] == ["checkpointing", "degree", "recipe", "shape"]
    assert not any(one.worse for one in groups)
    assert all(one.fitted["allocated"] < 1e-3 < one.without["allocated"] for one in groups)


def test_coverage_judges_every_held_out_job(rows, profile):
    assert {name: one.jobs for name, one in coverage(rows, profile).items()} == dict.fromkeys(
        ("requested", "allocated", "reserved", "device", "all"), 2)


def test_the_profile_is_read_back_as_it_was_written(profile, tmp_path):
    write(str(tmp_path / "profile.json"), profile)
    assert read_profile(tmp_path / "profile.json") == profile


def test_a_device_that_is_as_predicted_gives_a_profile_that_changes_nothing():
    made = fit_profile([row(keys(*shape), truth=None) for shape in SHAPES[:3]], measured_on="emulated", provenance={})
    assert (made.workspaces, made.allocator.roundup_power2_divisions) == ((), 0)
    assert not any(one.applied for one in made.coefficients.values())
    assert made.runtime.measured_on == "assumed"
    assert "device" not in made.residuals


def test_jobs_of_an_engine_that_is_not_predicted_give_the_runtime_only():
    job = keys(1, 1024, engine="ddp", data_parallel_size=8, rank=0)
    del job["zero_stage"]
    bare = Row("a", "fit", "communicators", job, small_jobs.record(
        workload=design.workload(job, gpu="h100-80gb").resolved()))
    measured = replace(bare.record.job, process_group="nccl", device_used_bytes=650 * MIB,
                       memory_stats={"reserved_bytes.all.peak": 0, "reserved_bytes.all.current": 0})
    rows = [row(keys(2, 1024)), replace(bare, record=replace(bare.record, job=measured))]
    found = fit_profile(rows, measured_on="emulated", provenance={})
    assert found.runtime.nccl_bytes == 650 * MIB - 643_000_000
    assert found.calibrated["tokens"] == (2048, 2048)


@pytest.mark.parametrize("change", [{"failed": "out of memory"}, {"record": None}])
def test_without_a_job_that_ended_well_there_is_one_clear_line(change):
    with pytest.raises(InputError, match="nothing to fit"):
        fit_profile([replace(row(keys(2, 1024)), **change)], measured_on="device", provenance={})
