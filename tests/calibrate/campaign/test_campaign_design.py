"""The choice of a campaign's jobs."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter

import numpy as np
import pytest

from calibrate.campaign import design
from calibrate.campaign.design import COMMUNICATORS, FITTED, LIFETIMES, SETTINGS, Job, campaign, workload
from calibrate.report.calibrate import minutes
from predictor.events.sizes import Shape
from predictor.jobs import dispatch
from predictor.model import models
from predictor.profile.job_traits import TRAITS
from predictor.workload.keys import KEYS

JOBS = campaign()
LISTED = (COMMUNICATORS, LIFETIMES, SETTINGS)
WORD_OF_DEPTH = re.compile("depth|layer|block_indexes|visual_indexes")


def of(role: str) -> list[Job]:
    return [job for job in JOBS if job.role == role]


def test_of_two_hundred_jobs_half_are_never_fitted():
    assert (len(of("fit")), len(of("holdout")), len(of("validation"))) == (95, 97, 6)


def test_every_job_is_there_once():
    assert len({job.id for job in JOBS}) == len(JOBS)


def test_an_id_is_of_the_workload_alone():
    keys = {"model": "llava-1.5-7b", "sequence_length": 1024}
    assert Job(keys, "fit", "a").id == Job(dict(reversed(keys.items())), "holdout", "b").id
    assert Job(keys, "fit", "a").id != Job(keys | {"sequence_length": 1025}, "fit", "a").id


def test_the_design_is_the_same_each_time():
    assert campaign() == JOBS


@pytest.mark.parametrize("job", [job for job in JOBS if job.group != SETTINGS], ids=lambda job: job.id)
def test_every_job_is_a_workload_with_room_for_its_images(job):
    made = workload(job.keys, gpu="h100-80gb", profile="none")
    config = models.find(made.model).document["vision_config"]
    tokens = made.images_per_sample * (config["image_size"] // config["patch_size"]) ** 2
    assert made.sequence_length > tokens


@pytest.mark.parametrize("group, level", [(group, level) for group, levels in FITTED.items() for level in levels if level],
                         ids=str)
def test_every_level_of_every_setting_is_fitted(group, level):
    assert any(level.items() <= job.keys.items() for job in of("fit"))


def test_the_fitted_jobs_tell_all_settings_apart():
    """As many independent columns as levels, less one for each setting but the first: a setting's levels add up to 1
    (buckets and plain PyTorch do so together)."""
    levels = [(group, level) for group, values in FITTED.items() for level in values]

    def has(job: Job, group: str, level) -> bool:
        own = {key for value in FITTED[group] for key in value}
        return {key: job.keys[key] for key in own if key in job.keys} == dict(level)

    jobs = [job for job in of("fit") if job.group not in LISTED]
    matrix = np.array([[has(job, group, level) for group, level in levels] for job in jobs], dtype=float)
    assert np.linalg.matrix_rank(matrix) == len(levels) - (len(FITTED) - 1)


def test_groups_have_equal_shares():
    counts = Counter(job.group for job in of("fit") if job.group not in LISTED)
    assert set(counts) == set(FITTED) and max(counts.values()) - min(counts.values()) <= 1


def shape(job: Job) -> Shape:
    return Shape(job.keys["per_device_train_batch_size"], job.keys["sequence_length"], job.keys.get("images_per_sample", 0))


def test_held_out_shapes_are_never_fitted():
    assert not {shape(job) for job in of("holdout")} & {shape(job) for job in of("fit")}


def traits(job: Job) -> set[tuple[str, str]]:
    """Its traits, but for the attention kernel, which only its formula knows."""
    request = dispatch.resolve(workload(job.keys, gpu="h100-80gb", profile="none"))
    return {(name, trait.text(request, None)) for name, trait in TRAITS.items() if name != "attention"}


def test_what_the_other_settings_bring_is_both_fitted_and_held_out():
    fitted, held_out = (set().union(*(traits(job) for job in JOBS if (job.role, job.group) == (role, SETTINGS)))
                        for role in ("fit", "holdout"))
    before = set().union(*(traits(job) for job in JOBS if job.group != SETTINGS))
    assert fitted - before == held_out - before and len(fitted - before) > 50


@pytest.mark.parametrize("role", ["fit", "holdout"])
def test_a_kernel_of_attention_that_the_other_settings_bring_is_both_fitted_and_held_out(role):
    jobs = [job for job in of(role) if job.group == SETTINGS]
    assert {job.keys["sdpa_backend"] for job in jobs if "sdpa_backend" in job.keys} == {"math"}


@pytest.mark.parametrize("role", ["fit", "holdout"])
def test_every_loop_that_a_workload_can_say_is_fitted_and_held_out(role):
    loops = {(job.keys.get("keep_outputs", "none"), job.keys.get("zero_grad", "after_step")) for job in of(role)}
    assert loops == set(itertools.product(KEYS["keep_outputs"].metadata["kind"].names, KEYS["zero_grad"].metadata["kind"].names))


def test_a_campaign_that_is_cut_short_has_jobs_of_both_kinds():
    assert Counter(job.role for job in JOBS[:15]) == {"fit": 10, "holdout": 5}


def test_the_quick_campaign_is_the_beginning_of_the_other():
    quick = campaign(quick=True)
    assert Counter(job.role for job in quick) == {"fit": 12, "holdout": 6}
    assert {job.id for job in quick} < {job.id for job in JOBS}


def test_without_an_emulated_gpu_no_job_needs_nccl():
    assert not [job for job in campaign(communicators=False) if job.keys.get("engine") == "ddp"]


def test_the_plan_of_an_emulated_gpu_is_as_long_as_the_shipped_campaigns_took_on_two_cores():
    assert minutes(campaign(emulated=True), 2) == pytest.approx(20.5, abs=1)


def test_a_job_is_the_same_for_a_real_and_an_emulated_gpu():
    assert [job.id for job in campaign(emulated=True)] == [job.id for job in JOBS]


def test_under_torchrun_every_job_has_as_many_ranks_as_there_are():
    assert {(job.keys["data_parallel_size"], "rank" in job.keys) for job in campaign(degree=16)} == {(16, False)}


def without_depth(document: object) -> object:
    """A configuration without the keys that count or list layers."""
    if not isinstance(document, dict):
        return document
    return {key: without_depth(value) for key, value in document.items() if not WORD_OF_DEPTH.search(key)}


@pytest.mark.parametrize("path", sorted(path for path in design.MODELS.glob("*.json") if path.stem[:8] != "grouped-"),
                         ids=lambda path: path.stem)
def test_shallow_models_are_the_known_ones_with_fewer_layers(path):
    name = re.sub(r"(-\d+){1,2}$", "", path.stem)
    assert without_depth(json.loads(path.read_text())) == without_depth(models.find(name).document)


@pytest.mark.parametrize("path", sorted(design.MODELS.glob("*.json")), ids=lambda path: path.stem)
def test_a_shallow_model_has_the_layers_that_its_name_says(path):
    config = models.find(str(path)).document
    text, vision = config.get("text_config", config), config.get("vision_config", {})
    depths = [text.get("num_hidden_layers") or text["n_layer"],
              *(vision[key] for key in ("depth", "num_hidden_layers") if key in vision)]
    assert path.stem.endswith("-" + "-".join(map(str, depths)))
