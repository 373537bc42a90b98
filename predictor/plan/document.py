"""A plan as plain data: the JSON document, and the files that ``--write`` creates."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from predictor import readers
from predictor.common.errors import InputError
from predictor.common.files import write_together
from predictor.common.suggestions import file_name
from predictor.formula import learned
from predictor.jobs import dispatch
from predictor.plan import launch
from predictor.plan.maxima import Maximum
from predictor.plan.methods import Method
from predictor.plan.own_files import OwnFiles
from predictor.plan.plan import Plan, workload_of
from predictor.plan.search import Candidate, Configuration
from predictor.plan.setting import BATCH, LENGTH, STEPS, Setting
from predictor.plan.space import DATA
from predictor.workload import deepspeed_document
from predictor.workload.command_line import command_line
from predictor.workload.workload import Workload


def to_json(plan: Plan) -> dict[str, Any]:
    """The JSON document. Every key is always present, and names of numbers end with their unit."""
    best, found = plan.proposed, plan.found
    chosen = best or plan.closest
    assert chosen is not None  # a plan has a proposed or a closest configuration
    return {
        "goal": plan.goal, "gpu": plan.gpu, "gpus": plan.gpus,
        DATA: chosen.prediction.workload.get(DATA, 1),
        "global_batch_size": plan.global_batch_size, "capacity_bytes": plan.capacity_bytes,
        "proposed": best and configuration(best),
        "largest": plan.largest and _largest(plan.largest),
        "largest_with_expandable_segments": plan.largest_expandable and _largest(plan.largest_expandable),
        "remedies": [remedy.to_json() for remedy in plan.remedies],
        "ranking": [configuration(row) for row in found.fitting],
        "methods": [_method(method) for method in plan.methods],
        "closest": plan.closest and configuration(plan.closest),
        "does_not_fit": [_setting(setting) for setting in found.failed],
        "costs_more": [_setting(setting) for setting in found.unseen],
        "left_out": [_setting(setting) | {"reason": reason} for setting, reason in found.left_out],
        "kept": list(plan.kept), "standing": plan.standing,
        **{f"standing_{name}": size for name, size in asdict(plan.before).items()},
        "knobs": [asdict(knob) for knob in plan.knobs],
        "files": files(plan), "own_files": _own(plan.own) if isinstance(plan.own, OwnFiles) else None,
        "no_own_files": plan.own if isinstance(plan.own, str) else None,
        "frozen": list(frozen(plan)), "unfrozen": list(unfrozen(plan)),
        "no_arguments": _no_arguments(plan),
        "counts": {"settings": plan.settings, "configurations": plan.configurations} | asdict(plan.counts),
        "seconds": round(plan.seconds, 3),
        "assumed": plan.assumed, "assumptions": list(plan.assumptions), "not_modelled": list(plan.not_modelled),
        "source": plan.source and plan.source.to_json()}


def configuration(row: Configuration) -> dict[str, Any]:
    """A row of the ranking."""
    prediction = row.prediction
    return _setting(row.setting) | _shape(row.candidate) | {
        "verdict": prediction.verdict, "headroom_bytes": prediction.headroom_bytes,
        "minimum_capacity_bytes": prediction.minimum_capacity_bytes,
        "peak_requested_bytes": prediction.peak_requested_bytes,
        "peak_allocated_bytes": prediction.peak_allocated_bytes,
        "peak_reserved_bytes": prediction.peak_reserved_bytes,
        "estimate": row.estimate.to_json(), "workload": dict(prediction.workload),
        "predict": command_line(workload_of(row))}


def _setting(setting: Setting) -> dict[str, Any]:
    return {"method": setting.method, "name": setting.name, "differs": list(setting.differs)}


def _method(method: Method) -> dict[str, Any]:
    return {"kind": method.kind, "cheapest": method.cheapest and configuration(method.cheapest),
            "closest": method.closest and _setting(method.closest), "least_bytes": method.least_bytes,
            "why_none": method.why_none}


def _own(own: OwnFiles) -> dict[str, Any]:
    change = own.change
    return {"change": change and change.text, "where": change and change.where, "texts": dict(own.texts),
            "peak_allocated_bytes": own.peak_allocated_bytes, "peak_reserved_bytes": own.peak_reserved_bytes}


def _shape(candidate: Candidate) -> dict[str, Any]:
    return {BATCH: candidate.batch, STEPS: candidate.accumulation, LENGTH: candidate.sequence}


def _largest(maximum: Maximum) -> dict[str, Any]:
    return _shape(maximum.candidate) | {"at_any_global_batch_size": {BATCH: maximum.micro_batch},
                                        "search_limits": list(maximum.search_limits)}


def files(plan: Plan) -> dict[str, Any]:
    """The files that the proposed configuration is launched with, by name; empty for a learned job."""
    workload = launched(plan)
    if workload is None:
        return {}
    config = deepspeed_document.document(workload, dispatch.prepare(workload).formula.facts.hidden_size)
    arguments = {} if launch.no_arguments(workload) else {launch.ARGUMENTS: launch.training_arguments(workload)}
    return ({launch.CONFIG: config} if config else {}) | arguments | {launch.WORKLOAD: _given(workload)}


def _given(workload: Workload) -> dict[str, Any]:
    """The content of a workload file: every key that is not a default."""
    return {name: value for name, value in workload.resolved().items() if name not in workload.filled_in}


def written(plan: Plan, folder: str) -> dict[str, str]:
    """The text of each file that ``--write`` creates: the user's own files, if they can express the plan.

    Args:
        folder: the directory that they are written to; the user's own files name each other there.
    """
    documents, own = files(plan), plan.own
    if isinstance(own, OwnFiles):
        documents = {launch.WORKLOAD: _given(own.workload)}
    texts = {name: json.dumps(document, indent=2) + "\n" for name, document in documents.items()}
    return texts | (readers.in_directory(plan.source, own.texts, folder)
                    if isinstance(own, OwnFiles) and plan.source else {})


def launched(plan: Plan) -> Workload | None:
    """The proposed workload, if files can launch it; None if nothing fits, and for a learned job."""
    best = plan.proposed
    return None if best is None or learned.is_learned_file(best.setting.keys["model"]) else workload_of(best)


def frozen(plan: Plan) -> tuple[str, ...]:
    """Paths of modules that the training script has to freeze itself, because no argument of the Trainer does."""
    workload = launched(plan)
    return launch.frozen(dispatch.prepare(workload).formula.facts) if workload else ()


def unfrozen(plan: Plan) -> tuple[str, ...]:
    """Paths of modules that the training script has to unfreeze after peft has frozen them."""
    workload = launched(plan)
    if workload is None or not workload.lora:
        return ()
    return launch.unfrozen(dispatch.prepare(workload).formula.facts, workload.lora["bias"])


def _no_arguments(plan: Plan) -> str | None:
    workload = launched(plan)
    return launch.no_arguments(workload) or None if workload else None


def check_directory(path: str, force: bool) -> None:
    """Rejects a directory that the files cannot be written to, before anything is computed.

    Raises:
        InputError: it is not a directory, not writable, or has such files already and ``force`` is false.
    """
    folder = Path(path)
    if folder.exists() and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise InputError(f"{file_name(path)}: is not a directory that can be written to: name another")
    existing = sorted(name for name in launch.FILES if (folder / name).exists())
    if existing and not force:
        raise InputError(f"{file_name(path)}: has {existing[0]} already: add --force to overwrite it, or name another "
                         "directory")


def write(path: str, texts: Mapping[str, str], force: bool) -> None:
    """Writes all files or none, then removes files of an earlier plan that this plan does not have.

    Args:
        texts: as :func:`written` returns them.
        force: whether files of the user with these names may be overwritten.

    Raises:
        InputError: a file cannot be written or removed, or is there already.
    """
    for name in texts.keys() - launch.FILES:
        if Path(path, name).exists() and not force:
            raise InputError(f"{file_name(os.path.join(path, name))}: is there already: add --force to overwrite it, "
                             "or name another directory")
    for name in texts:
        try:
            Path(path, name).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{file_name(path)}: cannot be created: {error.strerror}") from None
    write_together({os.path.join(path, name): text.encode() for name, text in texts.items()})
    for name in launch.FILES - texts.keys():
        try:
            Path(path, name).unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{file_name(path)}: {name} of an earlier plan cannot be removed: "
                             f"{error.strerror}") from None
