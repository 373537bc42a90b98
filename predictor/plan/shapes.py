"""The shapes of a setting: micro batches, micro-steps and sequence lengths that agree with what the user fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from predictor.common.errors import InputError
from predictor.formula import learned
from predictor.jobs.training_job import Job
from predictor.plan.maxima import most_batch
from predictor.plan.search import Candidate, Wanted
from predictor.plan.setting import BATCH, LENGTH, STEPS
from predictor.plan.space import SPLIT
from predictor.workload.deepspeed_settings import BATCH_KEYS, SAME_AS

LONGEST, LENGTH_STEP = 131_072, 64
"""Tokens; the longest sequence that is tried, and the step between sequence lengths, unless the user sets it."""


def splits(fixed: Mapping[str, Any], wanted: Wanted) -> bool:
    """Whether a micro batch that the user fixed may be split into smaller ones, which are accumulated.

    A DeepSpeed config that has the number of one of them fixes both.
    """
    config = fixed.get("deepspeed") or {}
    free = all(config.get(theirs, "auto") == "auto" for theirs, ours in SAME_AS.items() if ours in BATCH_KEYS)
    return BATCH in fixed and free and wanted.maximize == "cost" and SPLIT not in wanted.keep


def candidates(fixed: Mapping[str, Any], job: Job, wanted: Wanted, label: Callable[[str], str],
               degree: int, length: int | None) -> list[Candidate]:
    """Every shape that agrees with the keys that the user fixed.

    Args:
        degree: number of data-parallel replicas.
        length: tokens of a sample, unless the longest are sought.

    Raises:
        InputError: a fixed key contradicts the goal of the search.
    """
    sought = {"batch": BATCH, "sequence": LENGTH}.get(wanted.maximize)
    if sought is not None and sought in fixed:
        raise InputError(f"maximize {wanted.maximize}: {label(sought)} is given, too: leave it out")
    lengths = _lengths(job) if wanted.maximize == "sequence" else (length,)
    return [Candidate(size, steps, tokens) for size, steps in _steps(fixed, job, wanted, degree, length)
            for tokens in lengths]


def _lengths(job: Job) -> Sequence[int]:
    """The sequence lengths that are tried when the longest is sought: all that have room for the pictures."""
    assert job.workload.images_per_sample is not None  # a prepared job has it
    facts = job.formula.facts
    room = facts.room(job.workload.images_per_sample)
    return range(room - room % LENGTH_STEP + LENGTH_STEP, min(LONGEST, facts.positions or LONGEST) + 1, LENGTH_STEP)


def _steps(fixed: Mapping[str, Any], job: Job, wanted: Wanted, degree: int, length: int | None
           ) -> list[tuple[int, int]]:
    """Each micro batch with its micro-steps. A fixed micro batch that is split keeps the samples of its step.

    Raises:
        InputError: the samples of a step cannot be shared as the fixed keys ask.
    """
    batch, steps, total = fixed.get(BATCH), fixed.get(STEPS), wanted.global_batch_size
    if wanted.maximize == "sequence":
        batch = batch or 1
    sizes = _sizes(batch, splits(fixed, wanted), job, length)
    if total is None:
        return [(size, (batch or size) * (steps or 1) // size) for size in sizes]
    shapes = [(size, total // (size * degree)) for size in sizes if total % ((batch or size) * degree) == 0]
    if steps:
        shapes = [(size, count) for size, count in shapes if size * count == (batch or size) * steps]
    if not shapes:
        product = " x ".join(str(part) for part in (batch, steps) if part)
        raise InputError(f"global batch size {total}: is not a multiple of data_parallel_size {degree}"
                         f"{f' x {product}' if product else ''}: give one that is, or leave the others out")
    return shapes


def _sizes(batch: int | None, splits_batch: bool, job: Job, length: int | None) -> Sequence[int]:
    """The micro batches that are tried: of a fixed one that may be split, its divisors."""
    fewest = job.lowest().batch if learned.is_learned_file(job.workload.model) else 1
    if batch is None:
        return range(fewest, most_batch(length) + 1)
    return [size for size in range(fewest, batch + 1) if batch % size == 0] if splits_batch else (batch,)
