"""The fit, attribution and ``measure`` get the same predictions."""

from collections import Counter

import numpy as np
import pytest

from calibrate.attribution.align import call_stretches
from calibrate.attribution.allocations import from_run
from calibrate.attribution.attribution import temporary
from calibrate.campaign import design
from calibrate.fit import job_prediction
from calibrate.measure.job_prediction import choose_rank
from calibrate.measure.job_prediction import predict_requested as predicted_moments
from predictor.events.calls import largest_results
from predictor.jobs import dispatch
from predictor.profile.calibration import AllocatorFit, Coefficient, Device, OperatorWorkspace, Profile, Runtime
from predictor.profile.profile import write
from predictor.workload.workload import Workload

PROFILE = Profile(
    1, "0", Device("h100-80gb", "NVIDIA H100", 80 << 30, None),
    {"torch": "2.11.0", "transformers": "5.17.0", "deepspeed": "0.19.8"}, "emulated",
    {"activations": Coefficient(1.04, None, 0, True, True, "")},
    (OperatorWorkspace("aten::convolution", 20e6, 0, 1.5, 0, 0, ""),), AllocatorFit(4, 0),
    Runtime(643_000_000, 0, 0, 0.0, "emulated", ""), {}, {}, {})


@pytest.fixture(scope="module")
def workload() -> Workload:
    return design.workload(
        {"model": "llava-1.5-7b", "per_device_train_batch_size": 4, "sequence_length": 1024, "images_per_sample": 1,
         "zero_stage": 2, "data_parallel_size": 8, "rank": 7}, gpu="h100-80gb", profile="none")


def test_calls_are_the_stretches_of_attribution(workload):
    side = from_run(job_prediction.run_of(workload, None))
    stretch = call_stretches(side)
    expected: dict[str, Counter] = {}
    starts = np.flatnonzero(np.diff(stretch, prepend=-1))
    for row, size in zip(starts, largest_results(side.bytes, temporary(side), starts)):
        expected.setdefault(side.operator[row], Counter())[int(size)] += 1
    assert job_prediction.calls(workload) == expected


def test_factors_at_the_highest_point_of_a_moment_add_up_to_what_is_predicted_of_it(workload):
    found = job_prediction.by_moment(job_prediction.run_of(workload, None))
    expected = {(row.step, row.moment): row.requested_bytes for row in predicted_moments(workload, 7).moments}
    assert {at: int(factors.sum()) for at, factors in found.items()} == expected


def test_what_is_predicted_of_a_measurement_has_no_profile(workload, tmp_path):
    write(str(tmp_path / "profile.json"), PROFILE)
    calibrated = workload.replace(profile=str(tmp_path / "profile.json"))
    assert predicted_moments(calibrated, 7) == predicted_moments(workload, 7)


def test_the_rank_that_is_measured_does_not_depend_on_a_profile(workload, tmp_path):
    calibrated = workload.replace(profile=str(tmp_path / "none.json"), rank="worst")  # a file that is not there
    assert choose_rank(calibrated) == choose_rank(workload.replace(rank="worst"))


def test_a_profile_in_memory_changes_a_run_as_one_in_a_file(workload, tmp_path):
    write(str(tmp_path / "profile.json"), PROFILE)
    job = dispatch.prepare(workload.replace(profile=str(tmp_path / "profile.json")))
    expected = job.run(workload.capacity)
    assert job_prediction.run_of(workload, PROFILE).live.tolist() == expected.live.tolist()
