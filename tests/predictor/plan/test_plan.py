"""Plans rank as an exhaustive search does, propose settings that fit, and write files with these settings."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from calibrate.checks.plan_agreement import FIGURES, typed
from predictor import Workload, predict
from predictor.common.errors import InputError
from predictor.events.model_facts import Parameter
from predictor.jobs import dispatch
from predictor.plan import Telling, Wanted, document, launch, plan
from predictor.plan.background import Background
from predictor.plan.examples import Examples, nothing
from predictor.plan.knobs import Knob, Peaks, turned
from predictor.plan.memory import Memory, Point
from predictor.plan.plan import _closest, workload_of
from predictor.plan.search import Candidate, Found, queue
from predictor.plan.space import space
from predictor.report import plan as plan_report
from predictor.report import plan_summary
from predictor.workload import deepspeed_document
from predictor.workload.command_line import command_line
from tests.predictor.small import small_llama

GIVEN = {"model": "llava-1.5-7b", "sequence_length": 1024, "gpu": "h100-80gb", "data_parallel_size": 8}
OVERLAP = {"bf16": {"enabled": True},
           "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 500_000_000}}


@pytest.fixture(autouse=True, scope="module")
def empty_cache(tmp_path_factory):
    """Only shipped formulas."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAKCAST_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def made(empty_cache):
    return plan(GIVEN, Wanted(global_batch_size=128), trace=False)


def test_the_ranking_is_that_of_predicting_every_configuration():
    fixed = GIVEN | {"zero_stage": 2, "offload": "none", "gpu": "a100-40gb", "optim": "adamw_torch_fused"}
    found = plan(fixed, Wanted(global_batch_size=64), trace=False)
    best = {}
    for setting in space(fixed).settings:
        for batch in (8, 4, 2, 1):
            if predict(setting.workload(batch, 8 // batch, 1024)).verdict == "fits":
                best.setdefault(setting.name, batch)
    assert {one.setting.name: one.candidate.batch for one in found.found.fitting} == best


def test_of_settings_that_cost_the_same_the_one_that_reserves_least_is_proposed():
    given = {"model": "llava-1.5-7b", "sequence_length": 1024, "gpu": "a100-40gb", "per_device_train_batch_size": 1}
    found = plan(given, Wanted(global_batch_size=1), trace=False).found.fitting
    costs = [row.estimate.seconds_per_sample for row in found[:3]]
    assert [row.setting.keys["zero_stage"] for row in found[:3]] == [3, 1, 2] and len(set(costs)) == 1
    assert found[0].prediction.peak_reserved_bytes < found[1].prediction.peak_reserved_bytes


def test_the_command_line_of_a_configuration_predicts_its_bytes(made):
    for row in made.found.fitting:
        asked = predict(typed(command_line(workload_of(row))))
        assert [getattr(asked, name) for name in FIGURES] == [getattr(row.prediction, name) for name in FIGURES]


def test_cheaper_comes_first_and_other_training_last(made):
    keys = [(len(one.setting.differs), one.estimate.seconds_per_sample) for one in made.found.fitting]
    assert keys == sorted(keys) and len(keys) == 5


def test_the_wanted_global_batch_is_kept(made):
    assert {one.candidate.batch * one.candidate.accumulation * 8 for one in made.found.fitting} == {128}


def test_a_given_micro_batch_may_be_accumulated_from_smaller_ones():
    made = plan(GIVEN | {"gpu": "a100-40gb", "per_device_train_batch_size": 16, "gradient_accumulation_steps": 2})
    shapes = [row.candidate for row in made.found.fitting]
    assert {shape.batch * shape.accumulation for shape in shapes} == {32} and {shape.batch for shape in shapes} > {16}
    assert not {"per_device_train_batch_size", "gradient_accumulation_steps"} & set(made.kept)


def test_a_micro_batch_that_is_kept_is_not_split():
    made = plan(GIVEN | {"gpu": "a100-40gb", "per_device_train_batch_size": 16}, Wanted(keep=("split",)))
    assert {(row.candidate.batch, row.candidate.accumulation) for row in made.found.fitting} == {(16, 1)}
    assert "per_device_train_batch_size" in made.kept


def test_a_global_batch_is_reached_with_smaller_micro_batches_than_the_given_one():
    made = plan(GIVEN | {"gpu": "a100-40gb", "per_device_train_batch_size": 16}, Wanted(global_batch_size=256))
    assert {row.candidate.batch * row.candidate.accumulation for row in made.found.fitting} == {32}
    assert {row.candidate.batch for row in made.found.fitting} > {16}


@pytest.mark.parametrize("config, shape", [
    ({"train_micro_batch_size_per_gpu": 4}, {4}), ({"gradient_accumulation_steps": 2}, {4, 8}),
    ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}, {4, 8})])
