"""The search space of a plan: its settings, the effect of the user's keys, and the cost of each configuration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.jobs import dispatch
from predictor.plan import cost
from predictor.plan.memory import last
from predictor.plan.minimum_states import least_bytes
from predictor.plan.space import AXES, space
from predictor.workload.workload import Workload

GIVEN = {"model": "llava-1.5-7b", "sequence_length": 1024, "gpu": "h100-80gb", "data_parallel_size": 8}
H100 = gpus.find("h100-80gb")
MODEL = cost.Model(cost.Elements(1000, 800, 900), cost.Elements(100, 0, 100), 1200, 800, 10)
FIXES = {"zero_stage": (1, 2, 3), "engine": ("ddp", "fsdp2"), "gradient_checkpointing": (True, False), "offload": ("optimizer",),
         "optim": ("adamw_torch_fused", "adafactor", "adamw_bnb_8bit"), "recipe": ("finetune", "lora"), "max_grad_norm": (0.5,),
         "dtype": ("bf16", "fp32"), "mixed_precision": ("bf16",), "fsdp": ({"param_dtype": "bf16"},)}


def methods(**changes) -> set[str]:
    return {setting.method for setting in space(GIVEN | changes).settings}


@given(st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in FIXES.items()}),
       st.sampled_from([1, 2, 8]))
@settings(max_examples=60, deadline=None)
def test_every_setting_is_a_workload_that_keeps_what_was_given(fixed, degree):
    asked = GIVEN | fixed | {"data_parallel_size": degree}
    try:
        found = space(asked, vary=["recipe"]).settings
    except InputError:  # they contradict each other
        return
    for setting in found:
        workload = setting.workload(2, 3, 1024)
        expected = Workload(**{"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3} | dict(setting.keys))
        assert workload == expected
        for key, value in fixed.items():
            kept = getattr(workload, key)
            assert kept == value or (key == "fsdp" and kept["param_dtype"] == "bf16")


def test_all_ways_to_share_the_work_are_tried_on_several_gpus():
    assert methods() == {
        "data parallel, fp32 weights under bf16 autocast", "data parallel, bf16 weights", "FSDP2", "ZeRO-0", "ZeRO-1", "ZeRO-2", "ZeRO-3",
        "ZeRO-1 · optimizer on the host", "ZeRO-2 · optimizer on the host", "ZeRO-3 · optimizer on the host",
        "ZeRO-3 · optimizer and parameters on the host"}


def test_one_gpu_has_no_data_parallel_engine():
    assert not {"data parallel", "FSDP2", "ZeRO-0"} & methods(data_parallel_size=1)
    assert "one GPU, bf16 weights" in methods(data_parallel_size=1)


def test_deepspeed_is_tried_beside_adapters_on_one_gpu_only_where_it_takes_parameters_off_it():
    assert methods(recipe="lora", data_parallel_size=1) == {
        "one GPU, bf16 weights under autocast", "one GPU, bf16 weights", "ZeRO-3 · optimizer and parameters on the host"}


def test_a_deepspeed_config_settles_engine_and_offload():
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "overlap_comm": True}}
    assert methods(deepspeed=config) == {"ZeRO-2"}


def test_other_training_is_named_unless_the_user_asked_for_it():
    assert any(setting.differs for setting in space(GIVEN).settings)
    assert not any(setting.differs for setting in space(GIVEN | {"optim": "adamw_bnb_8bit", "zero_stage": 2}).settings)


def test_axes_that_stay_by_themselves_vary_when_asked():
    recipes = {setting.workload(1, 1, 1024).recipe for setting in space(GIVEN, vary=["recipe"]).settings}
    assert recipes == {"finetune", "lora", "pretrain", "full"}
    assert {setting.keys["optim"] for setting in space(GIVEN | {"optim": "sgd"}).settings} == {"sgd"}


READ = GIVEN | {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}


def checkpointed(found) -> set[tuple[bool, bool]]:
    """Whether the settings of a space checkpoint, and whether they say how."""
    return {(setting.keys["gradient_checkpointing"], bool(setting.keys.get("gradient_checkpointing_kwargs")))
            for setting in found.settings}


def test_no_checkpointing_is_tried_where_a_framework_says_how_it_checkpoints():
    free = {key: item for key, item in READ.items() if key != "gradient_checkpointing"}
    found = space(free, firm=set())
    assert checkpointed(found) == {(True, True), (False, False)} and "gradient_checkpointing_kwargs" not in found.kept


@pytest.mark.parametrize("firm", [None, {"gradient_checkpointing_kwargs"}])
def test_how_the_user_wants_checkpoints_keeps_them_on_and_is_said_to(firm):
    found = space(GIVEN | {"gradient_checkpointing_kwargs": {"use_reentrant": True}}, firm=firm)
    assert checkpointed(found) == {(True, True)} and "gradient_checkpointing_kwargs" in found.kept


def test_an_unknown_axis_is_refused():
    with pytest.raises(InputError, match="no axis 'zero'"):
        space(GIVEN, vary=["zero"])
    assert len({axis.name for axis in AXES}) == len(AXES)


def test_keys_that_no_workload_has_are_refused_by_their_own_message():
    with pytest.raises(InputError, match="optim must be"):
        space(GIVEN | {"optim": "adamwx"})


# what it costs ----------------------------------------------------------------------------------------


def seconds(batch=2, accumulation=4, sequence=100, **changes) -> cost.Estimate:
    workload = Workload(**GIVEN | {"images_per_sample": 1, "zero_stage": 2} | changes)
    return cost.estimate(workload, MODEL, H100, batch, accumulation, sequence)


def test_products_are_two_flop_an_element_and_token_in_each_pass():
    tokens = 2 * 4
    flop = tokens * (2 * (1000 * 100 + 100 * 10) * 2 + 2 * 800 * 100)
    reading = 3 * 4 * 1200 * 2 / 3350e9
    assert seconds().products == pytest.approx(flop / (989e12 * 0.45) + reading)


def test_a_checkpoint_recomputes_its_layers_once():
    flop = 2 * 2 * 4 * (900 * 100 + 100 * 10)
    assert seconds().recomputation == pytest.approx(flop / (989e12 * 0.45) + 4 * 1200 * 2 / 3350e9)
    assert seconds(gradient_checkpointing=False).recomputation == 0


@pytest.mark.parametrize("engine, width, moved", [
    ({"zero_stage": None, "engine": "ddp", "mixed_precision": "bf16"}, 4, 2 * 800), ({"zero_stage": 1}, 2, 2 * 800),
    ({"zero_stage": 2}, 2, (4 + 1) * 800), ({"zero_stage": 3}, 2, 4 * (2 * 1200 + 800)),
    ({"zero_stage": None, "engine": "fsdp2"}, 2, 4 * 2 * 1200 + 800),
    ({"zero_stage": None, "engine": "fsdp2", "fsdp": {"sync_each_batch": True}}, 2, 4 * (2 * 1200 + 800)),
], ids=["ddp", "zero1", "zero2", "zero3", "fsdp2", "fsdp2 each batch"])
def test_communication_is_what_a_ring_of_the_engine_moves(engine, width, moved):
    assert seconds(**engine).communication == pytest.approx(moved * width * 7 / 8 / (450e9 * 0.7))


def test_an_offloaded_optimizer_updates_on_the_host():
    there = seconds(offload="optimizer")
    assert there.update == 0
    assert there.host == pytest.approx((1 + 4) * 2 * 800 / 8 / 25e9 + 28 * 800 / 100e9)


@pytest.mark.parametrize("number, rings, shared", [
    (1, "", "100 GB/s of memory;"), (2, "rings of 2 GPUs", "100 GB/s of memory, which the 2 GPUs of a node share;"),
    (16, "rings of 16 GPUs", "which the 8 GPUs of a node share;")])
def test_assumptions_name_the_gpus_that_there_are(number, rings, shared):
    text = "; ".join(cost.assumptions(H100, number))
    assert shared in text and rings in text and ("rings" in text) is (number > 1)


def test_arrays_of_shapes_cost_what_each_does():
    batch, steps, length = np.array([1, 2, 16]), np.array([16, 8, 1]), np.array([64, 100, 1000])
    together = seconds(batch, steps, length).seconds_per_sample
    alone = [seconds(*shape).seconds_per_sample for shape in zip(batch, steps, length)]
    assert together.tolist() == pytest.approx(alone)


# what surely does not fit, and the search -------------------------------------------------------------


def test_what_every_gpu_surely_holds_is_below_each_predicted_peak():
    for setting in space(GIVEN | {"profile": "none"}).settings:
        job = dispatch.prepare(setting.workload(2, 1, 1024))
        least, peak = least_bytes(job.workload, job.formula.facts), job.run(None).peak
        assert 0 <= least <= peak, setting.name
        if not setting.workload(2, 1, 1024).offload and "AdamW" not in setting.name and setting.method != "ZeRO-3":
            assert least > peak / 8, setting.name


@given(st.integers(0, 80), st.integers(-1, 79), st.booleans(), st.lists(st.none() | st.integers(-9, 9), min_size=1))
@settings(deadline=None)
def test_the_search_finds_the_last_that_holds_whatever_the_hints_are(count, limit, near_the_end, hints):
    limit, tries = min(limit, count - 1), 0

    def tried(index: int) -> int | None:
        nonlocal tries
        tries += 1
        hint = hints[tries % len(hints)]
        return index if index <= limit else None if hint is None else min(index - 1, limit + hint)

    assert last(tried, count, near_the_end=near_the_end) == limit
    assert tries <= count
