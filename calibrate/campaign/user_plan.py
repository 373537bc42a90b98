"""Reads the jobs of a campaign from a file, such as the edited JSON of ``peakcast calibrate --plan-only --json``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from calibrate.campaign import design
from calibrate.campaign.design import ROLES, Job
from predictor.common.errors import InputError
from predictor.common.files import read_mapping
from predictor.common.suggestions import file_name, nearest, quoted

KEYS = ("id", "role", "group", "workload")
"""Keys of a job. Its ``id`` is ignored: it follows from the workload."""
CAMPAIGN_KEYS = ("gpu", "capacity_bytes", "profile")
"""Keys of a workload that are the same for all jobs of a campaign."""


def read(path: str | os.PathLike[str], *, emulated: bool = False) -> list[Job]:
    """The jobs of a file, in its order: ``{"jobs": [{"role", "group", "workload"}, …]}``.

    ``group`` is optional (default: ``listed``), and so is ``role`` (default: ``fit``). A model may be a file of
    :data:`calibrate.campaign.design.MODELS`, without ``.json``.

    Args:
        emulated: whether the jobs run on an emulated GPU.

    Raises:
        InputError: the file has no list of jobs, or a job is invalid; the message names the job.
    """
    jobs = read_mapping(path, "a list of jobs").get("jobs")
    if not isinstance(jobs, list) or not jobs:
        raise InputError(f'{file_name(path)}: has no list "jobs": peakcast calibrate --plan-only --json prints one')
    numbers: dict[str, int] = {}
    result = []
    for number, entry in enumerate(jobs, 1):
        where = f"{file_name(path)}: job {number}"
        try:
            job = _job(entry, emulated)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        if job.id in numbers:
            raise InputError(f"{where}: the same workload as job {numbers[job.id]}: leave one out")
        numbers[job.id] = number
        result.append(job)
    return result


def _job(entry: Any, emulated: bool) -> Job:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("workload"), Mapping):
        raise InputError(f"must be a mapping with a workload, not {quoted(entry, 100)}")
    for key in entry:
        if key not in KEYS:
            raise InputError(f"unknown key {quoted(key)}{nearest(key, KEYS)}")
    role, group, keys = entry.get("role", ROLES[0]), entry.get("group", "listed"), dict(entry["workload"])
    if role not in ROLES:
        raise InputError(f"role: must be one of {', '.join(ROLES)}, not {quoted(role)}")
    if not isinstance(group, str):
        raise InputError(f"group: must be text, not {quoted(group)}")
    if not isinstance(keys.get("model"), str):
        raise InputError("workload: model is not given")
    for key in CAMPAIGN_KEYS:
        if key in keys:
            raise InputError(f"workload: {key} is the same for all jobs: leave it out, and say --gpu")
    design.workload(keys)
    return Job(keys, role, group, emulated)