def test_sizes_in_a_deepspeed_config_are_kept(tmp_path, config, shape):
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}} | config))
    batch = {} if "train_micro_batch_size_per_gpu" in config else {"per_device_train_batch_size": 4}
    made = plan(GIVEN | batch | {"deepspeed": str(tmp_path / "ds.json")})
    assert {(row.candidate.batch, row.candidate.batch * row.candidate.accumulation) for row in made.found.fitting} == {
        (4, max(shape))}
    assert "per_device_train_batch_size" in made.kept


def test_every_setting_has_one_outcome_and_few_are_composed(made):
    found = made.found
    outcomes = [one.setting for one in found.fitting] + found.failed + found.unseen + [one for one, _ in found.left_out]
    assert len(outcomes) == len(set(outcomes)) == made.settings
    assert made.counts.composed < made.settings / 2 and made.counts.traced == 0


def test_what_is_proposed_fits_and_the_next_larger_batch_does_not(made):
    assert predict(workload_of(made.proposed)).verdict == "fits"
    setting, largest = made.proposed.setting, made.largest
    steps = made.proposed.candidate.accumulation
    assert predict(setting.workload(largest.micro_batch, steps, 1024)).verdict == "fits"
    assert predict(setting.workload(largest.micro_batch + 1, steps, 1024)).verdict != "fits"


def test_the_largest_batch_of_the_users_job_has_as_many_samples_in_a_step(made):
    for largest in (made.largest, made.largest_expandable):
        assert largest.candidate.batch * largest.candidate.accumulation * 8 == 128
        assert largest.candidate.batch <= largest.micro_batch


def test_the_longest_sequence_fits_and_the_next_does_not():
    given = {key: value for key, value in GIVEN.items() if key != "sequence_length"} | {"zero_stage": 2, "offload": "none"}
    best = plan(given, Wanted(maximize="sequence", top=1), trace=False).proposed
    longest = best.candidate.sequence
    assert longest % 64 == 0
    assert predict(best.setting.workload(1, 1, longest)).verdict == "fits"
    assert predict(best.setting.workload(1, 1, longest + 64)).verdict != "fits"


def test_where_nothing_fits_the_closest_survives_with_the_memory_it_is_said_to_need():
    found = plan(GIVEN | {"zero_stage": 2, "offload": "none", "gpu": "l4", "optim": "adamw_torch_fused"}, trace=False)
    least = found.closest.prediction.minimum_capacity_bytes
    assert found.proposed is None and least > found.capacity_bytes
    assert predict(workload_of(found.closest).replace(capacity_bytes=least)).verdict == "fits"
    assert "offload" in found.kept and "zero_stage" in found.kept


def test_the_closest_needs_no_more_than_a_setting_that_its_states_alone_rule_out():
    given = {"model": "llama-3.1-8b", "recipe": "full", "sequence_length": 2048}
    found = plan(given | {"gpu": "rtx-3060"}, trace=False)
    plain = predict(Workload.from_mapping(given | {"per_device_train_batch_size": 1}), minimum_capacity=True)
    assert found.closest.prediction.minimum_capacity_bytes <= plain.minimum_capacity_bytes


