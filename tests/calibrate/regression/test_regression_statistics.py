"""Errors, verdicts and xMem's figures as closed forms of a few cases."""

import pytest

from calibrate.regression import statistics
from calibrate.regression.compare import Peak
from predictor.common import gpus
from tests.calibrate.regression_cases import GIB, case, compared

H100 = gpus.find("h100-80gb").capacity_bytes


def off_by(*errors: float):
    """A case for each error of requested bytes, in thousandths of 1000 bytes."""
    return [compared(case(1024 + n, sizes=(1000, 1000, 1000, None)), (1000 + round(1000 * error), 1000, 1000, None))
            for n, error in enumerate(errors)]


def test_an_error_below_zero_is_a_prediction_that_is_too_low():
    assert Peak(200, 150).error == -0.25


@pytest.mark.parametrize("peak", [Peak(None, 5), Peak(5, None), Peak(0, 5)])
def test_without_both_sides_there_is_no_error(peak):
    assert peak.error is None


@pytest.mark.parametrize("measured, inside", [(99, False), (100, True), (110, True), (111, False), (None, None)])
def test_a_peak_at_the_end_of_its_interval_is_inside(measured, inside):
    assert Peak(measured, 105, 100, 110).inside is inside


@pytest.mark.parametrize("measured, inside", [(104, False), (105, True), (106, False)])
def test_an_interval_without_width_holds_only_its_value(measured, inside):
    assert Peak(measured, 105, 105, 105).inside is inside


def test_errors_are_summed_up_by_their_size_and_the_bias_by_their_sign():
    found = statistics.errors([("a", 0.02), ("b", -0.04), ("c", 0.0), ("d", 0.01)])
    assert found.cases == 4
    assert found.mape == pytest.approx((0.02 + 0.04 + 0 + 0.01) / 4)
    assert found.median == pytest.approx((0.01 + 0.02) / 2)
    assert found.bias == pytest.approx((0.02 - 0.04 + 0 + 0.01) / 4)
    assert (found.exact, found.close) == (1, 2 / 4)


def test_the_worst_error_keeps_its_sign_and_its_case():
    found = statistics.errors([("a", 0.02), ("b", -0.04)])
    assert (found.worst, found.worst_case) == (-0.04, "b")


def test_the_95th_percentile_lies_between_two_sizes():
    # 21 sizes 0 … 20 %: the 95th percentile of 0 … 20 is 19
    assert statistics.errors([(str(n), n / 100) for n in range(21)]).p95 == pytest.approx(0.19)


def test_a_counter_that_nobody_measured_has_no_errors():
    assert set(statistics.by_counter([compared()])) == {"requested", "allocated", "reserved"}


def test_the_share_inside_counts_only_peaks_with_an_interval():
    found = statistics.by_counter([compared(interval=(90, 115)), compared(case(2048))])
    assert found["requested"].inside == 1.0  # 100 is inside 90 … 115, the other has no interval
    assert found["reserved"].inside == 0.0  # 120 is not


def test_peaks_of_a_job_that_ran_out_of_memory_are_lower_bounds_and_count_in_no_error():
    died = compared(case(2048, survived=False, sizes=(50, 50, 50, None)), verdict="does_not_fit")
    assert statistics.by_counter([compared(), died])["requested"].cases == 1


def test_groups_are_all_then_each_value_of_each_label():
    made = [compared(), compared(case(keys={"recipe": "pretrain"}))]
    assert [(one.by, one.value, one.cases) for one in statistics.groups(made)] == [
        ("all", "", 2), ("model", "llava-1.5-7b", 2), ("recipe", "finetune", 1), ("recipe", "pretrain", 1),
        ("engine", "torch", 2), ("data_parallel_size", 1, 2), ("gpu", "h100-80gb", 2), ("measured_on", "emulated", 2)]


def test_moments_count_where_they_were_measured():
    group = statistics.group([compared(), compared(case(2048), moment="forward"), compared(case(3072, moment=None))])
    assert (group.moments, group.moment_hits) == (2, 1)


# --- verdicts ---------------------------------------------------------------------------------------


def test_a_job_said_to_fit_that_died_is_a_false_fit():
    died = case(survived=False)
    found = statistics.verdicts([compared(died), compared(case(2048)), compared(case(3072), verdict="does_not_fit")])
    assert (found.survived, found.died) == ({"fits": 1, "uncertain": 0, "does_not_fit": 1},
                                            {"fits": 1, "uncertain": 0, "does_not_fit": 0})
    assert found.false_fits == (died.id,)
    assert found.false_alarms == (case(3072).id,)


@pytest.mark.parametrize("verdict, survived, hit", [
    ("fits", True, True), ("fits", False, False), ("does_not_fit", False, True), ("does_not_fit", True, False),
    ("uncertain", True, None), (None, True, None)])
def test_a_verdict_hits_what_became_of_the_job(verdict, survived, hit):
    assert compared(case(survived=survived), verdict=verdict).verdict_hit is hit


# --- xMem -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("survived, verdict, reserved, success", [
    (True, "fits", 120, True),  # the estimate leaves PyTorch 130 - 10
    (True, "fits", 121, False),
    (True, "uncertain", 120, True),
    (True, "does_not_fit", 120, False),
    (True, "fits", None, None),
    (False, "does_not_fit", None, True),
    (False, "uncertain", None, False),
    (False, "fits", None, False),
])
def test_an_estimate_succeeds_where_the_job_would_survive_on_it(survived, verdict, reserved, success):
    made = case(survived=survived, sizes=(100, 110, reserved, None))
    assert statistics.succeeds(compared(made, verdict=verdict)) is success


def test_a_device_peak_beyond_the_estimate_is_a_failure():
    assert statistics.succeeds(compared(case(sizes=(100, 110, 120, 131)))) is False


def test_failures_over_jobs_are_the_failure_probability():
    found = statistics.figures([compared(), compared(case(2048, sizes=(100, 110, 121, None))),
                                compared(case(3072, sizes=(100, 110, None, None))), compared(case(4096))])
    assert (found.cases, found.failures) == (3, (case(2048).id,))
    assert found.failure_probability == pytest.approx(1 / 3)


def test_what_can_go_to_others_is_the_gpu_less_the_estimate_and_a_failure_takes_its_estimate():
    saved, wasted = compared(), compared(case(2048, sizes=(100, 110, 121, None)))
    assert statistics.figures([saved, wasted]).conservation_bytes == pytest.approx(((H100 - 130) - 130) / 2)


def test_a_limited_job_is_credited_against_its_limit():
    assert statistics.figures([compared(case(capacity_bytes=GIB))]).conservation_bytes == GIB - 130


@pytest.mark.parametrize("verdict", ["does_not_fit", "fits"])
def test_a_job_that_died_saves_nothing_and_is_not_counted(verdict):
    died = compared(case(survived=False, capacity_bytes=GIB), verdict=verdict)
    found = statistics.figures([compared(case(2048, capacity_bytes=GIB)), died])
    assert (found.cases, found.conservation_cases, found.conservation_bytes) == (2, 1, GIB - 130)


def test_a_job_that_had_more_than_its_gpu_saves_nothing_and_is_not_counted():
    found = statistics.figures([compared(case(capacity_bytes=H100 + 1))])
    assert (found.cases, found.conservation_cases, found.conservation_bytes) == (1, 0, None)
