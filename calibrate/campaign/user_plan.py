"""A campaign that somebody wrote: the JSON that ``peakcast calibrate --plan-only --json`` prints, edited or not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from calibrate.campaign import design
from calibrate.campaign.design import ROLES, Job
from predictor.common.errors import InputError
from predictor.common.files import read_mapping
from predictor.common.suggestions import named, nearest, show

KEYS = ("id", "role", "group", "workload")
"""Of a job; its ``id`` is not read, it follows from the workload."""
OF_THE_DEVICE = ("gpu", "capacity_bytes", "profile")
"""Keys of a workload that the campaign says for all jobs."""


def read(path: str | os.PathLike[str], *, emulated: bool = False) -> list[Job]:
    """The jobs of a file, in its order: ``{"jobs": [{"role", "group", "workload"}, …]}``.

    ``group`` may be left out (``listed``), ``role`` too (``fit``). A workload's model may be a file of
    :data:`calibrate.campaign.design.MODELS`, without ``.json``.

    Args:
        emulated: they are for an emulated GPU.

    Raises:
        InputError: not such a file, or a job that is none; the line says which.
    """
    jobs = read_mapping(path, "a list of jobs").get("jobs")
    if not isinstance(jobs, list) or not jobs:
        raise InputError(f'{named(path)}: has no list "jobs": peakcast calibrate --plan-only --json prints one')
    found: dict[str, int] = {}
    result = []
    for number, entry in enumerate(jobs, 1):
        where = f"{named(path)}: job {number}"
        try:
            job = _job(entry, emulated)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        if job.id in found:
            raise InputError(f"{where}: the same workload as job {found[job.id]}: leave one out")
        found[job.id] = number
        result.append(job)
    return result


def _job(entry: Any, emulated: bool) -> Job:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("workload"), Mapping):
        raise InputError(f"must be a mapping with a workload, not {show(entry, 100)}")
    for key in entry:
        if key not in KEYS:
            raise InputError(f"unknown key {show(key)}{nearest(key, KEYS)}")
    role, group, keys = entry.get("role", ROLES[0]), entry.get("group", "listed"), dict(entry["workload"])
    if role not in ROLES:
        raise InputError(f"role: must be one of {', '.join(ROLES)}, not {show(role)}")
    if not isinstance(group, str):
        raise InputError(f"group: must be text, not {show(group)}")
    if not isinstance(keys.get("model"), str):
        raise InputError("workload: model is not given")
    for key in OF_THE_DEVICE:
        if key in keys:
            raise InputError(f"workload: {key} is the same for all jobs: leave it out, and say --gpu")
    design.workload(keys)
    return Job(keys, role, group, emulated)
