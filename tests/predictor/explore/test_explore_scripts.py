"""The JavaScript of an explore page computes the same bytes as Python."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.allocator import AllocatorSettings
from predictor.allocator.simulate import Columns, Device, simulate
from predictor.answer import changes
from predictor.answer.predict import predict
from predictor.answer.remedies import remedies
from predictor.common import gpus
from predictor.common.value_types import freeze
from predictor.events import workspaces
from predictor.events.composed_run import LARGEST_BUFFER_BYTES
from predictor.explore import columns
from predictor.explore.content import Content
from predictor.explore.remedies import _family as page_family
from predictor.explore.settings import find
from predictor.report.remedies import change_text
from predictor.workload.workload import Workload
from tests.predictor.explore_scripts import MODEL, Scripts, made, of_setting, scripts
from tests.predictor.small import small_config, small_llama
from tests.predictor.small_models import IMAGE_TEXT

GPUS = gpus.TABLE
KIND = {"itemsize": (2, 4), "accumulator_bytes": (4, 8), "along_rows": (0, 1), "all_of_it": (0, 1),
        "width": (32, 64, 96, 100, 128, 160, 256, 4096), "heads": (1, 12, 32), "passes": (1, 8)}


def as_script_sees(gpu: gpus.Gpu) -> dict:
    major, minor = gpu.compute_capability
    return {"major": major, "minor": minor, "multiprocessors": gpu.multiprocessors,
            "threads_per_multiprocessor": gpu.threads_per_multiprocessor,
            "shared_memory_block_bytes": gpu.shared_memory_block_bytes}


def calls_of(function) -> list[tuple[gpus.Gpu, list[int]]]:
    """Dimensions small and large, on every GPU. Of ``outputs``, no more than all are ``inner``."""
    draw, names = random.Random(function.__name__), list(inspect.signature(function).parameters)[1:]

    def dimensions() -> list[int]:
        drawn = {name: draw.choice(KIND[name]) if name in KIND else int(2 ** draw.uniform(0, 22)) for name in names}
        return [min(value, drawn["outputs"]) if name == "inner" else value for name, value in drawn.items()]

    return [(gpu, dimensions()) for gpu in GPUS for _ in range(20)]


@pytest.mark.parametrize("name", workspaces.FUNCTIONS)
def test_a_workspace_takes_as_many_bytes_in_the_page(name):
    function = workspaces.FUNCTIONS[name]
    calls = [(gpu, dimensions) for gpu, dimensions in calls_of(function)
             if function(gpu, *map(np.int64, dimensions)) < LARGEST_BUFFER_BYTES]
    expected = [int(function(gpu, *map(np.int64, dimensions))) for gpu, dimensions in calls]
    assert expected
    assert scripts()("(name, calls) => calls.map(([gpu, dimensions]) => WORKSPACES[name](gpu, ...dimensions))", name,
                     [(as_script_sees(gpu), dimensions) for gpu, dimensions in calls]) == expected


def test_the_kernel_of_few_rows_is_chosen_alike_in_the_page():
    draw = random.Random(4)
    calls = [(gpu, [draw.randint(1, 600), 64 * int(2 ** draw.uniform(0, 9)), 64 * int(2 ** draw.uniform(0, 9)), 2, 1])
             for gpu in GPUS for _ in range(400)]
    expected = [int(workspaces.unpacked_4bit(gpu, *dimensions)) for gpu, dimensions in calls]
    assert scripts()("calls => calls.map(([gpu, dimensions]) => WORKSPACES.unpacked_4bit(gpu, ...dimensions))",
                     [(as_script_sees(gpu), dimensions) for gpu, dimensions in calls]) == expected


@given(st.lists(st.integers(-(2**52), 2**52)))
def test_a_column_is_read_back(column):
    stream = columns.encode(column)
    assert scripts()("bytes => [...decode(Uint8Array.from(bytes), 0, bytes.length)]", list(stream)) == column


def sequence(seed: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """Kinds, buffers, and of these sizes and streams: allocations of all sizes, frees, other streams, emptied caches."""
    draw = random.Random(seed)
    kinds, buffers, sizes, streams, living = [], [], [], [], []
    for _ in range(600):
        what = draw.random()
        if what < 0.5 or not living:
            living.append(len(sizes))
            kinds.append(1)
            buffers.append(len(sizes))
            sizes.append(draw.choice((0, draw.randrange(1, 4096), draw.randrange(1, 2 << 20), draw.randrange(1, 64 << 20))))
            streams.append(draw.choice((0, 0, 0, 1)))
        elif what < 0.93:
            kinds.append(-1)
            buffers.append(living.pop(draw.randrange(len(living))))
        else:
            kinds.append(draw.choice((2, 3, 16, 17)))
            buffers.append(draw.choice(living))
    return kinds, buffers, sizes, streams


PLAY = """(kind, buffer, bytes, stream, limit, waits, expandable) => {
  const end = simulate({kind, buffer, stream, buffers: bytes.length}, bytes, limit, waits, null, expandable);
  return [end.peakAllocated, end.peakReserved, end.peakAt, end.reservedAtPeak, end.failedAt,
    end.error && [end.error.requested, end.error.allocated, end.error.reserved]];
}"""


@pytest.mark.parametrize("completion", ["immediate", "synchronization"])
@pytest.mark.parametrize("limit", [None, 1 << 30, 600 << 20])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("expandable", [None, 2 << 30], ids=["default", "expandable_segments"])
def test_the_allocator_does_the_same_in_the_page(expandable, seed, limit, completion):
    kinds, buffers, sizes, streams = sequence(seed)
    device = Device(AllocatorSettings(expandable_segments=bool(expandable)), limit, expandable, completion)
    end = simulate(Columns(*map(np.array, (kinds, buffers, sizes, streams))), device)
    error = end.out_of_memory
    assert Scripts()(PLAY, kinds, buffers, sizes, streams, limit, completion == "synchronization", expandable) == [
        end.peak_allocated_bytes, end.peak_reserved_bytes, end.peak_at, end.reserved_at_peak_bytes, end.failed_at,
        error and [error.requested_bytes, error.allocated_bytes, error.reserved_bytes]]


def predicted(setting: dict, **keys) -> dict:
    workload = asked(setting, **keys)
    return json.loads(json.dumps(predict(workload).to_json()))


def asked(setting: dict, **keys) -> Workload:
    """The workload of a page's setting."""
    return of_setting(Workload(**{"model": MODEL, **keys}), setting)