@pytest.mark.parametrize("keys, searched, said", [
    ({}, {"global_batch_size": 7}, "not a multiple of data_parallel_size 8"), ({}, {"maximize": "sequence"}, "sequence_length is given, too"),
    ({"per_device_train_batch_size": 3}, {"global_batch_size": 32}, "not a multiple of data_parallel_size 8 x 3"),
    ({}, {"maximize": "speed"}, "one of cost, batch, sequence"), ({"sequence_length": 10}, {}, "no room"),
    ({"model": "llava-1.5-8b"}, {}, "not a known name"),
], ids=["global batch", "sequence given", "batch given", "goal", "room", "model"])
def test_what_cannot_be_planned_is_refused(keys, searched, said):
    with pytest.raises(InputError, match=said):
        plan(GIVEN | keys, Wanted(**searched), trace=False)


@pytest.fixture
def flash(tmp_path):
    """A model that has a formula for several samples and bf16 weights, and none for one sample; fp32 is refused."""
    (tmp_path / "config.json").write_text(json.dumps(small_llama()))
    keys = {"model": str(tmp_path / "config.json"), "sequence_length": 128, "gpu": "l4", "data_parallel_size": 8,
            "attn_implementation": "flash_attention_2", "gradient_checkpointing": True, "optim": "adamw_torch_fused"}
    predict(Workload(**keys, zero_stage=2, per_device_train_batch_size=2))
    return keys


def test_shapes_without_a_formula_are_left_out_and_the_others_planned(flash):
    found = plan(flash | {"zero_stage": 2, "offload": "none"}, Wanted(maximize="batch"), trace=False)
    assert found.proposed.candidate.batch > 2 and found.counts.no_formula == 1
    assert predict(workload_of(found.proposed)).verdict == "fits"


def test_the_largest_stops_at_shapes_without_a_formula(flash):
    predict(Workload(**flash, zero_stage=3, per_device_train_batch_size=1))
    found = plan(flash | {"zero_stage": 3, "offload": "none", "per_device_train_batch_size": 1}, trace=False)
    assert found.largest.micro_batch == 1


def test_a_setting_that_is_refused_is_not_the_closest(flash):
    refused, predicted = (next(one for one in space(flash).settings if one.method.startswith(method)) for method in ("data parallel", "ZeRO-2"))
    queues = [queue(one, [Candidate(size, 1, 128) for size in (1, 2, 4)], "cost", lambda *shape: SimpleNamespace(
        seconds_per_sample=1.0)) for one in (refused, predicted)]
    found = Found(failed=[refused, predicted])
    closest = _closest(queues, found, Memory(trace=False))
    assert closest.setting == predicted and closest.candidate.batch == 2
    assert [one for one, _ in found.left_out] == [refused] and found.failed == [predicted]


def test_a_refusal_of_the_first_setting_is_not_the_user_s(flash):
    """Settings that could be traced are behind it."""
    with pytest.raises(InputError, match="leave out --no-trace"):
        plan(flash | {"image_size": None, "padding": "right"}, trace=False)


@pytest.mark.parametrize("degree", [1, 4])
def test_a_model_without_any_formula_is_named_with_what_to_do(degree):
    keys = {"model": "mistral-7b", "sequence_length": 2048, "gpu": "rtx4090", "data_parallel_size": degree}
    with pytest.raises(InputError, match="model mistral-7b: there is no formula yet .* leave out --no-trace"):
        plan(keys, trace=False)


def test_where_the_first_setting_has_no_formula_others_are_planned():
    """LoRA comes first here, and nobody traced it in this cache."""
    around = space(GIVEN | {"zero_stage": 2}, vary=["recipe"])
    last = replace(around, settings=tuple(sorted(around.settings, key=lambda setting: setting.keys["recipe"] != "lora")))
    assert last.settings[0].keys["recipe"] == "lora"
    assert Examples(last, Memory(trace=False), Background(Memory(trace=False))).job.workload.recipe != "lora"


def test_a_refusal_of_some_settings_is_said_of_them():
    """The user's keys are not at fault where the settings are refused for different reasons."""
    one, other = space(GIVEN).settings[:2]
    assert str(nothing([(one, "of one"), (other, "of another")])) == f"none of 2 configurations can be predicted; the first, {one.name}: of one"
    assert str(nothing([(one, "of both"), (other, "of both")])) == "of both"


