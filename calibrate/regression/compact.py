"""Compact rows: the file format in which checks such as ``emulated`` and ``verdicts`` keep measurements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.common.errors import InputError
from predictor.common.suggestions import quoted, version_text
from predictor.workload.workload import Workload

MODELS = Path(__file__).parent / "models"
"""Directory of model configurations that rows name. ``grouped`` is a LLaVA with Qwen2-1.5B (grouped heads) and SigLIP.
``shallow`` is LLaVA-1.5-7B with 4 of its 32 layers, 1.4 billion parameters."""
SHALLOW = Path(__file__).parents[1] / "campaign" / "models"
"""Directory of the campaigns' model configurations, which rows may name too."""
GPU = "h100-80gb"
"""GPU of a row whose job names none."""
PLENTY_BYTES = 400 << 30
"""Capacity of the emulated GPU for these rows, so that peaks above 80 GB can be measured too."""
SCHEMA_VERSION = 1
"""Version of the rows; a row without ``schema_version`` has version 1."""


def row(job: Mapping[str, Any], measured: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A row as checks write it: its version, the job and its measurements."""
    return {"schema_version": SCHEMA_VERSION, **more, "job": dict(job), **measured}


def check_version(document: Mapping[str, Any]) -> None:
    """Checks that this release can read the row's version.

    Raises:
        InputError: the row has another ``schema_version``.
    """
    version = document.get("schema_version", SCHEMA_VERSION)
    if type(version) is not int or version != SCHEMA_VERSION:
        raise InputError(f"schema_version is {version_text(version)}, and this release reads {SCHEMA_VERSION}: measure "
                         "again")


def workload_of(job: Mapping[str, Any], capacity_bytes: int = PLENTY_BYTES) -> tuple[Workload, str]:
    """The workload of a row's ``job``, without a profile, and when its CUDA events complete.

    ``events`` is not a key of the workload; a row without it ran with ``immediate``.

    Raises:
        InputError: the job is not a valid workload.
    """
    keys = dict(job)
    events = keys.pop("events", "immediate")
    model = keys.get("model")
    if not isinstance(events, str) or not isinstance(model, str):
        raise InputError(f"job: must have a model, and events as text, not {quoted(job, 100)}")
    paths = (folder / f"{model}.json" for folder in (MODELS, SHALLOW))
    keys["model"] = next((str(path) for path in paths if path.is_file()), model)
    return Workload.from_mapping({"gpu": GPU} | keys | {"capacity_bytes": capacity_bytes, "profile": "none"}), events
