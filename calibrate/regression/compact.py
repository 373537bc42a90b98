"""The compact rows of the checks ``emulated`` and ``verdicts``, among others: what their ``job`` means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.common.errors import InputError
from predictor.common.suggestions import show, version_text
from predictor.workload.workload import Workload

MODELS = Path(__file__).parent / "models"
"""Configurations under names of their own. ``grouped``: a LLaVA with Qwen2-1.5B (grouped heads) and SigLIP inside.
``shallow``: LLaVA-1.5-7B with 4 of its 32 layers, 1.4 billion parameters."""
SHALLOW = Path(__file__).parents[1] / "campaign" / "models"
"""A campaign's models go by their names too."""
GPU = "h100-80gb"
"""Of a row whose job names none."""
PLENTY_BYTES = 400 << 30
"""Capacity of the emulated GPU of those rows, so that a peak above 80 GB can be measured too."""
SCHEMA_VERSION = 1
"""Of the rows; one without it has the form of version 1."""


def row(job: Mapping[str, Any], found: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A row as checks write it: its version, what it is of and what was found."""
    return {"schema_version": SCHEMA_VERSION, **more, "job": dict(job), **found}


def check_version(document: Mapping[str, Any]) -> None:
    """That this release knows the row's form.

    Raises:
        InputError: another ``schema_version``.
    """
    version = document.get("schema_version", SCHEMA_VERSION)
    if type(version) is not int or version != SCHEMA_VERSION:
        raise InputError(f"schema_version is {version_text(version)}, and this release reads {SCHEMA_VERSION}: measure "
                         "again")


def workload_of(job: Mapping[str, Any], capacity_bytes: int = PLENTY_BYTES) -> tuple[Workload, str]:
    """The workload of a row's ``job``, without a profile, and when events complete.

    ``events`` is no key of the workload; a row without it ran with ``immediate``.

    Raises:
        InputError: a job that makes no workload.
    """
    keys = dict(job)
    events = keys.pop("events", "immediate")
    model = keys.get("model")
    if not isinstance(events, str) or not isinstance(model, str):
        raise InputError(f"job: must have a model, and events as text, not {show(job, 100)}")
    paths = (folder / f"{model}.json" for folder in (MODELS, SHALLOW))
    keys["model"] = next((str(path) for path in paths if path.is_file()), model)
    return Workload.from_mapping({"gpu": GPU} | keys | {"capacity_bytes": capacity_bytes, "profile": "none"}), events
