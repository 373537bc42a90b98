"""Gates: limits for the errors of groups of cases, read from a TOML file.

    [[gate]]
    name = "paper's grid"
    where = { model = "llava-1.5-7b", measured_on = "emulated" }    # without it: all cases
    minimum_cases = 48
    allocated_mape = 0.005          # fractions: 0.5 %
    allocated_worst = 0.02
    false_fits = 0
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calibrate.regression import statistics
from calibrate.regression.cases import COUNTERS, LABELS
from calibrate.regression.compare import Comparison
from calibrate.regression.statistics import Group
from predictor.common import numbers
from predictor.common.errors import InputError
from predictor.common.files import read_text
from predictor.common.installing import pip_install
from predictor.common.suggestions import file_name, nearest, quoted

WHERE = (*LABELS, "completion", "group", "file")
"""Keys that choose cases: labels, completion of CUDA events, the record's group, and the file name without its
directory."""


@dataclass(frozen=True)
class Threshold:
    """A number of a group of cases that a gate limits.

    Attributes:
        value: function from a group to the number (None if the group has none) and the id of the responsible case, or
            an empty text.
        least: the limit is the smallest number that passes, not the largest.
        whole: the number is a count.
    """

    value: Callable[[Group], tuple[float | None, str]]
    least: bool = False
    whole: bool = False


def _error(counter: str, name: str) -> Callable[[Group], tuple[float | None, str]]:
    def value(group: Group) -> tuple[float | None, str]:
        errors = group.errors.get(counter)
        if errors is None:
            return None, ""
        number = getattr(errors, name)
        return (number if number is None or name in ("close", "inside") else abs(number),
                errors.worst_case if name == "worst" else "")

    return value


THRESHOLDS: Mapping[str, Threshold] = {
    **{f"{counter}_{name}": Threshold(_error(counter, name)) for counter in COUNTERS
       for name in ("mape", "median", "p95", "worst", "bias")},
    **{f"{counter}_{name}": Threshold(_error(counter, name), least=True) for counter in COUNTERS
       for name in ("close", "inside")},
    "false_fits": Threshold(lambda group: (len(group.verdicts.false_fits), "".join(group.verdicts.false_fits[:1])),
                            whole=True),
    "false_alarms": Threshold(
        lambda group: (len(group.verdicts.false_alarms), "".join(group.verdicts.false_alarms[:1])), whole=True),
    "other_moments": Threshold(lambda group: (group.moments - group.moment_hits, ""), whole=True),
    "failure_probability": Threshold(lambda group: (group.xmem.failure_probability, "".join(group.xmem.failures[:1]))),
    "minimum_cases": Threshold(lambda group: (group.cases, ""), least=True, whole=True),
}
"""Key of a gate -> the number that it limits. Errors are absolute values, as fractions. ``_close`` is the share of
cases within 1 %, ``_inside`` the share in the predicted interval. ``other_moments`` counts peaks in another moment than
predicted."""
MINIMUM_MODELS = "minimum_models"
LARGEST_FILE_BYTES = 1 << 20
LONGEST_LINE = 1_000
"""Longest line in characters. tomllib takes quadratic time for a key with many dots."""


@dataclass(frozen=True)
class Gate:
    """One gate of the file: the keys that choose its cases, and its limits by key of :data:`THRESHOLDS`."""

    name: str
    where: Mapping[str, str | int] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """The result of a gate.

    Attributes:
        cases: number of cases that it chooses.
        broken: a line for each limit that is broken; empty if the gate holds.
    """

    gate: Gate
    cases: int
    broken: tuple[str, ...]


def read(path: str | os.PathLike[str]) -> list[Gate]:
    """The gates of a file.

    Raises:
        InputError: the file does not exist, is not TOML, or has an unknown key or an invalid value.
    """
    name = file_name(path)
    try:
        import tomllib
    except ImportError:  # Python 3.10
        try:
            # the back-port of tomllib, which is installed on Python 3.10 only
            import tomli as tomllib  # type: ignore[import-not-found,no-redef]
        except ImportError:
            raise InputError("--gate needs tomli on Python 3.10: "
                             f"{pip_install('peakcast[report]')}") from None
    try:
        text = read_text(path, "the gates", LARGEST_FILE_BYTES)
        if max(map(len, text.splitlines()), default=0) > LONGEST_LINE:
            raise InputError(f"{name}: has a line of more than {LONGEST_LINE:,} characters: these are no gates")
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: no TOML, or an integer of thousands of digits
        raise InputError(f"{name}: not valid TOML: {quoted(str(error), 120)[1:-1]}") from None
    _known(document, ("gate",), name)
    entries = document.get("gate")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"{name}: has no gates: begin each with [[gate]]")
    gates = [_gate(entry, f"{name}: gate {number}") for number, entry in enumerate(entries, 1)]
    names: set[str] = set()
    for gate in gates:
        if gate.name in names:
            raise InputError(f"{name}: two gates have the name {quoted(gate.name)}: name each")
        names.add(gate.name)
    return gates


def _gate(entry: dict[str, Any], where: str) -> Gate:
    known = ("name", "where", MINIMUM_MODELS, *THRESHOLDS)
    _known(entry, known, where)
    name, chosen = entry.get("name"), entry.get("where", {})
    if not isinstance(name, str) or not name.strip():
        raise InputError(f'{where}: needs a name: name = "…"')
    if not isinstance(chosen, dict):
        raise InputError(f"{where}: where must be a table such as {{ recipe = \"full\" }}")
    _known(chosen, WHERE, f"{where}: where")
    for key, value in chosen.items():
        type_ = int if key == "data_parallel_size" else str
        if not isinstance(value, type_) or isinstance(value, bool):
            raise InputError(f"{where}: where: {key} must be {'a whole number' if type_ is int else 'text'}, "
                             f"not {quoted(value)}")
    limits = {key: _limit(value, f"{where}: {key}", key == MINIMUM_MODELS or THRESHOLDS[key].whole)
              for key, value in entry.items() if key not in ("name", "where")}
    if not limits:
        raise InputError(f"{where}: limits nothing: give a threshold such as allocated_mape = 0.005")
    return Gate(name, chosen, limits)


def _known(document: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in document:
        if key not in known:
            raise InputError(f"{where}: unknown key {quoted(key)}{nearest(key, known)}")


def _limit(value: Any, where: str, whole: bool) -> float:
    types = (int,) if whole else (int, float)
    if not isinstance(value, types) or numbers.finite(value) is None or value < 0:
        raise InputError(f"{where} must be {'a whole number' if whole else 'a number'} from 0, not {quoted(value)}")
    if not whole and value > 1:
        raise InputError(f"{where} is {value:g}: give a fraction, 0.005 for 0.5 %")
    return value


def check(gate: Gate, comparisons: Sequence[Comparison]) -> Result:
    """Checks a gate. It is broken if it chooses no case, or if its cases do not have a number that it limits."""
    chosen = [comparison for comparison in comparisons
              if all(_place(comparison, key) == value for key, value in gate.where.items())]
    if not chosen:
        return Result(gate, 0, (f"{gate.name}: no case",))
    group = statistics.group(chosen)
    broken = []
    value: float | None
    for key, limit in gate.limits.items():
        if key == MINIMUM_MODELS:
            value, case, least = len({comparison.case.model for comparison in chosen}), "", True
        else:
            threshold = THRESHOLDS[key]
            (value, case), least = threshold.value(group), threshold.least
        if value is None:
            broken.append(f"{gate.name}: {key}: no case has it")
        elif value < limit if least else value > limit:
            at = next((f" ({case}: {comparison.case.name})" for comparison in chosen if comparison.case.id == case), "")
            broken.append(f"{gate.name}: {key} is {value:.6g}: must be {'at least' if least else 'at most'} "
                          f"{limit:g}{at}")
    return Result(gate, len(chosen), tuple(broken))


def _place(comparison: Comparison, key: str) -> str | int:
    if key == "file":
        return os.path.basename(comparison.case.file)
    return getattr(comparison.case, key) if key in ("completion", "group") else comparison.case.labels[key]