ANSWER = "setting => predict(data, setting).answer"
SETTING = {"batch": 4, "sequence": 1024, "images": 1, "engine": "zero2", "degree": 4, "gpu": "h100-80gb",
           "checkpointing": False}


@cache
def settings(count: int) -> list[dict]:
    """Any of those that the page has: each engine in turn."""
    draw, engines = random.Random(0), made().document["engines"]
    found = []
    for number in range(count):
        engine, batch = engines[number % len(engines)], draw.choice((1, 2, 3, 8, 31))
        shipped = batch > 1 or engine["traced"] == engines[0]["traced"]  # formulas of one sample with several images
        images = draw.choice((1, 1, 2, 3)) if shipped else 1
        found.append({"batch": batch, "images": images,
                      "sequence": draw.randint(576 * images + 1, 4096), "engine": engine["name"],
                      "degree": draw.choice(engine["degrees"]), "gpu": draw.choice(made().document["gpus"])["name"],
                      "checkpointing": False})
    return found


@pytest.mark.parametrize("number", range(40))
def test_an_answer_is_the_predictors_to_the_byte(number):
    setting = settings(40)[number]
    answer, expected = scripts()(ANSWER, setting), predicted(setting)
    assert answer == {name: expected[name] for name in answer}


CURVES = """setting => {
  const {live, curves} = predict(data, setting), points = Math.min(600, live.length), at = k => Math.trunc(k * live.length / points);
  return ["allocated", "reserved"].map(name => Array.from({length: points}, (_, k) =>
    Math.max(...curves[name].subarray(at(k), at(k + 1)))));
}"""


