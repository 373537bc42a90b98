"""A case beside its prediction, which is that of ``predict`` with the case's own completion and capacity."""

from dataclasses import replace

import pytest

from calibrate.regression import compact, report
from calibrate.regression.compare import compare
from predictor.answer.predict import predict
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.profile import outside_pytorch, profile
from predictor.profile.calibration import Coefficient, Interval, Runtime
from tests.calibrate.regression_cases import GIB, case
from tests.predictor.profile.test_profile import calibration, covered

SCATTERED = {"bf16": {"enabled": True}, "zero_optimization": {
    "stage": 2, "overlap_comm": True, "contiguous_gradients": False, "reduce_bucket_size": 500_000_000}}
KEYS = {"per_device_train_batch_size": 16, "zero_stage": 2, "data_parallel_size": 8, "rank": 7, "profile": "none"}


def of(workload, **changes):
    """A case whose peaks nobody measured yet."""
    return replace(case(), workload=workload, **changes)


@pytest.fixture(scope="module")
def said():
    """LLaVA-1.5-7B, rank 7 of 8, beside what ``predict`` says of it."""
    made = case(keys=KEYS)
    return compare(made, "none"), predict(made.workload)


def test_every_predicted_peak_is_what_predict_says(said):
    one, prediction = said
    assert [one.peaks[counter].predicted_bytes for counter in ("requested", "allocated", "reserved")] == [
        prediction.peak_requested_bytes, prediction.peak_allocated_bytes, prediction.peak_reserved_bytes]


def test_verdict_moment_and_factors_are_what_predict_says(said):
    one, prediction = said
    assert (one.verdict, one.moment, one.operator) == (
        prediction.verdict, prediction.peak.moment.value, prediction.peak.operator)
    assert one.factors == {factor.value: size for factor, size in prediction.factors.items() if size}


def test_factors_add_up_to_the_allocated_peak(said):
    assert sum(said[0].factors.values()) == said[0].peaks["allocated"].predicted_bytes


def test_the_estimate_is_reserved_bytes_on_an_emulated_gpu_and_more_on_a_real_one(said):
    reserved = said[0].peaks["reserved"].predicted_bytes
    assumed = outside_pytorch.assumed(gpus.find("h100-80gb"), 1, 0).all
    assert said[0].estimate_bytes == reserved
    assert compare(replace(said[0].case, measured_on="device"), "none").estimate_bytes == reserved + assumed.high_bytes


def test_without_a_profile_the_device_is_not_predicted(said):
    assert said[0].peaks["device"].predicted_bytes is None


@pytest.mark.parametrize("events, reserved_bytes", [("immediate", 19_482_542_080), ("synchronization", 21_982_347_264)])
def test_reserved_bytes_are_of_the_completion_that_was(events, reserved_bytes):
    # measured: the two rows of profiles/h100-80gb/emulated.jsonl without contiguous gradients
    workload, _ = compact.workload_of({
        "model": "grouped", "sequence_length": 1024, "per_device_train_batch_size": 4, "data_parallel_size": 8,
        "rank": 7, "deepspeed": SCATTERED, "gradient_accumulation_steps": 2})
    reserved = compare(of(workload, completion=events), "none").peaks["reserved"]
    assert reserved.predicted_bytes == reserved_bytes
    assert (reserved.low_bytes, reserved.high_bytes) == (19_482_542_080, 21_982_347_264)


@pytest.mark.parametrize("capacity_gib, verdict", [(24, "does_not_fit"), (80, "fits")])
def test_the_verdict_is_at_the_capacity_that_the_job_had(capacity_gib, verdict):
    made = case(keys=KEYS, capacity_bytes=capacity_gib * GIB)
    assert compare(made, "none").verdict == predict(made.workload).verdict == verdict


def test_a_profile_gives_intervals_and_the_device(tmp_path):
    path = str(tmp_path / "p.json")
    profile.write(path, calibration(residuals={"requested": Interval(-0.01, 0.02, 0.9, 60)},
                                    runtime=Runtime(1000, 50, 7, 1.0, "device", "measured"),
                                    covered=covered(case(keys=KEYS).workload)))
    one = compare(case(keys=KEYS), path)
    requested, device = one.peaks["requested"], one.peaks["device"]
    assert (requested.low_bytes, requested.high_bytes) == (int(requested.predicted_bytes * 0.99),
                                                           -int(-requested.predicted_bytes * 1.02 // 1))
    # a fake process group has no communicator
    assert device.predicted_bytes == one.peaks["reserved"].predicted_bytes + 1000
    launched = compare(case(keys=KEYS, communicates=True), path).peaks["device"]
    assert launched.predicted_bytes == device.predicted_bytes + 50 + 7 * 8
    assert one.profile == path


def test_a_wrong_coefficient_shows_in_the_error(tmp_path):
    path = str(tmp_path / "p.json")
    wrong = Coefficient(1.05, 0.001, 60, fitted=True, applied=True, note="")
    profile.write(path, calibration(coefficients={"activations": wrong}))
    right = compare(case(keys=KEYS), "none").peaks["requested"].predicted_bytes
    measured = case(keys=KEYS, sizes=(right, right, right, None))
    assert compare(measured, "none").error("requested") == 0
    assert compare(measured, path).error("requested") > 0.005


REFUSED = {"data_parallel_size": 8, "rank": 0, "deepspeed": {
    "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}, "data_types": {"grad_accum_dtype": "fp32"}}}


def test_a_job_that_cannot_be_predicted_is_skipped_by_name():
    good, bad = case(keys=KEYS), case(keys=REFUSED, line=7)
    made = report.make([good, bad])
    assert [one.case.id for one in made.comparisons] == [good.id]
    [skipped] = made.skipped
    assert (skipped.line, skipped.name) == (7, bad.id)
    assert skipped.why.startswith("not predicted: deepspeed: data_types.grad_accum_dtype fp32 is not modelled yet")


def test_a_job_is_predicted_for_the_releases_that_measured_it():
    with pytest.raises(InputError, match=r"tracing for torch 2\.3\.1 needs these releases"):
        compare(replace(case(keys=KEYS), software={"torch": "2.3.1+cu121", "transformers": "5.17.0"}))


def test_nothing_that_can_be_predicted_is_bad_input():
    with pytest.raises(InputError, match="none of 1 measurements can be predicted: made.jsonl:1: not predicted: "):
        report.make([case(keys=REFUSED)])


def test_a_report_is_a_table_for_pandas():
    pandas = pytest.importorskip("pandas")
    frame = report.make([case(keys=KEYS)], profile="none").to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.loc[0, "predicted_requested_bytes"] > 20 * GIB
