"""Which jobs a calibration measures: few, shallow, and chosen so that the factors can be told apart.

The bytes of a factor are nearly products: of what the model, the shape, the recipe, the degree and so on each
contribute. Their logarithms are sums, with one term for each level of each setting. So jobs are described by a
vector with a 1 for each level that they have, and the next job is always the one whose vector the jobs before it
say least about: the largest ``x' inv(sum of x x') x``, which is the greedy way to a D-optimal design (Fedorov,
Theory of Optimal Experiments, 1972). Settings take turns, and within its turns a setting goes through its levels, so
each is varied on purpose in an equal share of the jobs: its *group*, which a cross-validation may leave out.

Held-out jobs are drawn at random, also level by level, but with shapes and models that no fitted job has.
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

from predictor.workload.workload import Workload

MODELS = Path(__file__).parent / "models"
"""Configurations of full width with few layers: NAME-LANGUAGE-VISION.json, after LLaVA-1.5-7B and 13B and, "grouped",
a LLaVA with Qwen2-1.5B (grouped heads) and SigLIP inside."""
ROLES = ("fit", "holdout", "validation")
COMMUNICATORS = "communicators"
"""Group of the jobs with a process group of NCCL's, from which its memory is known; they are not predicted."""

FIT, HELD_OUT = 57, 64
QUICK_FIT, QUICK_HELD_OUT = 11, 6
"""How many jobs, without those of :data:`COMMUNICATORS`."""

SECONDS = {False: (8.0, 6.0, 32.0), True: (14.0, 7.5, 32.0)}
"""Expected of a job with DeepSpeed, one without, and a full model: on a real GPU (not measured there: what one job at a
time took on the host of an emulated one, 6.2 to 8.8 s and 5.7 s); of a core, on an emulated one (two jobs at a time on
two cores, as the jobs of the shipped campaigns took)."""
CANDIDATES = 6_000
MOST_TOKENS, MOST_SCORES = 1 << 14, 1 << 25
"""Of a micro batch: tokens, and tokens times sequence length (eager attention keeps as many scores a head)."""
RIDGE = 1e-3  # so that the first jobs can be compared; each level counts 1


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
"""Setting -> its levels, as keys of a workload, the most telling ones first. ``engine: torch`` has no buckets."""

UNSEEN: Levels = {
    **FITTED,
    "model": FITTED["model"] + tuple({"model": name} for name in (
        "llava-1.5-7b-3-3", "llava-1.5-13b-3-4", "grouped-3-4")),
    "shape": _shapes((3, 1333, 1), (6, 1024, 1), (2, 1801, 2), (12, 900, 1), (1, 2049, 1), (5, 1536, 1),
                     (1, 3500, 3), (7, 2048, 1)),
    "buckets": FITTED["buckets"] + (_zero(overlap_comm=True, reduce_bucket_size=20_000_000),),
}
"""Levels of held-out jobs."""

WHOLE: tuple[dict[str, Any], ...] = tuple({"model": "llava-1.5-7b", "images_per_sample": 1} | keys for keys in (
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
"""Full models, to judge the profile by."""


@dataclass(frozen=True)
class Job:
    """One job of a campaign.

    Attributes:
        keys: of a workload; ``model`` is a known name or a file of :data:`MODELS` without ``.json``.
        role: ``fit``, ``holdout`` (intervals and cross-validation) or ``validation`` (full models).
        group: the setting that it varies.
        emulated: whether it is for an emulated GPU, where it takes another time.
    """

    keys: Mapping[str, Any]
    role: str
    group: str
    emulated: bool = False

    @property
    def id(self) -> str:
        """Hash of the workload: the same in every campaign that has it."""
        return hashlib.sha256(json.dumps(dict(self.keys), sort_keys=True).encode()).hexdigest()[:12]


def seconds(job: Job) -> float:
    """Expected duration: model and library start take most."""
    with_deepspeed, without, whole = SECONDS[job.emulated]
    if job.role == "validation":
        return whole
    return without if "engine" in job.keys else with_deepspeed


def workload(keys: Mapping[str, Any], **more: Any) -> Workload:
    """The workload of a job's keys, its model found; InputError if they make none."""
    path = MODELS / f"{keys['model']}.json"
    return Workload.from_mapping({**keys, **more, "model": str(path) if path.is_file() else keys["model"]})


def campaign(*, quick: bool = False, communicators: bool = True, degree: int | None = None,
             emulated: bool = False) -> list[Job]:
    """All jobs, in order of what they teach: two to fit for each held-out one, then the other held-out ones, then
    full models. The quick campaign's jobs are among the others'.

    Args:
        communicators: with the jobs whose process group is NCCL's.
        degree: only with this data-parallel degree, ranks left out: every rank runs (torchrun).
        emulated: they are for an emulated GPU.
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
    jobs += [] if quick else [Job(keys, "validation", "whole models") for keys in _at_degree(WHOLE, degree)]
    return [replace(job, emulated=emulated) for job in jobs]


def _fitted(count: int, degree: int | None) -> list[Job]:
    candidates = [*_candidates(_levels(FITTED, degree), random.Random(1))]
    vectors = np.array([vector for _, vector in candidates])
    information = RIDGE * np.eye(vectors.shape[1])
    jobs: dict[str, Job] = {}
    for group, rows in _turns(_levels(FITTED, degree), vectors):
        if len(jobs) == count:
            break
        told = np.einsum("ij,jk,ik->i", vectors[rows], np.linalg.inv(information), vectors[rows])
        # rounded, so that the last bits of a sum cannot change the design
        for row in rows[np.argsort(-np.round(told, 6), kind="stable")]:
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


def _levels(levels: Levels, degree: int | None) -> Levels:
    return levels if degree is None else {**levels, "degree": ({"data_parallel_size": degree},)}


def _at_degree(jobs: Sequence[Mapping[str, Any]], degree: int | None) -> list[Mapping[str, Any]]:
    if degree is None:
        return list(jobs)
    return [{key: value for key, value in keys.items() if key != "rank"} | {"data_parallel_size": degree}
            for keys in jobs]


def _turns(levels: Levels, vectors: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Without end: a setting, and the candidates (rows) that have the level whose turn it is."""
    first = dict(zip(levels, np.cumsum([0, *(len(values) for values in levels.values())])))
    turn = 0
    while True:
        for group, values in levels.items():
            yield group, np.flatnonzero(vectors[:, first[group] + turn % len(values)])
        turn += 1


def _candidates(levels: Levels, draw: random.Random) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """Random jobs that make sense: the keys, and which levels they have (0 or 1 for each)."""
    for _ in range(CANDIDATES):
        chosen = {group: int(draw.random() * len(values)) for group, values in levels.items()}
        if levels["degree"][chosen["degree"]].get("engine") == "torch":
            chosen["buckets"] = None
        keys = {key: value for group, level in chosen.items() if level is not None
                for key, value in levels[group][level].items()}
        if _possible(keys):
            yield keys, [int(chosen[group] == level) for group, values in levels.items()
                         for level in range(len(values))]


def _possible(keys: Mapping[str, Any]) -> bool:
    batch, sequence = keys["per_device_train_batch_size"], keys["sequence_length"]
    tokens_per_image = 729 if keys["model"].startswith("grouped") else 576
    scores = batch * sequence ** 2 if keys.get("attn_implementation") == "eager" else 0
    return (sequence > keys["images_per_sample"] * tokens_per_image and batch * sequence <= MOST_TOKENS
            and scores <= MOST_SCORES)
