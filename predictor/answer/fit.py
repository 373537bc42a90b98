"""Whether a configuration fits its GPU, beside an earlier state of the same configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from predictor.answer.predict import predict
from predictor.answer.prediction import Prediction, Remedy
from predictor.answer.remedies import with_remedies
from predictor.common.errors import InputError
from predictor.common.progress import Progress
from predictor.common.value_types import flat
from predictor.workload.file_words import file_words
from predictor.workload.workload import Workload


@dataclass(frozen=True)
class Change:
    """A key of the workload, or a dotted one of its DeepSpeed config, whose value differs from the earlier one.

    Values are plain data; None: not given.
    """

    key: str
    before: Any
    now: Any


@dataclass(frozen=True)
class Fit:
    """The answer for one configuration file.

    Attributes:
        file: its name, as the user gave it.
        gpu: the GPU's name; None if only its capacity is known.
        verdict, peak_reserved_bytes, capacity_bytes: as those of a prediction; None if it is not predicted.
        problem: why it is not predicted; empty otherwise.
        before_bytes: the reserved peak of the earlier state; None without one, or if that is not predicted.
        before_problem: why the earlier state is not predicted; empty otherwise.
        is_new: whether there is no earlier state although one was asked for.
        before_file: the name of the file in the earlier state, if it had another one; empty otherwise.
        changes: the keys that differ from the earlier state.
        remedy: the first change that makes it fit, in the words of the file; None if it fits, or if none was found.
        assumptions: as those of a prediction.
    """

    file: str
    gpu: str | None = None
    verdict: str | None = None
    peak_reserved_bytes: int | None = None
    capacity_bytes: int | None = None
    problem: str = ""
    before_bytes: int | None = None
    before_problem: str = ""
    is_new: bool = False
    before_file: str = ""
    changes: tuple[Change, ...] = ()
    remedy: Remedy | None = None
    assumptions: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The answer as plain data."""
        return {**vars(self), "changes": [vars(change) for change in self.changes],
                "remedy": self.remedy and self.remedy.to_json()}


def fit(file: str, now: Workload, before: Workload | InputError | None, progress: Progress | None = None, *,
        compared: bool = False, before_file: str = "", by_options: Collection[str] = ()) -> Fit:
    """Judges a workload that has a capacity.

    Args:
        file: the name of its file.
        before: the same file's earlier workload, if there is one, or why it could not be read.
        compared: whether an earlier state was asked for.
        before_file: as in :class:`Fit`.
        by_options: keys that options set, and the file cannot change.

    Raises:
        InputError: ``now`` is not predicted.
    """
    prediction = with_remedies(predict(now, progress=progress), now, progress=progress)
    earlier = _reserved(before, progress)
    problem = str(earlier) if isinstance(earlier, InputError) else ""
    return Fit(file=file, gpu=now.gpu, verdict=prediction.verdict, peak_reserved_bytes=prediction.peak_reserved_bytes,
               capacity_bytes=prediction.capacity_bytes, before_problem=problem,
               before_bytes=None if isinstance(earlier, InputError) else earlier, is_new=compared and before is None,
               before_file=before_file, changes=() if isinstance(before, InputError) else _changes(before, now),
               remedy=_in_words_of(file, now, _first(prediction), by_options), assumptions=prediction.assumptions)


def _reserved(before: Workload | InputError | None, progress: Progress | None) -> int | InputError | None:
    """The reserved peak of an earlier state, or why there is none: that is no mistake of what is there now."""
    if before is None or isinstance(before, InputError):
        return before
    try:
        return predict(before, progress=progress).peak_reserved_bytes
    except InputError as error:
        return error


def _changes(before: Workload | None, now: Workload) -> tuple[Change, ...]:
    """What differs in the keys that were given. Other keys follow from these, or from a file that they name."""
    if before is None:
        return ()
    old, new = before.resolved(), now.resolved()
    differ = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    given = [key for key in differ if key in before.given.values or key in now.given.values]
    return tuple(change for key in given or differ for change in _of_key(key, old.get(key), new.get(key)))


def _of_key(key: str, old: Any, new: Any) -> Iterator[Change]:
    """The change of a key; of a DeepSpeed config, those of its dotted keys."""
    if key == "deepspeed":
        before, now = (dict(flat(config or {})) for config in (old, new))
        yield from (Change(name, before.get(name), now.get(name)) for name in {**before, **now}
                    if before.get(name) != now.get(name))
    else:
        yield Change(key, old, new)


def _first(prediction: Prediction) -> Remedy | None:
    return next((remedy for remedy in prediction.remedies or () if remedy.fits), None)


def _in_words_of(file: str, now: Workload, remedy: Remedy | None, by_options: Collection[str]) -> Remedy | None:
    """The remedy as entries of the user's workload file. A framework's own configuration has its words already."""
    if remedy is None or now.source is not None or not remedy.keys.keys().isdisjoint(by_options):
        return remedy
    words = file_words(now, remedy.keys, file)
    return replace(remedy, own_words=words, where=file) if words else remedy
