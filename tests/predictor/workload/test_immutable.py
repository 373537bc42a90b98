"""A workload is complete and never changes; keys as the user gave them have a type of their own."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from predictor.workload.given_keys import GivenKeys
from predictor.workload.keys import DEFAULTS, KEYS
from predictor.workload.value_sources import Source
from predictor.workload.workload import Workload

ENOUGH = {"model": "llava-1.5-7b", "sequence_length": 1024}
PACKAGES = [Path(__file__).parents[3] / package for package in ("predictor", "calibrate")]


def test_what_was_given_holds_no_other_key():
    assert GivenKeys.read(ENOUGH | {"recipe": None, "engine": "torch"}).values == ENOUGH | {"engine": "torch"}


@pytest.mark.parametrize("name", ["recipe", "filled_in", "given", "source", "something_new"])
def test_nothing_of_a_workload_can_be_set(name):
    with pytest.raises(FrozenInstanceError):
        setattr(Workload(**ENOUGH), name, None)


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
