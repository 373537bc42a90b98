"""The user's own files, changed to what a plan proposes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from predictor import readers
from predictor.common.errors import InputError
from predictor.common.progress import Progress
from predictor.formula import store
from predictor.jobs import dispatch
from predictor.jobs.survival import FITS
from predictor.workload.keys import KEYS
from predictor.workload.value_sources import ENGINE_KEYS, OVERRIDDEN, OwnChange, Source
from predictor.workload.workload import Workload

ENGINES = {"torch": "a plain loop", "ddp": "DDP", "fsdp1": "FSDP1", "fsdp2": "FSDP2"}
"""Engine of a workload -> its name in sentences."""
OF_ENGINES = ENGINE_KEYS | {"offload", "dtype"}
"""Keys that another engine brings with it."""


@dataclass(frozen=True)
class OwnFiles:
    """The files of a user's framework that start the proposed training.

    Attributes:
        change: what changes, in the framework's words; None if the user's files are the proposed training already.
        texts: the whole text of each changed file, by its path; of a command line, by ``the command``.
        workload: the job that these files start.
        peak_allocated_bytes, peak_reserved_bytes: predicted peaks of the worst rank with these files. They differ from
            the plan's where the framework decides keys that the plan leaves open, such as bucket sizes.
    """

    change: OwnChange | None
    texts: Mapping[str, str]
    workload: Workload
    peak_allocated_bytes: int
    peak_reserved_bytes: int


def own_files(present: Workload, proposed: Workload, *, trace: bool = False,
              progress: Progress | None = None) -> OwnFiles | str:
    """The files of the present configuration, changed to the proposed one.

    If they cannot express it, or if what they start does not surely fit or cannot be predicted, the reason why in one
    sentence.

    Args:
        present: a workload that was read from a framework's configuration.
        trace: whether what they start may be traced: a framework decides keys that a plan leaves open.
        progress: wraps the shapes that are traced.
    """
    assert present.source is not None  # it was read
    changes = decisive(present, proposed)
    judged = partial(_judged, trace=trace, progress=progress)
    if not changes:
        return judged(None, {}, present)
    change = present.source.in_own_words(changes)
    texts = readers.files(present.source, changes)
    file = f"{present.source.file} is not changed"
    if change is None or texts is None:
        same = present.engine == proposed.engine
        if same:
            return f"{file}: {_not_expressed(present.source, changes)}"
        return f"{file}: {_other_engine(present, proposed, changes)}"
    try:
        changed = present.replace(**change.workload)
        if _engine(changed) != _engine(proposed):
            return f"{file}: {_other_engine(changed, proposed, changes)}"
        return judged(change, texts, changed)
    except InputError as error:
        return f"{file}: what it would start cannot be predicted: {error}"


def decisive(present: Workload, proposed: Workload) -> Mapping[str, Any]:
    """The changes that the files must say, if the framework itself decides the others by these; else all changes."""
    source, changes = present.source, _changed(present, proposed)
    assert source is not None  # it was read
    said: dict[str, Any] = {}
    left: Mapping[str, Any] = changes if source.in_own_words(changes) is None else {}
    while left:
        key = next((key for key in left if key in changes.keys() - said.keys()
                    and source.in_own_words({**said, key: changes[key]})), None)
        change = source.in_own_words({**said, key: changes[key]}) if key else None
        if key is None or change is None:
            return changes
        said[key] = changes[key]
        left = _changed(present.replace(**change.workload), proposed)
    return said or changes


def _judged(change: OwnChange | None, texts: Mapping[str, str], started: Workload, *, trace: bool,
            progress: Progress | None) -> OwnFiles | str:
    """The files with the peaks of what they start, or the sentence that this does not surely fit.

    Raises:
        InputError: what they start cannot be predicted.
    """
    with store.existing_only(not trace):
        outcome = dispatch.prepare(started, progress).judge()
    if outcome.verdict != FITS:
        assert started.source is not None  # it was read
        return f"{started.source.file} is not changed: what it would start does not surely fit"
    return OwnFiles(change, texts, started, outcome.peak_allocated_bytes, outcome.reserved.bytes)


def _not_expressed(source: Source, changes: Mapping[str, Any]) -> str:
    """Which of the changes the framework's configuration has no words for."""
    typed = [row.key for row in source.values if row.origin == OVERRIDDEN and row.key in changes]
    if typed:
        return f"an option of this command sets {' and '.join(typed)}: leave it out, and give the value in the file"
    keys = [key for key, item in changes.items() if item is not None and source.in_own_words({key: item}) is None]
    said = f"what it would have to say for {' and '.join(keys)}" if keys else "how to say all changes together"
    return f"{said} under {source.framework} is not known"


def _other_engine(started: Workload, proposed: Workload, changes: Mapping[str, Any]) -> str:
    """Why other values in the files do not start the proposed engine, and how they say what else changes."""
    assert started.source is not None  # it was read
    rest = started.source.in_own_words({key: item for key, item in changes.items()
                                        if item is not None and key not in OF_ENGINES})
    return (f"it trains with {_engine(started)}, and {_engine(proposed)} needs more than other values in it "
            "(--keep engine plans what can be changed)" + (f"; what else changes is {rest.text}" if rest else ""))


def _engine(workload: Workload) -> str:
    """The engine, and what it offloads, in words."""
    name = f"ZeRO-{workload.zero_stage}" if workload.engine == "deepspeed" else ENGINES[workload.engine]
    return name + (f" (offload {workload.offload})" if workload.offload else "")


def _changed(present: Workload, proposed: Workload) -> dict[str, Any]:
    """The keys of the proposed workload that differ from the present one; None for those that are no longer given."""
    return {key: None if key in proposed.filled_in else getattr(proposed, key) for key in KEYS
            if key != "engine" and getattr(present, key) != getattr(proposed, key)}
