"""The choice of a campaign's jobs."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pytest

from calibrate.campaign import design
from calibrate.campaign.design import COMMUNICATORS, FITTED, LIFETIMES, Job, campaign, workload
from calibrate.report.calibrate import minutes
from predictor.events.sizes import Shape
from predictor.model import models
from predictor.workload.keys import KEYS

JOBS = campaign()


def of(role: str) -> list[Job]:
    return [job for job in JOBS if job.role == role]


def test_there_are_seventy_to_fit_and_nearly_as_many_that_are_never_fitted():
    assert (len(of("fit")), len(of("holdout")), len(of("validation"))) == (70, 64, 6)


def test_every_job_is_there_once():
    assert len({job.id for job in JOBS}) == len(JOBS)


def test_an_id_is_of_the_workload_alone():
    keys = {"model": "llava-1.5-7b", "sequence_length": 1024}
    assert Job(keys, "fit", "a").id == Job(dict(reversed(keys.items())), "holdout", "b").id
    assert Job(keys, "fit", "a").id != Job(keys | {"sequence_length": 1025}, "fit", "a").id


def test_the_design_is_the_same_each_time():
    assert campaign() == JOBS


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.id)
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

    jobs = [job for job in of("fit") if job.group not in (COMMUNICATORS, LIFETIMES)]
    matrix = np.array([[has(job, group, level) for group, level in levels] for job in jobs], dtype=float)
    assert np.linalg.matrix_rank(matrix) == len(levels) - (len(FITTED) - 1)


def test_groups_have_equal_shares():
    counts = Counter(job.group for job in of("fit") if job.group not in (COMMUNICATORS, LIFETIMES))
    assert set(counts) == set(FITTED) and max(counts.values()) - min(counts.values()) <= 1


def shape(job: Job) -> Shape:
    return Shape(job.keys["per_device_train_batch_size"], job.keys["sequence_length"], job.keys["images_per_sample"])


def test_held_out_shapes_are_never_fitted():
    assert not {shape(job) for job in of("holdout")} & {shape(job) for job in of("fit")}


def test_every_loop_that_a_workload_can_say_is_fitted():
    loops = {(job.keys.get("keep_outputs", "none"), job.keys.get("zero_grad", "after_step")) for job in of("fit")}
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
    assert minutes(campaign(emulated=True), 2) == pytest.approx(15.5, abs=1)


def test_a_job_is_the_same_for_a_real_and_an_emulated_gpu():
    assert [job.id for job in campaign(emulated=True)] == [job.id for job in JOBS]


def test_under_torchrun_every_job_has_as_many_ranks_as_there_are():
    assert {(job.keys["data_parallel_size"], "rank" in job.keys) for job in campaign(degree=16)} == {(16, False)}


@pytest.mark.parametrize("path", sorted(design.MODELS.glob("llava-*.json")), ids=lambda path: path.stem)
def test_shallow_models_are_the_known_ones_with_fewer_layers(path):
    name, language, vision = path.stem.rsplit("-", 2)
    whole = models.find(name).document
    whole["text_config"]["num_hidden_layers"], whole["vision_config"]["num_hidden_layers"] = int(language), int(vision)
    assert json.loads(path.read_text()) == whole
