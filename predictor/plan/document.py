"""A plan as plain data: the JSON, and the files that ``--write`` makes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import write_whole
from predictor.common.suggestions import named
from predictor.formula import learned
from predictor.jobs import dispatch
from predictor.plan import launch
from predictor.plan.methods import Method
from predictor.plan.plan import Plan, workload_of
from predictor.plan.search import Candidate, Configuration
from predictor.plan.space import BATCH, DATA, LENGTH, STEPS, Setting
from predictor.workload.workload import Workload


def to_json(plan: Plan) -> dict[str, Any]:
    """Every key always present, the unit in its name."""
    best, found = plan.proposed, plan.found
    return {
        "goal": plan.goal, "gpu": plan.gpu, "gpus": plan.gpus,
        DATA: (best or plan.closest).prediction.workload.get(DATA, 1),
        "global_batch_size": plan.global_batch_size, "capacity_bytes": plan.capacity_bytes,
        "proposed": best and configuration(best),
        "largest": plan.largest and _shape(plan.largest),
        "ranking": [configuration(one) for one in found.fitting],
        "methods": [_method(one) for one in plan.methods],
        "closest": plan.closest and configuration(plan.closest),
        "does_not_fit": [_setting(one) for one in found.failed],
        "costs_more": [_setting(one) for one in found.unseen],
        "left_out": [_setting(one) | {"reason": why} for one, why in found.left_out],
        "kept": list(plan.kept), "standing": plan.standing,
        **{f"standing_{name}": size for name, size in asdict(plan.before).items()},
        "knobs": [asdict(knob) for knob in plan.knobs],
        "files": files(plan), "frozen": list(frozen(plan)), "unfrozen": list(unfrozen(plan)),
        "no_arguments": _no_arguments(plan),
        "counts": {"settings": plan.settings, "configurations": plan.configurations} | asdict(plan.counts),
        "seconds": round(plan.seconds, 3),
        "assumptions": list(plan.assumptions), "not_modelled": list(plan.not_modelled),
        "source": plan.source and plan.source.to_json()}


def configuration(one: Configuration) -> dict[str, Any]:
    """One row of the ranking."""
    prediction = one.prediction
    return _setting(one.setting) | _shape(one.candidate) | {
        "verdict": prediction.verdict, "headroom_bytes": prediction.headroom_bytes,
        "minimum_capacity_bytes": prediction.minimum_capacity_bytes,
        "peak_requested_bytes": prediction.peak_requested.bytes,
        "peak_allocated_bytes": prediction.peak_allocated.bytes,
        "peak_reserved_bytes": prediction.peak_reserved.bytes,
        "estimate": one.estimate.to_json(), "workload": dict(prediction.workload)}


def _setting(setting: Setting) -> dict[str, Any]:
    return {"method": setting.method, "name": setting.name, "differs": list(setting.differs)}


def _method(one: Method) -> dict[str, Any]:
    return {"kind": one.kind, "cheapest": one.cheapest and configuration(one.cheapest),
            "closest": one.closest and _setting(one.closest), "least_bytes": one.least_bytes, "why_none": one.why_none}


def _shape(candidate: Candidate) -> dict[str, Any]:
    return {BATCH: candidate.batch, STEPS: candidate.accumulation, LENGTH: candidate.sequence}


def files(plan: Plan) -> dict[str, Any]:
    """Name -> content of what the proposed configuration is launched with; nothing of a learned job."""
    workload = launched(plan)
    if workload is None:
        return {}
    config = launch.deepspeed(workload, dispatch.prepare(workload).formula.facts.hidden_size)
    keys = {name: value for name, value in workload.resolved().items() if name not in workload.filled_in}
    arguments = {} if launch.no_arguments(workload) else {launch.ARGUMENTS: launch.training_arguments(workload)}
    return ({launch.CONFIG: config} if config else {}) | arguments | {launch.WORKLOAD: keys}


def launched(plan: Plan) -> Workload | None:
    """The proposed configuration, if files say how it is launched: not where nothing fits, nor of a learned job."""
    best = plan.proposed
    return None if best is None or learned.is_named(best.setting.keys["model"]) else workload_of(best)


def frozen(plan: Plan) -> tuple[str, ...]:
    """What the script has to freeze itself: arguments of the Trainer cannot say that."""
    workload = launched(plan)
    return launch.frozen(dispatch.prepare(workload).formula.facts) if workload else ()


def unfrozen(plan: Plan) -> tuple[str, ...]:
    """What the script has to let train after peft has frozen it."""
    workload = launched(plan)
    adapters = workload.lora if workload else None
    return launch.unfrozen(dispatch.prepare(workload).formula.facts, adapters["bias"]) if adapters else ()


def _no_arguments(plan: Plan) -> str | None:
    workload = launched(plan)
    return launch.no_arguments(workload) or None if workload else None


def check_directory(path: str, force: bool) -> None:
    """Refuses, before anything is computed, a directory that the files could not be written to.

    Raises:
        InputError: it is no directory, not writable, or has such files and ``force`` is false.
    """
    folder = Path(path)
    if folder.exists() and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise InputError(f"{named(path)}: is not a directory that can be written to: name another")
    there = sorted(name for name in launch.FILES if (folder / name).exists())
    if there and not force:
        raise InputError(f"{named(path)}: has {there[0]} already: add --force to overwrite it, or name another "
                         "directory")


def write(path: str, documents: Mapping[str, Any]) -> None:
    """Writes each file whole; then those of an earlier plan that this one does not have go.

    Raises:
        InputError: one cannot be written there, or removed.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{named(path)}: cannot be made: {error.strerror}") from None
    for name, document in documents.items():
        write_whole(os.path.join(path, name), (json.dumps(document, indent=2) + "\n").encode())
    for name in launch.FILES - documents.keys():
        try:
            Path(path, name).unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{named(path)}: {name} of an earlier plan cannot go: {error.strerror}") from None