@pytest.mark.parametrize("engine", ["zero2", "zero3", "fsdp2", "torch-tp2"])
@pytest.mark.parametrize("batch", [1, 31], ids=["fits", "does_not_fit"])
def test_what_is_allocated_and_reserved_over_the_run_is_the_same_in_the_page(engine, batch):
    setting = SETTING | {"engine": engine, "batch": batch, "degree": 1 if "tp" in engine else 4, "sequence": 2048}
    curve = predict(asked(setting), timeline=True).timeline()
    assert scripts()(CURVES, setting) == [curve.allocated_bytes, curve.reserved_bytes]


def test_an_address_is_read_back():
    setting = SETTING | {"batch": 16, "images": 2, "sequence": 1500, "engine": "fsdp2", "degree": 1, "gpu": "l4"}
    address = scripts()("setting => fragmentOf(data, setting)", setting)
    assert address == "#batch=16&sequence=1500&images=2&engine=fsdp2&degree=1&gpu=l4"
    assert scripts()("text => settingOf(data, text)", address) == {"setting": setting, "notices": []}


@pytest.mark.parametrize("address, changed, notices", [
    ("", {}, []),
    ("#batch=8", {"batch": 8}, []),
    ("#batch=0&sequence=99999999999&images=x", {}, [
        "batch 0 is not a whole number from 1 to 4096", "sequence 99999999999 is not a whole number from 577 to 131072",
        "images x is not a whole number from 1 to 8"]),
    ("#batch=1e3&batch=-2&batch=2.5", {}, ["batch 2.5 is not a whole number from 1 to 4096"]),
    ("#engine=zero2&degree=3&gpu=<b>&batch=2", {"engine": "zero2", "batch": 2}, [
        "degree 3 is not one of 1, 4", "gpu <b> is not one of "]),
    ("#degree=4", {}, ["degree 4 is not one of 1"]),
    ("#constructor=1&%E0%A4=2&batch", {}, ["constructor is not", "%E0%A4 is not", "batch (nothing) is not a whole number"]),
    ("#" + "x" * 5000, {}, ["x" * 40 + "… is not a part of this page's settings"]),
])
def test_an_address_is_read_against_the_pages_own_choices(address, changed, notices):
    found = scripts()("text => settingOf(data, text)", address)
    assert found["setting"] == made().document["first"] | changed
    assert len(found["notices"]) == len(notices)
    assert all(notice.startswith(start) for notice, start in zip(sorted(found["notices"]), sorted(notices)))


@given(st.text(max_size=200))
def test_any_address_gives_a_setting_that_the_page_has(address):
    found = scripts()("text => settingOf(data, text)", address)["setting"]
    assert found["degree"] in next(one["degrees"] for one in made().document["engines"] if one["name"] == found["engine"])


REMEDIES = """setting => changesOf(data, setting).open.map(steps => {
  let step = judgeNext(data, steps);
  while (!step.fits && steps.length) step = judgeNext(data, steps);
  return step;
}).filter(step => step.fits)"""
SEARCH = """setting => {
  const search = searchFrom(data, setting);
  while (search.open.length) advance(data, search);
  return search.fit;
}"""


def prediction_of(setting: dict) -> dict:
    """The prediction of a remedy's setting."""
    keys = {"allocator_conf": "expandable_segments:True"} if setting.get("expandable") else {}
    return predicted(setting, gradient_accumulation_steps=setting.get("accumulation", 1), **keys)


@pytest.mark.parametrize("setting", [
    {"batch": 31}, {"batch": 3, "sequence": 1536, "engine": "ddp"}, {"gpu": "a100-40gb", "engine": "fsdp2"},
    {"batch": 30, "engine": "torch", "degree": 1, "gpu": "b200"}], ids=str)
def test_what_would_fit_does(setting):
    found = scripts()(REMEDIES, SETTING | setting)
    assert found
    for remedy in found:
        expected = prediction_of(remedy["setting"])
        assert (expected["verdict"], expected["peak_reserved_bytes"]) == ("fits", remedy["reserved_bytes"])


@pytest.mark.parametrize("keys", [
    {"zero_stage": 2, "data_parallel_size": 4, "per_device_train_batch_size": 30},
    {"per_device_train_batch_size": 12, "gradient_accumulation_steps": 2, "sequence_length": 3000},
    {"engine": "ddp", "data_parallel_size": 2, "per_device_train_batch_size": 40}], ids=str)