# knobs ------------------------------------------------------------------------------------------------


def test_a_smaller_bucket_gives_what_two_predictions_differ_by():
    standing = Workload(**GIVEN | {"deepspeed": OVERLAP, "per_device_train_batch_size": 16, "data_parallel_size": 4, "gpu": None})
    smaller = OVERLAP | {"zero_optimization": OVERLAP["zero_optimization"] | {"reduce_bucket_size": 50_000_000}}
    before, after = predict(standing), predict(standing.replace(deepspeed=smaller))
    knob = next(knob for knob in turned(standing)[1] if knob.change == "reduce_bucket_size 5e+08 → 5e+07")
    assert knob.gives_allocated_bytes == before.peak_allocated_bytes - after.peak_allocated_bytes > 0


def test_knobs_come_by_what_they_give_and_start_from_a_whole_configuration():
    asked = GIVEN | {"zero_stage": 2, "per_device_train_batch_size": 4, "gradient_checkpointing": False}
    found = plan(asked, trace=False)
    gives = [knob.gives_allocated_bytes for knob in found.knobs if not knob.why_not]
    assert found.standing == "given" and gives == sorted(gives, reverse=True)
    assert found.knobs[0].change == "gradient_checkpointing off → on"


# files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{"zero_stage": 0}, {"zero_stage": 1}, {"zero_stage": 2, "offload": "optimizer"}, {"zero_stage": 3},
                                  {"zero_stage": 3, "offload": "all"}, {"deepspeed": OVERLAP}], ids=str)
