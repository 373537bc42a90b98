"""The user's own files, changed to what a plan proposes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from predictor import readers
from predictor.common.errors import InputError
from predictor.formula import store
from predictor.jobs import dispatch
from predictor.jobs.survival import FITS
from predictor.workload.keys import KEYS
from predictor.workload.value_sources import OwnChange
from predictor.workload.workload import Workload


@dataclass(frozen=True)
class OwnFiles:
    """The files of a user's framework that start the proposed training.

    Attributes:
        change: what changes, in the framework's words.
        texts: the whole text of each changed file, by its path; of a command line, by ``the command``.
        peak_allocated_bytes, peak_reserved_bytes: predicted peaks of the worst rank with these files. They differ from
            the plan's where the framework decides keys that the plan leaves open, such as bucket sizes.
    """

    change: OwnChange
    texts: Mapping[str, str]
    peak_allocated_bytes: int
    peak_reserved_bytes: int


def own_files(present: Workload, proposed: Workload) -> OwnFiles | None:
    """The files of the present configuration, changed to the proposed one.

    None if they cannot express it, or if what they start does not surely fit or cannot be predicted without a trace.

    Args:
        present: a workload that was read from a framework's configuration.
    """
    assert present.source is not None  # it was read
    changes = _changed(present, proposed)
    change = present.source.in_own_words(changes)
    texts = readers.files(present.source, changes)
    if change is None or texts is None:
        return None
    try:
        with store.existing_only():
            outcome = dispatch.prepare(present.replace(**change.workload)).judge()
    except InputError:
        return None
    if outcome.verdict != FITS:
        return None
    return OwnFiles(change, texts, outcome.peak_allocated_bytes, outcome.reserved.bytes)


def _changed(present: Workload, proposed: Workload) -> dict[str, Any]:
    """The keys of the proposed workload that differ from the present one; None for those that are no longer given."""
    return {key: None if key in proposed.filled_in else getattr(proposed, key) for key in KEYS
            if key != "engine" and getattr(present, key) != getattr(proposed, key)}