def test_remedies_are_those_of_predict_in_its_order(keys, tmp_path, formula_cache):
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    keys = {"model": str(tmp_path), "sequence_length": 2048, "gpu": "h100-80gb", "profile": "emulated",
            "capacity_bytes": 3 << 30} | keys
    page = made(**keys)
    unknown = Scripts(page)("setting => changesOf(data, setting).unknown", page.document["first"])
    theirs = [(change_text(remedy), remedy.peak_reserved_bytes, remedy.costs[0], list(remedy.differs))
              for remedy in remedies(Workload(gradient_checkpointing=False, **keys), every=True)
              if remedy.fits and len(remedy.changes) == 1 and not any(remedy.changes[0] == words.removesuffix(" (changes training)") for words in unknown)]
    ours = [(remedy["own"] or remedy["words"], remedy["reserved_bytes"], remedy["costs"],
             [remedy["differs"]] if remedy["differs"] else [])
            for remedy in Scripts(page)(REMEDIES, page.document["first"])]
    assert ours == theirs and len(ours) > 2


@pytest.mark.parametrize("capacity_mib", [1200, 1300, 1700, 2200])
def test_changes_that_fit_together_are_those_of_predict(capacity_mib, tmp_path, formula_cache, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    keys = {"model": str(tmp_path), "sequence_length": 2048, "gpu": "h100-80gb", "capacity_bytes": capacity_mib << 20,
            "zero_stage": 2, "data_parallel_size": 4, "per_device_train_batch_size": 30}
    ours = Scripts(page := made(**keys))(SEARCH, page.document["first"])
    workload = Workload(gradient_checkpointing=False, **keys)
    settings, families = find(workload, (1, 4)), changes.of
    monkeypatch.setattr(changes, "of", lambda changed: [  # those that the page can evaluate
        family for family in families(changed) if "words" not in page_family(settings, changed, family)])
    theirs = [remedy for remedy in remedies(workload) if remedy.fits]
    assert [(tuple(step["words"] for step in remedy["made"]), remedy["reserved_bytes"]) for remedy in ours] == [
        (remedy.changes, remedy.peak_reserved_bytes) for remedy in theirs]


def test_a_change_that_the_page_cannot_evaluate_is_named():
    unknown = scripts()("setting => changesOf(data, setting).unknown", SETTING | {"engine": "torch", "degree": 1, "gpu": "a100-40gb"})
    assert {"plain PyTorch → DeepSpeed ZeRO-2 with the optimizer on the host (changes training)", "recipe finetune → lora (changes training)"} <= set(unknown)


@pytest.mark.parametrize("keys, engine", [({"keep_outputs": "next_forward"}, "zero2"), ({"keep_outputs": "backward"}, "ddp"),
                                          ({"keep_outputs": "next_forward", "zero_grad": "before_backward"}, "ddp")], ids=str)
def test_an_answer_about_a_loop_of_its_own_is_the_predictors(formula_cache, tmp_path, keys, engine):
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    setting, keys = SETTING | {"engine": engine, "sequence": 128}, keys | {"model": str(tmp_path / "config.json")}
    answer, expected = Scripts(made(sequence_length=128, **keys))(ANSWER, setting), predicted(setting, **keys)
    assert answer == {name: expected[name] for name in answer}


@pytest.mark.parametrize("engine", ["torch", "zero1", "zero2"])
def test_an_answer_about_adapters_is_the_predictors(formula_cache, tmp_path, engine):
    """DeepSpeed's are of another dtype than those of other engines, and so are their traces."""
    (tmp_path / "config.json").write_text(json.dumps(small_llama()))
    keys = {"model": str(tmp_path / "config.json"), "recipe": "lora", "sequence_length": 128, "capacity_bytes": 60 << 30}
    page = made(gradient_checkpointing=True, **keys)
    setting = page.document["first"] | {"engine": engine}
    answer, expected = Scripts(page)(ANSWER, setting), predicted(setting, **keys)
    assert answer == {name: expected[name] for name in answer}


@pytest.mark.parametrize("batch", [1, 4, 8])
@pytest.mark.parametrize("sequence", [128, 77])
def test_an_answer_about_a_model_with_a_formula_for_each_batch_is_the_predictors(one_by_one, batch, sequence):
    page, keys = one_by_one
    setting = page.document["first"] | {"batch": batch, "sequence": sequence}
    answer, expected = Scripts(page)(ANSWER, setting), predicted(setting, **keys)
    assert answer == {name: expected[name] for name in answer}


def test_a_page_of_a_model_with_a_formula_for_each_batch_has_a_few_batches_only(one_by_one):
    page, _ = one_by_one
    assert page.document["limits"]["batches"] == [1, 2, 4, 8]
    assert Scripts(page)("text => settingOf(data, text)", "#batch=5")["notices"] == ["batch 5 is not one of 1, 2, 4, 8"]


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory) -> Iterator[tuple[Content, dict]]:
    """A page of a model that attends in each picture by itself, and the keys of its workload."""
    folder = tmp_path_factory.mktemp("qwen")
    (folder / "config.json").write_text(json.dumps(IMAGE_TEXT["qwen2_5_vl"]))
    keys = {"model": str(folder), "image_size": "56", "capacity_bytes": 60 << 30, "gpu": "h100-80gb"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PEAKCAST_CACHE", str(folder / "cache"))
        yield made(sequence_length=128, **keys), keys


def test_an_answer_says_all_that_the_page_shows():
    assert set(scripts()(ANSWER, SETTING)) > {
        "peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes", "verdict",
        "headroom_bytes", "factors", "moments", "peak", "out_of_memory", "not_modelled"}


def test_streams_and_micro_batches_that_accumulate_are_the_same_in_the_page():
    keys = {"gradient_accumulation_steps": 4, "capacity_bytes": 60 << 30, "deepspeed": freeze(
        {"zero_optimization": {"stage": 2, "overlap_comm": True}, "bf16": {"enabled": True}})}
    answer, expected = Scripts(made(gpu="h100-80gb", **keys))(ANSWER, SETTING), predicted(SETTING | {"engine": ""}, **keys)
    assert answer["peak_reserved_bytes_low"] is not None
    assert answer == {name: expected[name] for name in answer}


def test_intervals_under_allocator_settings_that_were_not_covered_are_the_same_in_the_page():
    keys = {"allocator_conf": "expandable_segments:False", "capacity_bytes": 80 << 30}  # a page of one GPU
    answer, expected = Scripts(made(gpu="h100-80gb", **keys))(ANSWER, SETTING), predicted(SETTING, **keys)
    assert answer == {name: expected[name] for name in answer}


def test_a_page_of_a_workload_with_expandable_segments_has_them():
    keys = {"allocator_conf": "expandable_segments:True", "capacity_bytes": 60 << 30}
    answer, expected = Scripts(made(gpu="h100-80gb", **keys))(ANSWER, SETTING), predicted(SETTING, **keys)
    assert answer == {name: expected[name] for name in answer}


@pytest.mark.parametrize("setting, why", [({"sequence": 576}, "at least 577"), ({"degree": 3}, "not in the page")])
def test_what_is_not_predicted_says_why(setting, why):
    assert why in scripts()("setting => predict(data, setting).refused", SETTING | setting)


def test_a_cell_of_the_map_has_the_requested_peak():
    cells = [SETTING | {"batch": batch, "sequence": sequence, "engine": engine}
             for batch, sequence, engine in zip((1, 2, 8, 64, 5), (640, 1024, 2000, 4096, 777),
                                                ("zero2", "ddp", "zero1", "zero2", "zero0"))]
    assert scripts()("cells => cells.map(cell => cellAt(data, cell).requested)", cells) == [
        predicted(cell)["peak_requested_bytes"] for cell in cells]


def test_a_cell_that_the_closed_form_refuses_does_not_fit():
    cells = [SETTING | {"batch": batch, "gpu": gpu} for batch in (1, 2, 16, 64) for gpu in ("l4", "a100-40gb", "b200")]
    refused = [cell for cell, told in zip(cells, scripts()("cells => cells.map(cell => cellAt(data, cell))", cells))
               if told.get("verdict")]
    assert refused and {predicted(cell)["verdict"] for cell in refused} == {"does_not_fit"}
