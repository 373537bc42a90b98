"""The fit recovers the parameters of made-up data: workspaces, coefficients, rounding, runtime, intervals."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from calibrate.campaign.rows import Workspace
from calibrate.fit import conformal, regression
from calibrate.fit.addresses import fit_address_step
from calibrate.fit.coefficients import Points, fit_coefficients
from calibrate.fit.regression import TO_DEVIATION
from calibrate.fit.rounding import fit_rounding
from calibrate.fit.runtime import fit_runtime
from calibrate.fit.workspaces import GROWN, fit_workspaces
from predictor.events.events import FACTORS, Factor
from predictor.profile.corrections import ASSUMED_RUNTIME_BYTES
from predictor.workload.workload import Workload

MIB, GIB = 1 << 20, 1 << 30
OPERATOR = "aten::convolution"


def extra(call: int, size: int, count: int = 1, grows: bool = False) -> Workspace:
    return Workspace(OPERATOR, "forward", call, size, count, grows)


def fitted(*extras: Workspace, calls: dict[int, int] | None = None):
    return fit_workspaces([(extras, {OPERATOR: Counter(calls or {})})])


# --- regression --------------------------------------------------------------------------------------


def line(x: np.ndarray, y: np.ndarray) -> regression.Estimate:
    columns = np.stack([np.ones_like(x), x], axis=1)
    return regression.fit(columns, y, np.ones_like(x), np.full(2, -1e12), np.full(2, 1e12))


def test_a_line_without_noise_is_found_exactly():
    x = np.linspace(1e6, 1e9, 12)
    assert line(x, 3e6 + 0.25 * x).values == pytest.approx([3e6, 0.25], rel=1e-6)


def test_a_minority_that_is_far_off_does_not_move_the_line():
    x = np.linspace(1e6, 1e9, 12)
    y = 3e6 + 0.25 * x
    y[[2, 7, 9]] *= 5
    assert line(x, y).values == pytest.approx([3e6, 0.25], rel=1e-4)


def test_standard_errors_are_those_of_the_noise():
    random, x = np.random.default_rng(0), np.linspace(0, 1, 200)
    found = [line(x, 2 + 3 * x + random.normal(0, 0.1, 200)) for _ in range(100)]
    spread = np.std([one.values for one in found], axis=0)
    assert np.mean([one.standard_errors for one in found], axis=0) == pytest.approx(spread, rel=0.3)


def test_a_value_beyond_its_bound_is_the_bound():
    x = np.linspace(1, 2, 10)
    found = regression.fit(x[:, None], 5 * x, np.ones(10), np.array([0.0]), np.array([2.0]))
    assert found.values == pytest.approx([2])


def test_columns_at_a_right_angle_inflate_nothing():
    assert regression.inflation(np.array([[1.0, 0], [0, 1]]), np.ones(2)) == pytest.approx([1, 1])


def test_inflation_is_one_over_the_squared_sine_between_two_columns():
    columns = np.array([[1.0, 1], [0, 1]])  # 45 degrees
    assert regression.inflation(columns, np.ones(2)) == pytest.approx([2, 2])


def test_a_column_that_others_add_up_to_inflates_without_end():
    assert np.isinf(regression.inflation(np.array([[1.0, 2], [2, 4], [3, 6]]), np.ones(3))).all()


# --- workspaces --------------------------------------------------------------------------------------


def test_a_workspace_is_its_fixed_part_and_its_part_by_call():
    found, = fitted(*(extra(call, 3 * MIB + call // 2) for call in range(MIB, 20 * MIB, MIB))).kept
    assert (found.fixed_bytes, found.bytes_per_result_byte) == (pytest.approx(3 * MIB), pytest.approx(0.5))
    assert (found.operator, found.samples) == (OPERATOR, 19)


def test_calls_of_one_size_give_a_fixed_part_only_and_it_is_said():
    found, = fitted(extra(MIB, 3 * MIB), extra(MIB, 3 * MIB, 7)).kept
    assert (found.fixed_bytes, found.bytes_per_result_byte, found.ratio_standard_error) == (3 * MIB, 0, 0)
    assert "too alike" in found.source


def test_an_extra_of_one_job_among_several_is_left_out_and_it_is_said():
    result = fit_workspaces([([extra(MIB, 3 * MIB)], Counter({MIB: 1})), ([], Counter())])
    assert result.kept == () and "in one of 2 jobs only" in result.left_out[OPERATOR]


def test_a_workspace_that_does_not_grow_is_fixed():
    found, = fitted(*(extra(call, 3 * MIB) for call in range(MIB, 20 * MIB, MIB))).kept
    assert (found.fixed_bytes, found.bytes_per_result_byte) == (pytest.approx(3 * MIB), 0)


def test_a_workspace_that_is_nothing_but_growth_has_no_fixed_part():
    found, = fitted(*(extra(call, 2 * call) for call in range(MIB, 20 * MIB, MIB))).kept
    assert (found.fixed_bytes, found.bytes_per_result_byte) == (0, pytest.approx(2))


def test_what_the_allocator_does_not_show_is_no_workspace():
    assert fitted(*(extra(call, 512) for call in range(MIB, 20 * MIB, MIB))) == fitted()


def test_an_extra_that_few_calls_have_is_left_out_and_it_is_said():
    result = fitted(*(extra(call, 3 * MIB) for call in range(MIB, 9 * MIB, MIB)),
                    calls={call: 100 for call in range(MIB, 9 * MIB, MIB)})
    assert result.kept == ()
    assert "not clearly more than 512" in result.left_out[OPERATOR]


def test_an_extra_that_every_call_has_is_kept():
    result = fitted(*(extra(call, 3 * MIB, 100) for call in range(MIB, 9 * MIB, MIB)),
                    calls={call: 100 for call in range(MIB, 9 * MIB, MIB)})
    assert result.kept[0].fixed_bytes == pytest.approx(3 * MIB)


def test_an_extra_in_calls_of_which_nothing_is_predicted_cannot_be_placed():
    assert "cannot place" in fitted(extra(0, 3 * MIB)).left_out[OPERATOR]


def test_two_calls_that_disagree_are_no_workspace():
    result = fitted(extra(MIB, 3 * MIB), extra(MIB, 30 * MIB))
    assert result.kept == ()


def test_of_two_families_of_calls_the_larger_decides():
    wide = [extra(call, 3 * MIB + call // 2) for call in range(8 * MIB, 20 * MIB, MIB)]
    narrow = [extra(call, 3 * MIB + call * 51 // 100) for call in range(MIB, 8 * MIB, MIB)]
    found, = fitted(*wide, *narrow).kept
    assert (found.fixed_bytes, found.bytes_per_result_byte) == (pytest.approx(3 * MIB), pytest.approx(0.5))
    assert "7 of them do not lie on the line" in found.source


def test_two_extra_buffers_of_a_call_are_held_together():
    found, = fitted(extra(MIB, 3 * MIB, 6), extra(MIB, 1 * MIB, 6), calls={MIB: 6}).kept
    assert found.fixed_bytes == pytest.approx(4 * MIB)


SIZES = range(MIB, 20 * MIB, MIB)


def test_extras_that_make_a_buffer_larger_are_a_workspace_that_grows():
    found, = fitted(*(extra(call, 3 * MIB + call // 2, grows=True) for call in SIZES)).kept
    assert (found.grows, found.fixed_bytes, found.bytes_per_result_byte) == (
        True, pytest.approx(3 * MIB), pytest.approx(0.5))


def test_buffers_that_are_smaller_than_predicted_are_a_workspace_below_0():
    found, = fitted(*(extra(call, -call // 4, grows=True) for call in SIZES)).kept
    assert (found.grows, found.fixed_bytes, found.bytes_per_result_byte) == (True, 0, pytest.approx(-0.25))


def test_calls_with_both_sorts_of_extras_have_a_workspace_of_each():
    own, grown = fitted(*(extra(call, 3 * MIB) for call in SIZES), *(extra(call, call, grows=True) for call in SIZES),
                        calls=dict.fromkeys(SIZES, 1)).kept
    assert (own.grows, own.fixed_bytes, own.bytes_per_result_byte) == (False, pytest.approx(3 * MIB), 0)
    assert (grown.grows, grown.fixed_bytes, grown.bytes_per_result_byte) == (True, 0, pytest.approx(1))


@pytest.mark.parametrize("grows", [False, True])
def test_of_calls_with_one_sort_and_calls_with_the_other_the_majority_decides(grows):
    result = fitted(*(extra(call, 3 * MIB, grows=grows) for call in SIZES[:13]),
                    *(extra(call, 5 * MIB, grows=not grows) for call in SIZES[13:]), calls=dict.fromkeys(SIZES, 1))
    found, = result.kept
    assert (found.grows, found.fixed_bytes) == (grows, pytest.approx(3 * MIB))
    assert "6 of them do not lie on the line" in found.source
    assert "not clearly more than 512" in result.left_out[OPERATOR + GROWN * (not grows)]


def test_calls_of_jobs_in_which_nothing_was_found_count_as_0():
    jobs = [([extra(call, 3 * MIB) for call in SIZES], {OPERATOR: Counter(SIZES)}), ((), {OPERATOR: Counter(SIZES)}),
            ((), {OPERATOR: Counter(SIZES)})]
    assert fit_workspaces(jobs[:1]).kept[0].fixed_bytes == pytest.approx(3 * MIB)
    assert fit_workspaces(jobs).kept == ()


def test_outliers_do_not_move_a_workspace_and_are_counted():
    extras = [extra(call, 3 * MIB + call // 2) for call in range(MIB, 20 * MIB, MIB)]
    found, = fitted(*extras, extra(20 * MIB, 900 * MIB), extra(21 * MIB, 0)).kept
    assert (found.fixed_bytes, found.bytes_per_result_byte) == (pytest.approx(3 * MIB, rel=1e-3), pytest.approx(0.5, 1e-3))
    assert "2 of them do not lie on the line" in found.source


# --- coefficients ------------------------------------------------------------------------------------

TRUE = {Factor.PARAMETERS: 1.0, Factor.ACTIVATIONS: 1.1, Factor.TEMPORARIES: 1.002}


def points(noise: float = 0.0, **columns: np.ndarray) -> Points:
    random = np.random.default_rng(1)
    predicted = np.zeros((60, len(FACTORS)))
    for factor in TRUE:
        predicted[:, FACTORS.index(factor)] = GIB * random.uniform(0.1, 5, 60)
    for name, column in columns.items():
        predicted[:, FACTORS.index(Factor(name))] = column
    true = np.array([TRUE.get(factor, 1.0) for factor in FACTORS])
    return Points(predicted, predicted @ true * (1 + noise * random.normal(size=60)))


def test_a_factor_that_takes_a_tenth_more_has_coefficient_11_tenths():
    found = fit_coefficients(points())["activations"]
    assert (found.value, found.applied) == (pytest.approx(1.1, abs=1e-6), True)


def test_a_coefficient_within_half_a_percent_of_1_is_not_applied():
    found = fit_coefficients(points())["temporaries"]
    assert (found.value, found.fitted, found.applied) == (pytest.approx(1.002, abs=1e-6), True, False)


def test_a_coefficient_that_noise_explains_is_not_applied():
    found = fit_coefficients(points(noise=0.05))["parameters"]
    assert 0.005 < found.standard_error < 0.05
    assert found.fitted and not found.applied


def test_a_coefficient_that_the_jobs_leave_open_is_1():
    found = fit_coefficients(points(noise=0.5))["parameters"]
    assert (found.value, found.fitted) == (1, False)


def test_two_factors_in_a_fixed_proportion_are_both_left_at_1():
    random = np.random.default_rng(2).uniform(1, 5, 60) * GIB
    found = fit_coefficients(points(activations=random, gradients=random / 4))
    for name in ("activations", "gradients"):
        assert (found[name].value, found[name].fitted) == (1, False)
        assert "cannot tell it from other factors" in found[name].note


def test_what_can_be_told_apart_is_fitted_beside_what_cannot():
    random = np.random.default_rng(2).uniform(1, 5, 60) * GIB
    assert fit_coefficients(points(inputs=random, gradients=random / 4))["activations"].fitted


def test_a_factor_that_is_nowhere_a_hundredth_is_not_fitted():
    found = fit_coefficients(points(communication=np.full(60, 1000.0)))["communication"]
    assert (found.value, found.fitted) == (1, False)


def test_outliers_do_not_move_a_coefficient():
    made = points()
    made.measured[::10] *= 3
    assert fit_coefficients(made)["activations"].value == pytest.approx(1.1, abs=1e-3)


def test_every_factor_has_an_entry_and_the_allocator_is_never_scaled():
    found = fit_coefficients(points())
    assert set(found) == {factor.value for factor in FACTORS}
    assert not found["allocator"].fitted


def test_no_point_leaves_all_at_1():
    none = Points(np.zeros((0, len(FACTORS))), np.zeros(0))
    assert {one.value for one in fit_coefficients(none).values()} == {1.0}


# --- rounding and runtime ----------------------------------------------------------------------------

MODEL = {"model": "llava-1.5-7b", "sequence_length": 1024}


@dataclass(frozen=True)
class Job:
    """What these two parts read of a measured job."""

    workload: Workload = Workload(**MODEL)
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    runtime_bytes: int | None = None
    communicates: bool = False


def rounded(job: Job, divisions: int) -> tuple[int, int]:
    """A stand-in for the simulation: 10 % more for 2 divisions, 5 % for 4 …"""
    factor = 1 + 0.2 / divisions if divisions else 1
    return round(10 * GIB * factor), round(12 * GIB * factor)


@pytest.mark.parametrize("divisions", [0, 2, 4, 8, 16])
def test_the_rounding_that_made_the_peaks_is_found(divisions):
    allocated, reserved = rounded(Job(), divisions)
    found = fit_rounding([Job(allocated_bytes=allocated, reserved_bytes=reserved)] * 3, rounded)
    assert (found.roundup_power2_divisions, found.samples) == (divisions, 3)


def test_a_rounding_that_explains_little_more_is_not_taken():
    allocated, reserved = rounded(Job(), 0)
    found = fit_rounding([Job(allocated_bytes=round(allocated * 1.004), reserved_bytes=reserved)], rounded)
    assert found.roundup_power2_divisions == 0


def test_jobs_with_a_rounding_of_their_own_say_nothing():
    own = Job(Workload(**MODEL, allocator_conf="roundup_power2_divisions:4"), GIB, GIB)
    assert fit_rounding([own], rounded).samples == 0


def descending(job: Job, step: int) -> tuple[int, int]:
    """A stand-in for the simulation: 1 % more reserved where addresses go down."""
    return 10 * GIB, round(12 * GIB * (1.01 if step else 1))


@pytest.mark.parametrize("step", [0, 32 << 20])
def test_the_order_of_addresses_that_made_the_peaks_is_found(step):
    allocated, reserved = descending(Job(), step)
    assert fit_address_step([Job(allocated_bytes=allocated, reserved_bytes=reserved)] * 3, descending) == step


def test_an_order_of_addresses_that_explains_less_than_half_is_not_taken():
    job = Job(allocated_bytes=10 * GIB, reserved_bytes=round(12 * GIB * 1.006))
    assert fit_address_step([job], descending) == 0


def group(ranks: int, size: int) -> Job:
    return Job(Workload(**MODEL, engine="ddp", data_parallel_size=ranks), runtime_bytes=size, communicates=True)


def test_the_runtime_is_the_median_and_one_crowded_device_does_not_move_it():
    found = fit_runtime([Job(runtime_bytes=size * MIB) for size in (600, 600, 601, 600, 9000)], "device")
    assert (found.fixed_bytes, found.nccl_bytes, found.measured_on) == (600 * MIB, 0, "device")


def under_zero(stage: int, size: int) -> Job:
    return Job(Workload(**MODEL, zero_stage=stage, data_parallel_size=8), runtime_bytes=size * MIB)


def test_zero_1_and_2_take_further_bytes_and_the_spread_is_that_of_nine_in_ten_jobs():
    plain = [Job(runtime_bytes=size * MIB) for size in (600, 602)]
    found = fit_runtime([*plain, under_zero(3, 600), under_zero(1, 672), *[under_zero(2, 672)] * 5, under_zero(2, 664)],
                        "device")
    assert (found.bytes(8), found.bytes(8, 3), found.bytes(8, 1), found.bytes(8, 2)) == \
        (600 * MIB, 600 * MIB, 672 * MIB, 672 * MIB)
    assert found.standard_error == 1 * MIB  # 0 in eight of nine, 2 MiB, and 8 MiB in one of nine


def test_where_all_jobs_are_under_zero_2_their_further_bytes_are_in_the_fixed_part():
    found = fit_runtime([under_zero(2, 672)] * 3, "device")
    assert (found.fixed_bytes, found.zero_bytes) == (672 * MIB, 0)


def test_communicators_add_once_and_by_rank():
    jobs = [Job(runtime_bytes=600 * MIB)] * 3 + [group(n, (650 + 3 * n) * MIB) for n in (2, 4, 8)]
    found = fit_runtime(jobs, "emulated")
    assert (found.fixed_bytes, found.nccl_bytes, found.nccl_bytes_per_rank) == (600 * MIB, 50 * MIB, 3 * MIB)
    assert found.bytes(8) == 674 * MIB


def test_communicators_of_one_size_are_not_split():
    found = fit_runtime([Job(runtime_bytes=600 * MIB), group(8, 674 * MIB)], "emulated")
    assert (found.nccl_bytes, found.nccl_bytes_per_rank) == (74 * MIB, 0)
    assert "8 ranks only" in found.source


def test_where_all_jobs_have_communicators_of_one_size_the_runtime_is_their_median_with_their_spread():
    found = fit_runtime([group(16, size * MIB) for size in (1500, 1660, 1820, 1980, 2140, 2300)], "device")
    assert (found.fixed_bytes, found.nccl_bytes, found.nccl_bytes_per_rank) == (1900 * MIB, 0, 0)
    assert found.standard_error == pytest.approx(TO_DEVIATION * 240 * MIB)  # 80, 80, 240, 240, 400 and 400 from it
    assert "communicators of 16 ranks only; all had communicators" in found.source


def test_where_all_jobs_have_communicators_of_several_sizes_the_part_of_each_rank_is_known():
    found = fit_runtime([group(n, (650 + 3 * n) * MIB) for n in (2, 4, 8)], "device")
    assert (found.fixed_bytes, found.nccl_bytes, found.nccl_bytes_per_rank) == (650 * MIB, 0, 3 * MIB)
    assert found.standard_error == 0


@pytest.mark.parametrize("sizes", [[], [None], [0, 0]])
def test_a_device_that_shows_no_runtime_leaves_the_assumption_and_its_source(sizes):
    found = fit_runtime([Job(runtime_bytes=size) for size in sizes], "emulated")
    assert (found.fixed_bytes, found.measured_on, found.standard_error) == (ASSUMED_RUNTIME_BYTES, "assumed", None)
    assert "pytorch/issues/107667" in found.source


# --- intervals ---------------------------------------------------------------------------------------


def test_bounds_are_order_statistics_of_both_tails():
    # (39 + 1) * 0.05 = 2: from the second smallest to the second largest
    found = conformal.interval(list(range(1, 40)), 0.9)
    assert (found.low, found.high, found.level, found.samples) == (2, 38, 0.9, 39)


def test_nineteen_are_just_enough_for_both_tails():
    found = conformal.interval(list(range(1, 20)), 0.9)
    assert (found.low, found.high) == (1, 19)


def test_fewer_give_a_symmetric_interval():
    # (18 + 1) * 0.9 = 17.1: the 18th of the sizes
    found = conformal.interval([-1.0 * n for n in range(1, 19)], 0.9)
    assert (found.low, found.high, found.level) == (-18, 18, 0.9)


def test_too_few_say_the_level_that_they_have():
    assert conformal.interval([0.1, -0.2, 0.1], 0.9).level == 3 / 4


def test_no_residual_gives_no_interval():
    assert conformal.interval([], 0.9) is None


@pytest.mark.parametrize("count", [12, 19, 32, 64])
def test_new_residuals_are_covered_at_the_level(count):
    random, inside = np.random.default_rng(3), 0
    for _ in range(2000):
        values = random.gumbel(size=count + 1)  # not symmetric
        found = conformal.interval(values[1:], 0.9)
        inside += found.low <= values[0] <= found.high
    assert 0.88 <= inside / 2000 <= 0.99


def test_a_job_is_covered_where_all_of_its_counters_are():
    normal = np.random.default_rng(4).normal(size=(64, 2))
    alone, _ = conformal.cross_coverage(normal[:, 0])
    assert conformal.cross_coverage(np.stack([normal[:, 0], np.zeros(64)], axis=1)) == (alone, 64)
    assert conformal.cross_coverage(normal)[0] < alone


def test_crossed_coverage_judges_every_job():
    rate, jobs = conformal.cross_coverage(np.random.default_rng(4).normal(size=64), 0.9)
    assert jobs == 64
    assert 0.85 <= rate <= 0.98
