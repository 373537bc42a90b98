"""The JavaScript of an explore page computes the same bytes as Python."""

from __future__ import annotations

import inspect
import json
import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.allocator import CachingAllocator, SimulatedDriver
from predictor.allocator.simulate import simulate
from predictor.answer.predict import predict
from predictor.common import gpus
from predictor.common.value_types import freeze
from predictor.events import workspaces
from predictor.events.composed_run import LARGEST_BUFFER_BYTES
from predictor.explore import columns
from predictor.workload.workload import Workload
from tests.predictor.explore_scripts import MODEL, Scripts, made, scripts

GPUS = [gpu for gpu in gpus.TABLE if gpu.compute_capability >= (8, 0)]
KIND = {"itemsize": (2, 4), "accumulator_bytes": (4, 8), "along_rows": (0, 1), "all_of_it": (0, 1),
        "width": (32, 64, 96, 100, 128, 160, 256, 4096), "heads": (1, 12, 32), "passes": (1, 8)}


def as_script_sees(gpu: gpus.Gpu) -> dict:
    major, minor = gpu.compute_capability
    return {"major": major, "minor": minor, "multiprocessors": gpu.multiprocessors,
            "shared_memory_block_bytes": gpu.shared_memory_block_bytes}


def calls_of(function) -> list[tuple[gpus.Gpu, list[int]]]:
    """Dimensions small and large, on every GPU."""
    draw, names = random.Random(function.__name__), list(inspect.signature(function).parameters)[1:]
    return [(gpu, [draw.choice(KIND[name]) if name in KIND else int(2 ** draw.uniform(0, 22)) for name in names])
            for gpu in GPUS for _ in range(20)]


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


PLAY = """(kind, buffer, bytes, stream, limit, waits) => {
  const end = simulate({kind, buffer, stream, buffers: bytes.length}, bytes, limit, waits);
  return [end.peakAllocated, end.peakReserved, end.peakAt, end.reservedAtPeak, end.failedAt,
    end.error && [end.error.requested, end.error.allocated, end.error.reserved]];
}"""


@pytest.mark.parametrize("completion", ["immediate", "synchronization"])
@pytest.mark.parametrize("limit", [None, 1 << 30, 600 << 20])
@pytest.mark.parametrize("seed", range(8))
def test_the_allocator_does_the_same_in_the_page(seed, limit, completion):
    kinds, buffers, sizes, streams = sequence(seed)
    end = simulate(kinds, buffers, sizes, streams, CachingAllocator(None, SimulatedDriver(limit), completion))
    error = end.out_of_memory
    assert scripts()(PLAY, kinds, buffers, sizes, streams, limit, completion == "synchronization") == [
        end.peak_allocated_bytes, end.peak_reserved_bytes, end.peak_at, end.reserved_at_peak_bytes, end.failed_at,
        error and [error.requested_bytes, error.allocated_bytes, error.reserved_bytes]]


def predicted(setting: dict, **keys) -> dict:
    name = setting["engine"]
    engine = {"zero_stage": int(name[4:])} if name.startswith("zero") else {"engine": name} if name else {}
    workload = Workload(
        model=MODEL, per_device_train_batch_size=setting["batch"], sequence_length=setting["sequence"],
        images_per_sample=setting["images"], data_parallel_size=setting["degree"], gpu=setting["gpu"],
        gradient_checkpointing=setting["checkpointing"], **engine, **keys)
    return json.loads(json.dumps(predict(workload).to_json()))


ANSWER = "setting => predict(data, setting).answer"
SETTING = {"batch": 4, "sequence": 1024, "images": 1, "engine": "zero2", "degree": 4, "gpu": "h100-80gb",
           "checkpointing": False}


@cache
def settings(count: int) -> list[dict]:
    """Any of those that the page has."""
    draw, document = random.Random(0), made().document
    found = []
    for _ in range(count):
        engine, images = draw.choice(document["engines"]), draw.choice((1, 1, 2, 3))
        found.append({"batch": draw.choice((1, 2, 3, 8, 31)), "images": images,
                      "sequence": draw.randint(576 * images + 1, 4096), "engine": engine["name"],
                      "degree": draw.choice(engine["degrees"]), "gpu": draw.choice(document["gpus"])["name"],
                      "checkpointing": False})
    return found


@pytest.mark.parametrize("number", range(40))
def test_an_answer_is_the_predictors_to_the_byte(number):
    setting = settings(40)[number]
    answer, expected = scripts()(ANSWER, setting), predicted(setting)
    assert answer == {name: expected[name] for name in answer}


@pytest.mark.parametrize("keys, engine", [({"keep_outputs": "next_forward"}, "zero2"), ({"keep_outputs": "backward"}, "ddp"),
                                          ({"keep_outputs": "next_forward", "zero_grad": "before_backward"}, "ddp")], ids=str)
def test_an_answer_about_a_loop_of_its_own_is_the_predictors(formula_cache, keys, engine):
    setting = SETTING | {"engine": engine}
    answer, expected = Scripts(made(**keys))(ANSWER, setting), predicted(setting, **keys)
    assert answer == {name: expected[name] for name in answer}


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
    keys = {"allocator_conf": "expandable_segments:False"}
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