def test_the_deepspeed_config_is_of_the_same_memory(keys):
    asked = Workload(**GIVEN | {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_grad_norm": 0.5} | keys)
    config = json.loads(json.dumps(deepspeed_document.document(asked, 4096)))
    again = Workload(**GIVEN | {"deepspeed": config})
    one, other = predict(asked), predict(again)
    assert (again.per_device_train_batch_size, again.gradient_accumulation_steps, again.offload) == (2, 2, asked.offload)
    assert (one.allocated, one.reserved) == (other.allocated, other.reserved)


def test_other_engines_have_no_deepspeed_config():
    assert deepspeed_document.document(Workload(**GIVEN | {"engine": "ddp"}), 4096) is None


def test_hugging_face_knows_every_argument(made):
    from transformers import TrainingArguments

    known = {entry.name for entry in fields(TrainingArguments)}
    for one in made.found.fitting:
        assert launch.training_arguments(workload_of(one)).keys() <= known


@pytest.mark.parametrize("recipe, expected", [
    ("finetune", ("model.vision_tower",)),
    ("pretrain", ("model.vision_tower", "model.language_model", "lm_head")), ("full", ())])
def test_what_the_recipe_freezes_is_named(recipe, expected):
    asked = Workload(**GIVEN | {"recipe": recipe, "zero_stage": 2})
    assert launch.frozen(dispatch.prepare(asked).formula.facts) == expected


ADAPTED = {"tower.weight": False, "projector.weight": True, "projector.bias": True, **{
    f"layers.{at}.{name}.weight": "lora" in name for at in (0, 1) for name in ("q.base_layer", "q.lora_A.default", "norm")}}


@pytest.mark.parametrize("changes, bias, expected", [
    ({}, "none", ((), ("projector",))), ({"projector.weight": False, "projector.bias": False}, "none", ((), ())),
    ({"layers.0.q.lora_A.default.weight": False}, "none", (("layers.0",), ("projector",))),
    ({"projector.weight": False}, "all", ((), ()))])
def test_beside_adapters_peft_freezes_the_rest(changes, bias, expected):
    facts = SimpleNamespace(parameters=[Parameter(name, (1,), 2, trains) for name, trains in (ADAPTED | changes).items()])
    assert (launch.frozen(facts), launch.unfrozen(facts, bias)) == expected


def test_layers_that_freeze_alike_are_one_pattern_and_none_of_it_trains():
    names = {"model.0.a.weight": True, "model.0.b.weight": False, "model.1.a.weight": True, "model.1.b.weight": False,
             "head.0.weight": False, "head.1.weight": True}
    facts = SimpleNamespace(parameters=[Parameter(name, (1,), 2, trains) for name, trains in names.items()])
    assert launch.frozen(facts) == ("model.*.b", "head.0")


def test_on_one_gpu_plain_pytorch_goes_before_deepspeed_at_an_equal_sequence():
    def key(method, goal, seconds, sequence=1024):
        setting = next(one for one in space({"model": "gpt2"}).settings if one.method.startswith(method) and not one.differs)
        cost = SimpleNamespace(seconds_per_sample=seconds)
        return queue(setting, [Candidate(1, 1, sequence)], goal, lambda *_: cost).key

    assert key("one GPU", "sequence", 2.0) < key("ZeRO-1", "sequence", 1.0)
    assert key("ZeRO-1", "sequence", 1.0, sequence=2048) < key("one GPU", "sequence", 1.0)
    assert key("ZeRO-1", "cost", 1.0) < key("one GPU", "cost", 2.0)
    assert key("one GPU", "cost", 1.0) < key("ZeRO-1", "cost", 0.995) < key("one GPU", "cost", 1.01)


def test_the_workload_file_is_the_proposed_configuration(made):
    keys = json.loads(json.dumps(document.files(made)))["workload.json"]
    assert Workload.from_mapping(keys).resolved() == workload_of(made.proposed).resolved()


def test_a_recipe_that_cannot_be_predicted_is_left_out_by_name():
    """Nobody traced LoRA in this cache."""
    found = plan(GIVEN | {"zero_stage": 2}, Wanted(vary=["recipe"], keep=["optim"], top=50), trace=False).found
    reasons = {why for one, why in found.left_out if one.differs == ("recipe lora",)}
    assert len(reasons) == 1 and found.fitting[0].setting.differs == ()


def test_settings_that_rank_after_enough_others_are_not_looked_at():
    """Not even for their facts, which nobody traced for LoRA."""
    found = plan(GIVEN | {"zero_stage": 2}, Wanted(vary=["recipe"], keep=["optim"], top=1), trace=False).found
    assert not found.left_out and {one.differs for one in found.unseen} >= {("recipe lora",)}


# progress -----------------------------------------------------------------------------------------------


def test_each_step_of_the_search_tells_the_best_so_far():
    steps = []
    found = plan(GIVEN | {"zero_stage": 2, "offload": "none"}, Wanted(global_batch_size=128, top=2), trace=False, telling=Telling(step=steps.append))
    assert steps[0].best is None and steps[-1].best == found.proposed
    assert plan_report.progress_text(steps[-1]).startswith(f"examining {steps[-1].setting.name} (")
    assert f"best so far: {found.proposed.setting.name}, micro batch" in plan_report.progress_text(steps[-1])


@pytest.mark.parametrize(("exceeded", "has_formula", "short"), [(1, False, True), (0, False, True), (1, True, True), (1, False, False)])
def test_a_shape_is_not_traced_if_a_smaller_one_exceeds_the_capacity_where_memory_was_short(monkeypatch, exceeded, has_formula, short):
    setting, memory = space(GIVEN).settings[0], Memory()
    memory.short |= {setting.rest} if short else set()
    monkeypatch.setattr(memory, "with_formula", lambda setting, points: set(points) if has_formula else set())
    monkeypatch.setattr(memory, "_beyond", lambda setting, accumulation, points: np.array([exceeded]))
    ruled_out = memory.is_ruled_out(setting, 1, Point(8, 1024), [Point(1, 1024)])
    assert ruled_out is (exceeded > 0 and not has_formula and short)


def test_a_change_with_a_long_name_leaves_room_for_its_costs():
    long = Knob("engine torch → ZeRO-3, optimizer and parameters → host, mixed_precision bf16 → none, " * 2, {}, "AdamW " * 30,
                1 << 30, 1 << 30)
    asked, console = SimpleNamespace(standing="given", before=Peaks(0, 0), knobs=(long,)), Console(width=100, file=StringIO())
    console.print(plan_summary.changes(asked, 5))
    assert len(console.file.getvalue().splitlines()) < 16
