"""What each part of a job can change, and so which intervals it widens."""

from __future__ import annotations

import pytest

from predictor.jobs import dispatch
from predictor.profile.job_traits import COUNTERS, TRAITS
from predictor.profile.reach import FREE_MEMORY, PACKAGES, versions_of
from predictor.workload.keys import KEYS
from predictor.workload.workload import Workload

BLOCKS = ("allocated", "reserved", "device")
OLD_DEEPSPEED = {"deepspeed": "0.17.6"}


def workload(**changes) -> Workload:
    return Workload(**{"model": "llava-1.5-7b", "sequence_length": 1024, "gpu": "h100-80gb", "profile": "emulated"} | changes)


def widened(**changes) -> list[str]:
    """The counters whose intervals are wider than those of a job that the profile covers."""
    profile = dispatch.prepare(workload(**changes)).profile
    return [counter for counter in COUNTERS if profile.times(counter)]


@pytest.mark.parametrize("changes, expected", [
    ({}, ()),
    ({"allocator_conf": "backend:native,release_lock_on_cudamalloc:True"}, ()),
    ({"allocator_conf": "garbage_collection_threshold:0.8"}, ()),  # acts only below a memory fraction
    ({"allocator_conf": "max_non_split_rounding_mb:30"}, ()),  # acts only with max_split_size_mb
    ({"allocator_conf": "max_split_size_mb:4096"}, BLOCKS),
    ({"allocator_conf": "max_split_size_mb:64", "zero_stage": 2}, BLOCKS),
    ({"versions": OLD_DEEPSPEED}, ()),
    ({"versions": OLD_DEEPSPEED, "engine": "ddp", "data_parallel_size": 2}, ()),
    ({"versions": OLD_DEEPSPEED, "zero_stage": 2}, COUNTERS),
    ({"versions": {"peft": "0.17.0", "bitsandbytes": "0.47.0"}}, ()),
    ({"optim": "rmsprop"}, COUNTERS),
], ids=str)
def test_what_cannot_change_a_counter_leaves_its_interval(changes, expected):
    assert widened(**changes) == list(expected)


@pytest.mark.parametrize("model, changes, decides", [
    ("llava-1.5-7b", {"zero_stage": 2}, False),  # 14 GB: room for any segments and a flat copy
    ("llava-1.5-13b", {"zero_stage": 2}, True),
    ("llava-1.5-13b", {"zero_stage": 1}, True),
    ("llava-1.5-13b", {"zero_stage": 2, "versions": OLD_DEEPSPEED}, False),  # flattens on the host in any case
    ("llava-1.5-13b", {"engine": "torch"}, False),
], ids=str)
def test_allocator_settings_can_change_requests_where_deepspeed_flattens_by_free_memory(model, changes, decides):
    job = dispatch.prepare(workload(model=model, allocator_conf="max_split_size_mb:64", **changes))
    assert (FREE_MEMORY in job.profile.outside.values()) == decides
    requested = [way for way in job.profile.ways("requested") if way.startswith("allocator_conf")]
    assert bool(requested) == decides


def test_every_trait_says_why_it_changes_its_counters():
    assert all(trait.reason and trait.counters for trait in TRAITS.values())
    assert all(set(trait.counters) <= set(COUNTERS) for trait in TRAITS.values())


def test_every_package_of_versions_says_who_runs_it():
    accepted = KEYS["versions"].metadata["kind"].kinds
    assert set(PACKAGES) == set(accepted)


def test_a_job_runs_the_packages_that_its_keys_ask_for():
    asked = workload(versions={"peft": "0.17.0", "bitsandbytes": "0.47.0"})
    assert versions_of(asked).keys() == {"torch", "transformers"}
    assert versions_of(asked.replace(recipe="lora")).keys() == {"torch", "transformers", "peft"}
    assert versions_of(asked.replace(optim="adamw_8bit")).keys() == {"torch", "transformers", "bitsandbytes"}
