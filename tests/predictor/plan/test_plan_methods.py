"""Methods for several GPUs: degrees that are tried, cost of sharing layers, and the cheapest of each method."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import predict
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.events.sizes import Shape
from predictor.jobs import dispatch
from predictor.model import parser, tensor_parallel
from predictor.model.model_config import ModelConfig
from predictor.plan import Wanted, cost, plan
from predictor.plan.document import files, to_json
from predictor.plan.minimum_states import least_bytes
from predictor.plan.plan import workload_of
from predictor.plan.reductions import Reductions
from predictor.plan.setting import SHARINGS
from predictor.plan.space import space
from predictor.workload.workload import Workload
from tests.predictor.small import TEXT, facts_of, small_config, small_llama, traced_at

LLAVA = {"model": "llava-1.5-7b", "sequence_length": 1024, "gpu": "h100-80gb"}
BATCH, SEQUENCE, ITEMSIZE = 2, 64, 2
HIDDEN, LAYERS, VOCABULARY = TEXT["hidden_size"], TEXT["num_hidden_layers"], TEXT["vocab_size"]
SENT = Reductions(computed=1000, repeated=300, stored=500)
MODEL = cost.Model(cost.Elements(1000, 800, 900), cost.Elements(100, 0, 100), 1200, 800, 10, SENT)


# which are tried --------------------------------------------------------------------------------------


@given(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 64]))
@settings(max_examples=9, deadline=None)
def test_every_setting_is_of_all_gpus(number):
    found = [setting.workload(1, 1, 1024) for setting in space(LLAVA, gpus=number).settings]
    assert {workload.world_size for workload in found} == {number}
    assert {workload.tensor_parallel_size for workload in found} == {
        parts for parts in range(1, 9) if number % parts == 0 and (number <= 8 or 8 % parts == 0)}


def test_tensor_parallelism_is_tried_alone_and_with_replicas():
    kinds = {setting.method: setting.sharing for setting in space(LLAVA, gpus=4).settings}
    assert set(kinds.values()) == set(SHARINGS)
    assert [name for name, kind in kinds.items() if kind == "tensor parallel"] == [
        "tensor parallel of 4, fp32 weights under bf16 autocast", "tensor parallel of 4, bf16 weights"]
    assert [name for name, kind in kinds.items() if kind == "combined"] == [
        "data parallel of 2 × tensor parallel of 2, bf16 weights"]


def test_the_8_bit_optimizer_is_not_tried_with_it():
    assert not any(setting.keys["optim"] == "adamw_bnb_8bit" for setting in space(LLAVA, gpus=4).settings
                   if "tensor" in setting.method)


@pytest.mark.parametrize(("keys", "number", "degrees"), [
    ({"data_parallel_size": 8}, None, {(8, 1)}), ({"data_parallel_size": 2}, 8, {(2, 4)}),
    ({"tensor_parallel_size": 4}, 8, {(2, 4)}), ({"data_parallel_size": 2, "tensor_parallel_size": 4}, None, {(2, 4)}),
    ({"tensor_parallel_size": 16}, 16, {(1, 16)}), ({"tensor_parallel_size": 1}, 8, {(8, 1)}),
], ids=str)
def test_a_degree_that_is_given_stays(keys, number, degrees):
    found = [setting.workload(1, 1, 1024) for setting in space(LLAVA | keys, gpus=number).settings]
    assert {(workload.data_parallel_size, workload.tensor_parallel_size) for workload in found} == degrees


@pytest.mark.parametrize(("keys", "said"), [
    ({"data_parallel_size": 3}, "8 GPUs: not data_parallel_size 3: leave one of them out"),
    ({"tensor_parallel_size": 3}, "8 GPUs: not tensor_parallel_size 3: leave one of them out"),
    ({"data_parallel_size": 4, "tensor_parallel_size": 4},
     "8 GPUs: not data_parallel_size 4 x tensor_parallel_size 4: leave one of them out"),
])
def test_degrees_of_another_number_of_gpus_are_refused(keys, said):
    with pytest.raises(InputError) as caught:
        space(LLAVA | keys, gpus=8)
    assert str(caught.value) == said


# what they cost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_what_ranks_send_is_what_a_traced_step_moves(tied, checkpointed):
    model = parser.build_plain(ModelConfig("small", small_llama(tie_word_embeddings=tied)), "sdpa").train()
    whole = facts_of(model)
    if checkpointed:
        parser.checkpoint(model, use_reentrant=False)
    with tensor_parallel.on_meta(model, 2):
        sent = Reductions.of(whole, facts_of(model))
        recording = traced_at(model, Shape(BATCH, SEQUENCE, 0))
    times = {"_c10d_functional::all_reduce": 2, "_c10d_functional::all_gather_into_tensor": 1}
    moved = sum(buffer.size * times[buffer.operator] for buffer in recording.buffers if buffer.operator in times)
    elements = sent.computed + sent.stored + sent.repeated * checkpointed
    assert moved == ITEMSIZE * BATCH * SEQUENCE * elements


@pytest.mark.parametrize(("tied", "expected"), [
    (False, Reductions(4 * LAYERS * HIDDEN + VOCABULARY, 2 * LAYERS * HIDDEN, 2 * (5 * LAYERS + 1) * HIDDEN)),
    (True, Reductions(4 * LAYERS * HIDDEN + VOCABULARY, 2 * LAYERS * HIDDEN, 2 * (5 * LAYERS + 2) * HIDDEN)),
])
def test_a_layer_reduces_twice_forward_and_five_times_backward(tied, expected):
    model = parser.build_plain(ModelConfig("small", small_llama(tie_word_embeddings=tied)), "sdpa")
    whole = facts_of(model)
    with tensor_parallel.on_meta(model, 4):
        assert Reductions.of(whole, facts_of(model)) == expected


def seconds(**changes) -> cost.Estimate:
    keys = LLAVA | {"images_per_sample": 1, "tensor_parallel_size": 4, "gradient_checkpointing": False} | changes
    return cost.estimate(Workload(**keys), MODEL, gpus.find("h100-80gb"), 2, 3, 100)


@pytest.mark.parametrize(("changes", "bytes_of_a_token"), [
    ({}, 2 * 1500), ({"gradient_checkpointing": True}, 2 * 1800),
    ({"dtype": "fp32", "mixed_precision": "bf16"}, 2 * 1000 + 4 * 500), ({"dtype": "fp32"}, 4 * 1500)], ids=str)
def test_ranks_that_share_layers_send_activations_in_rings(changes, bytes_of_a_token):
    assert seconds(**changes).communication == pytest.approx(2 * 3 * 100 * bytes_of_a_token * 3 / 4 / (450e9 * 0.7))


def test_replicas_reduce_the_parts_that_they_hold_and_samples_are_theirs():
    both = seconds(engine="ddp", data_parallel_size=2)
    assert both.communication == pytest.approx(seconds().communication + 2 * 800 * 2 / 2 / (450e9 * 0.7))
    assert (both.samples, seconds().samples) == (2 * 2 * 3, 2 * 3)


def test_replicas_on_several_nodes_reduce_between_them():
    both = seconds(engine="ddp", data_parallel_size=4)
    assert both.communication == pytest.approx(seconds().communication + 2 * 800 * 2 * 3 / 4 / (50e9 * 0.7))


# which is chosen --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Of a small model on four GPUs, without ways to share the work whose formula takes another trace."""
    folder = tmp_path_factory.mktemp("methods")
    (folder / "config.json").write_text(json.dumps(small_config()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAKCAST_CACHE", str(folder / "cache"))
        asked = {"model": str(folder / "config.json"), "sequence_length": 64, "gpu": "h100-80gb", "dtype": "bf16",
                 "gradient_checkpointing": False, "optim": "adamw_torch_fused", "offload": "none"}
        yield plan(asked, Wanted(gpus=4, global_batch_size=16, top=1))


def test_the_cheapest_of_each_kind_fits_and_is_of_all_gpus(made):
    assert [one.kind for one in made.methods] == list(SHARINGS)
    for one in made.methods:
        workload = workload_of(one.cheapest)
        assert predict(workload).verdict == "fits" and workload.world_size == made.gpus == 4
        assert one.cheapest.candidate.batch * one.cheapest.candidate.accumulation * workload.data_parallel_size == 16


def test_what_is_proposed_is_the_cheapest_of_its_kind_and_of_all(made):
    kept = [one.cheapest for one in made.methods if not one.cheapest.setting.differs]
    assert made.proposed in kept
    assert made.proposed.estimate.seconds_per_sample == min(one.estimate.seconds_per_sample for one in kept)


def test_what_ranks_surely_hold_is_below_the_predicted_peak(made):
    for one in made.methods[2:]:
        workload = workload_of(one.cheapest)
        least = least_bytes(workload, dispatch.prepare(workload).formula.facts)
        assert 0 < least <= one.cheapest.prediction.peak_requested_bytes


def test_the_json_names_the_method(made):
    document = to_json(made)
    assert [one["kind"] for one in document["methods"]] == list(SHARINGS) and document["gpus"] == 4
    combined = document["methods"][-1]["cheapest"]["workload"]
    assert (combined["data_parallel_size"], combined["tensor_parallel_size"]) == (2, 2)


def test_replicas_that_share_layers_have_no_arguments(made):
    written = files(replace(made, found=replace(made.found, fitting=[made.methods[-1].cheapest])))
    assert list(written) == ["workload.json"]


def test_where_none_of_a_kind_fits_it_needs_more_than_there_is():
    found = plan(LLAVA | {"gpu": "l4", "offload": "none", "optim": "adamw_torch_fused", "zero_stage": 2,
                          "data_parallel_size": 4}, trace=False)
    first, *others = found.methods
    assert first.cheapest is None and first.closest.method == "ZeRO-2" and first.least_bytes > found.capacity_bytes
    assert {one.why_none for one in others} == {"the keys that are given leave none"}


def test_autotp_is_planned_where_it_is_asked_for(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small_llama()))
    found = plan({"model": str(path), "recipe": "full", "sequence_length": 64, "gpu": "l4", "zero_stage": 1,
                  "tensor_parallel_size": 2}, Wanted(gpus=4, global_batch_size=8))
    written = files(found)
    assert written["ds_config.json"]["tensor_parallel"] == {"autotp_size": 2} and "training_arguments.json" in written
    assert (workload_of(found.proposed).data_parallel_size, workload_of(found.proposed).zero_stage) == (2, 1)
