"""A workload is complete and never changes; keys as the user gave them have a type of their own."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from predictor import readers
from predictor.common.value_types import FrozenMap
from predictor.workload.given_keys import GivenKeys
from predictor.workload.keys import DEFAULTS, KEYS
from predictor.workload.value_sources import Source
from predictor.workload.workload import Workload

ENOUGH = {"model": "llava-1.5-7b", "sequence_length": 1024}
PACKAGES = [Path(__file__).parents[3] / package for package in ("predictor", "calibrate")]
CONFIGURATIONS = Path(__file__).parents[1] / "configurations"
HELD = {
    "keys alone": {},
    "mappings and lists": {"recipe": "lora", "lora": {"target_modules": ["q_proj"]}, "frozen": ["a", "b"],
                           "quantization": {"load_in_4bit": True}, "engine": "ddp", "data_parallel_size": 2,
                           "optim": "sgd", "optim_args": {"momentum": 0.9}},
    "a DeepSpeed config": {"data_parallel_size": 2, "deepspeed": {
        "bf16": {"enabled": True}, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}},
    "fsdp": {"engine": "fsdp2", "data_parallel_size": 2},
    "a conversation": {"mode": "inference", "sequence_length": None,
                       "conversation": [{"tokens": 600, "new_tokens": 64}]},
}


def mutable(value: Any, path: str = "workload") -> Iterator[str]:
    """Where something that can be changed lies in or below a value. What can be called is not looked into."""
    if callable(value):
        return
    if is_dataclass(value):
        if not value.__dataclass_params__.frozen:
            yield path
        for entry in fields(value):
            yield from mutable(getattr(value, entry.name), f"{path}.{entry.name}")
    elif isinstance(value, FrozenMap):
        for key, item in value.items():
            yield from mutable(item, f"{path}[{key!r}]")
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from mutable(item, f"{path}[{index}]")
    elif not (value is None or isinstance(value, (str, int, float, frozenset))):
        yield path


def test_what_was_given_holds_no_other_key():
    assert GivenKeys.read(ENOUGH | {"recipe": None, "engine": "torch"}).values == ENOUGH | {"engine": "torch"}


@pytest.mark.parametrize("name", ["recipe", "filled_in", "given", "source", "something_new"])
def test_nothing_of_a_workload_can_be_set(name):
    with pytest.raises(FrozenInstanceError):
        setattr(Workload(**ENOUGH), name, None)


@pytest.mark.parametrize("keys", HELD.values(), ids=HELD)
def test_nothing_below_a_workload_can_be_changed(keys):
    made = Workload(**ENOUGH | keys)
    assert list(mutable(made)) == []


def test_nothing_that_the_model_fills_in_can_be_changed():
    assert list(mutable(Workload(**ENOUGH).fill(images_per_sample=1))) == []


@pytest.mark.parametrize("name", ["swift.sh", "axolotl.yml", "llamafactory.yaml", "llava/scripts/zero2.json"])
def test_the_origin_of_the_values_cannot_be_changed(name):
    values, source = readers.read(path=str(CONFIGURATIONS / name))
    made = Workload.from_mapping(ENOUGH | values).read_from(source.overriding({"sequence_length"}))
    assert list(mutable(made)) == []


def test_a_list_that_a_workload_was_made_of_can_change_without_it():
    patterns, config = ["a"], {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    made = Workload(**ENOUGH, frozen=patterns, deepspeed=config)
    patterns.append("b")
    config["zero_optimization"]["stage"] = 3
    assert (made.frozen, made.deepspeed["zero_optimization"]["stage"], made.zero_stage) == (("a",), 2, 2)


def test_the_test_of_a_workload_finds_what_can_be_changed():
    held = GivenKeys({}, {"a": []}, source=Source("swift", "SWIFT", "job.sh", (["x"],)))
    assert list(mutable(held)) == ["workload.values", "workload.by_model", "workload.source.values[0]"]


def test_a_workload_that_knows_its_source_is_another_one_and_equal():
    plain = Workload(**ENOUGH, deepspeed=None, recipe="full")
    read = plain.read_from(Source("swift", "SWIFT", "job.sh", ()))
    assert (plain.source, read.source.file) == (None, "job.sh")
    assert read == plain and hash(read) == hash(plain) and read.filled_in == plain.filled_in
    assert read.replace(recipe="lora").source == read.fill(image_size=336).source == read.source


def test_a_workload_travels_to_another_process():
    made = Workload(**ENOUGH, zero_stage=2, data_parallel_size=8).fill(images_per_sample=2)
    again = pickle.loads(pickle.dumps(made))
    assert (again, again.filled_in, again.replace(recipe="full")) == (made, made.filled_in, made.replace(recipe="full"))


def test_a_workload_has_a_value_for_every_key():
    made = Workload(**ENOUGH)
    assert {name: getattr(made, name) for name in KEYS} == DEFAULTS | ENOUGH | {"engine": "torch"}


def test_a_keyword_that_no_workload_has_is_a_mistake_in_python():
    with pytest.raises(TypeError, match="unexpected keyword argument 'sequence'"):
        Workload(**ENOUGH, sequence=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'sequence'"):
        Workload(**ENOUGH).replace(sequence=3)


def test_no_frozen_object_is_changed_after_it_is_made():
    found = [(path.name, line.strip()) for package in PACKAGES for path in sorted(package.rglob("*.py"))
             for line in path.read_text().splitlines() if "object.__setattr__(" in line]
    assert [name for name, _ in found] == ["injection.py"]  # in its __post_init__
