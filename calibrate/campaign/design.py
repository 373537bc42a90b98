"""Chooses the jobs of a calibration: few and shallow, so varied that a fit can separate the factors.

The bytes of a factor are nearly a product of terms: one for the model, one for the shape, one for the recipe, and so
on. Their logarithm is a sum, with one term for each level of each setting. So a job is a vector with a 1 for each
level that it has. The next job is always the candidate whose vector the earlier jobs determine least: the largest
``x' inv(sum of x x') x``. This is the greedy way to a D-optimal design (Fedorov, Theory of Optimal Experiments, 1972).
Settings take turns, and a setting goes through its levels turn by turn. So each setting is varied in an equal share of
the jobs. These jobs are its *group*, which a cross-validation may leave out.

Held-out jobs are drawn at random, also level by level. No fitted job has their shapes, nor some of their models.

The jobs of :data:`COMMUNICATORS`, :data:`LIFETIMES` and :data:`SETTINGS` are listed, because their keys go with few
others only.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.campaign import settings
from predictor.workload.workload import Workload

MODELS = Path(__file__).parent / "models"
"""Configurations of full width with few layers: NAME-LANGUAGE-VISION.json, with the number of layers of the language
model and of the vision tower, if there is one. NAME is a known name; "grouped" is a LLaVA of Qwen2-1.5B (grouped-query
attention) and SigLIP."""
ROLES = ("fit", "holdout", "validation")
COMMUNICATORS = "communicators"
"""Group of the jobs that create NCCL communicators, to measure their memory. They have no prediction."""

LIFETIMES = "lifetimes"
"""Group of the jobs whose loops keep outputs or gradients for longer than the reference loop."""

SETTINGS = "settings"
"""Group of the jobs with other engines, recipes, optimizers, precisions and models: :mod:`.settings`."""

FIT, HELD_OUT = 57, 64
QUICK_FIT, QUICK_HELD_OUT = 11, 6
"""Numbers of jobs, without those of :data:`COMMUNICATORS`, :data:`LIFETIMES` and :data:`SETTINGS`."""

SECONDS = {False: (8.0, 6.0, 32.0), True: (14.0, 7.5, 32.0)}
"""Expected seconds of a job with DeepSpeed, of one without, and of a full model, by whether the GPU is emulated. Real
GPU: not measured on one; taken from one job at a time on an emulated GPU, 6.2 to 8.8 s and 5.7 s. Emulated GPU:
seconds of one core, from the shipped campaigns, which ran two jobs at a time on two cores."""
CANDIDATES = 6_000
MOST_TOKENS, MOST_SCORES = 1 << 14, 1 << 25
"""Largest tokens of a micro-batch, and largest tokens times sequence length: eager attention keeps that many scores per
head."""
RIDGE = 1e-3  # makes the information matrix invertible before the first jobs; each level adds 1


def _zero(**section: Any) -> dict[str, Any]:
    return {"deepspeed": {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, **section}}}


def _shapes(*shapes: tuple[int, int, int]) -> tuple[dict[str, int], ...]:
    return tuple({"per_device_train_batch_size": batch, "sequence_length": sequence, "images_per_sample": images}
                 for batch, sequence, images in shapes)


Levels = Mapping[str, tuple[Mapping[str, Any], ...]]

FITTED: Levels = {
    "model": tuple({"model": name} for name in (
        "llava-1.5-7b-2-2", "llava-1.5-13b-2-2", "grouped-2-2", "llava-1.5-7b-4-2", "llava-1.5-7b-2-4",
        "grouped-4-3")),
    "recipe": tuple({"recipe": recipe} for recipe in ("finetune", "pretrain", "full")),
    "shape": _shapes((4, 1024, 1), (1, 4096, 2), (16, 768, 1), (2, 2048, 1), (8, 1024, 1), (1, 1024, 1),
                     (4, 2048, 2), (2, 3072, 4), (16, 1024, 1), (8, 2048, 1)),
    "checkpointing": ({}, {"gradient_checkpointing": False}),
    "attention": ({}, {"sdpa_backend": "flash"}, {"sdpa_backend": "efficient"}, {"attn_implementation": "eager"}),
    "optimizer": tuple({"optim": name} for name in ("adamw_torch_fused", "adamw_torch", "adamw_torch_forloop")),
    "degree": ({"data_parallel_size": 8, "rank": 7}, {"engine": "torch"}, {"data_parallel_size": 2, "rank": 0},
               {"data_parallel_size": 1, "rank": 0}, {"data_parallel_size": 4, "rank": 3},
               {"data_parallel_size": 8, "rank": 0}, {"data_parallel_size": 2, "rank": 1},
               {"data_parallel_size": 4, "rank": 0}),
    "buckets": ({"zero_stage": 2}, _zero(overlap_comm=True, reduce_bucket_size=500_000_000),
                _zero(overlap_comm=False, reduce_bucket_size=5_000_000), _zero(overlap_comm=True,
                                                                              reduce_bucket_size=50_000_000),
                _zero(overlap_comm=False, reduce_bucket_size=500_000_000)),
    "loop": ({}, {"gradient_accumulation_steps": 2}, {"padding": "right"}),
}
"""Setting -> its levels, as keys of a workload, the most informative ones first. ``engine: torch`` has no buckets."""

UNSEEN: Levels = {
    **FITTED,
    "model": FITTED["model"] + tuple({"model": name} for name in (
        "llava-1.5-7b-3-3", "llava-1.5-13b-3-4", "grouped-3-4")),
    "shape": _shapes((3, 1333, 1), (6, 1024, 1), (2, 1801, 2), (12, 900, 1), (1, 2049, 1), (5, 1536, 1),
                     (1, 3500, 3), (7, 2048, 1)),
    "buckets": FITTED["buckets"] + (_zero(overlap_comm=True, reduce_bucket_size=20_000_000),),
}
"""The levels of held-out jobs."""

LIFETIME_MODELS = {"fit": ("llava-1.5-7b-2-2", "grouped-2-2", _shapes((4, 1024, 1))[0]),
                   "holdout": ("llava-1.5-7b-3-3", "grouped-3-4", _shapes((3, 1153, 1))[0])}
"""Role -> the models of the jobs of :data:`LIFETIMES` with DeepSpeed and without, and their shape."""

FULL_MODEL_JOBS: tuple[dict[str, Any], ...] = tuple(
    {"model": "llava-1.5-7b", "images_per_sample": 1} | keys for keys in (
    {"per_device_train_batch_size": 16, "sequence_length": 1024, "zero_stage": 2, "data_parallel_size": 8, "rank": 0},
    {"per_device_train_batch_size": 8, "sequence_length": 2048, "zero_stage": 2, "data_parallel_size": 8, "rank": 7,
     "recipe": "pretrain"},
    {"per_device_train_batch_size": 8, "sequence_length": 2048, "data_parallel_size": 8, "rank": 7,
     **_zero(overlap_comm=True, reduce_bucket_size=500_000_000)},
    {"per_device_train_batch_size": 4, "sequence_length": 1024, "zero_stage": 2, "data_parallel_size": 8, "rank": 0,
     "gradient_checkpointing": False},
    {"per_device_train_batch_size": 16, "sequence_length": 1024, "zero_stage": 2, "data_parallel_size": 4, "rank": 3,
     "recipe": "pretrain", "optim": "adamw_torch"},
    {"per_device_train_batch_size": 4, "sequence_length": 1024, "zero_stage": 2, "data_parallel_size": 8, "rank": 7,
     "recipe": "full", "sdpa_backend": "flash"},
))
"""Jobs of full models, which validate the profile."""


@dataclass(frozen=True)
class Job:
    """One job of a campaign.

    Attributes:
        keys: of the workload; ``model`` is a known name or a file of :data:`MODELS` without ``.json``.
        role: ``fit``, ``holdout`` (for intervals and their coverage) or ``validation`` (full models).
        group: the setting that the job varies.
        emulated: whether the job runs on an emulated GPU, where it takes another time.
    """

    keys: Mapping[str, Any]
    role: str
    group: str
    emulated: bool = False

    @property
    def id(self) -> str:
        """A hash of the workload: equal in all campaigns."""
        return hashlib.sha256(json.dumps(dict(self.keys), sort_keys=True).encode()).hexdigest()[:12]


def seconds(job: Job) -> float:
    """Expected duration in seconds. Creating the model and importing libraries take most of it."""
    with_deepspeed, without, whole = SECONDS[job.emulated]
    if job.role == "validation":
        return whole
    return without if "engine" in job.keys else with_deepspeed


def workload(keys: Mapping[str, Any], **more: Any) -> Workload:
    """The workload of a job's keys, with the path of its model.

    Raises:
        InputError: the keys are no valid workload.
    """
    path = MODELS / f"{keys['model']}.json"
    return Workload.from_mapping({**keys, **more, "model": str(path) if path.is_file() else keys["model"]})


def campaign(*, quick: bool = False, communicators: bool = True, degree: int | None = None,
             emulated: bool = False) -> list[Job]:
    """All jobs, the most informative first: two fitted jobs, then one held-out job, and so on; then the remaining
    held-out jobs, then other loops and settings, then full models. The jobs of a quick campaign are a subset of the
    full campaign's.

    Args:
        communicators: whether to include the jobs that create NCCL communicators without torchrun.
        degree: torchrun's world size: all jobs then have this data-parallel degree and no rank, as every rank runs.
        emulated: whether the jobs run on an emulated GPU.
    """
    fit = _fitted(QUICK_FIT if quick else FIT, degree)
    if communicators and degree is None:
        for at, job in enumerate(_communicators()[:1 if quick else None]):
            fit.insert(9 * at + 4, job)
    held_out = _held_out(QUICK_HELD_OUT if quick else HELD_OUT, {job.id for job in fit}, degree)
    jobs: list[Job] = []
    while fit or held_out:
        jobs += [*fit[:2], *held_out[:1]]
        fit, held_out = fit[2:], held_out[1:]
    if not quick:
        jobs += [Job(keys, role, LIFETIMES) for role in ("fit", "holdout") for keys in _lifetimes(role, degree)]
        jobs += [Job(keys, role, SETTINGS) for role, listed in settings.JOBS.items()
                 for keys in _runnable(listed, communicators, degree)]
        jobs += [Job(keys, "validation", "whole models") for keys in _at_degree(FULL_MODEL_JOBS, degree)]
    return [replace(job, emulated=emulated) for job in jobs]


def _fitted(count: int, degree: int | None) -> list[Job]:
    candidates = [*_candidates(_levels(FITTED, degree), random.Random(1))]
    vectors = np.array([vector for _, vector in candidates])
    information = RIDGE * np.eye(vectors.shape[1])
    jobs: dict[str, Job] = {}
    for group, rows in _turns(_levels(FITTED, degree), vectors):
        if len(jobs) == count:
            break
        novelty = np.einsum("ij,jk,ik->i", vectors[rows], np.linalg.inv(information), vectors[rows])
        # rounded, so that the last bits of a sum do not change the design
        for row in rows[np.argsort(-np.round(novelty, 6), kind="stable")]:
            job = Job(candidates[row][0], "fit", group)
            if job.id not in jobs:
                jobs[job.id] = job
                information += np.outer(vectors[row], vectors[row])
                break
    return list(jobs.values())


def _held_out(count: int, taken: set[str], degree: int | None) -> list[Job]:
    candidates = [*_candidates(_levels(UNSEEN, degree), random.Random(2))]
    vectors = np.array([vector for _, vector in candidates])
    jobs: dict[str, Job] = {}
    for group, rows in _turns(_levels(UNSEEN, degree), vectors):
        if len(jobs) == count:
            break
        for row in rows:  # candidates are in random order
            job = Job(candidates[row][0], "holdout", group)
            if job.id not in jobs and job.id not in taken:
                jobs[job.id] = job
                break
    return list(jobs.values())


def _communicators() -> list[Job]:
    return [Job({"model": "grouped-2-2", "per_device_train_batch_size": 1, "sequence_length": 1024,
                 "images_per_sample": 1, "engine": "ddp", "data_parallel_size": size, "rank": 0}, "fit", COMMUNICATORS)
            for size in (8, 2, 4)]


def _lifetimes(role: str, degree: int | None) -> list[Mapping[str, Any]]:
    """Loops that keep outputs, gradients or both. DeepSpeed frees gradients itself; torchrun runs no plain PyTorch."""
    keeping: list[Mapping[str, Any]] = [{"keep_outputs": keep} for keep in ("backward", "next_forward")]
    freeing = [{"zero_grad": place} for place in ("before_forward", "before_backward")]
    zero2, torch, shape = LIFETIME_MODELS[role]
    sharded = [{"model": zero2, **shape, "zero_stage": 2, "data_parallel_size": 8, "rank": 0, **keys}
               for keys in keeping]
    plain = [{"model": torch, **shape, "engine": "torch", **keys}
             for keys in (*keeping, *freeing, *({**keep, **free} for keep in keeping for free in freeing))]
    return _at_degree([*sharded, *([] if degree else plain)], degree)


def _runnable(jobs: Sequence[Mapping[str, Any]], communicators: bool, degree: int | None) -> list[Mapping[str, Any]]:
    """The jobs that can run here: under torchrun no plain PyTorch, otherwise DDP only with NCCL communicators."""
    impossible = "torch" if degree is not None else None if communicators else "ddp"
    return _at_degree([keys for keys in jobs if keys.get("engine", "deepspeed") != impossible], degree)


def _levels(levels: Levels, degree: int | None) -> Levels:
    return levels if degree is None else {**levels, "degree": ({"data_parallel_size": degree},)}


def _at_degree(jobs: Sequence[Mapping[str, Any]], degree: int | None) -> list[Mapping[str, Any]]:
    if degree is None:
        return list(jobs)
    return [{key: value for key, value in keys.items() if key != "rank"} | {"data_parallel_size": degree}
            for keys in jobs]


def _turns(levels: Levels, vectors: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yields, endlessly, a setting and the rows of the candidates that have its next level."""
    first = dict(zip(levels, np.cumsum([0, *(len(values) for values in levels.values())])))
    turn = 0
    while True:
        for group, values in levels.items():
            yield group, np.flatnonzero(vectors[:, first[group] + turn % len(values)])
        turn += 1


def _candidates(levels: Levels, draw: random.Random) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """Random possible jobs: their keys, and a 0 or 1 for each level."""
    for _ in range(CANDIDATES):
        chosen: dict[str, int | None] = {group: int(draw.random() * len(values)) for group, values in levels.items()}
        degree = chosen["degree"]
        assert degree is not None
        if levels["degree"][degree].get("engine") == "torch":
            chosen["buckets"] = None
        keys = {key: value for group, level in chosen.items() if level is not None
                for key, value in levels[group][level].items()}
        if _possible(keys):
            yield keys, [int(chosen[group] == level) for group, values in levels.items()
                         for level in range(len(values))]


def _possible(keys: Mapping[str, Any]) -> bool:
    """Whether the images leave room for text, and the micro-batch is not too large."""
    batch, sequence = keys["per_device_train_batch_size"], keys["sequence_length"]
    tokens_per_image = 729 if keys["model"].startswith("grouped") else 576
    scores = batch * sequence ** 2 if keys.get("attn_implementation") == "eager" else 0
    return (sequence > keys["images_per_sample"] * tokens_per_image and batch * sequence <= MOST_TOKENS
            and scores <= MOST_SCORES)
