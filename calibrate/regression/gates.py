"""Gates: thresholds that predictions must keep, by group of cases, in a file of TOML.

    [[gate]]
    name = "paper's grid"
    where = { model = "llava-1.5-7b", measured_on = "emulated" }    # absent: all cases
    minimum_cases = 48
    allocated_mape = 0.005          # fractions: 0.5 %
    allocated_worst = 0.02
    false_fits = 0
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calibrate.regression import statistics
from calibrate.regression.cases import COUNTERS, LABELS
from calibrate.regression.compare import Comparison
from calibrate.regression.statistics import Group
from predictor.common.errors import InputError
from predictor.common.files import read_text
from predictor.common.suggestions import named, nearest, show

WHERE = (*LABELS, "completion", "group", "file")
"""What cases can be chosen by: labels, when events complete, the group that the record names, and the name of the file
without its directory."""


@dataclass(frozen=True)
class Threshold:
    """One number of a group that must not be more than a limit, or not less.

    Attributes:
        value: the group to the number, and the id of the case that makes it (or empty); None: the group has none.
        least: the limit is the smallest that passes, not the largest.
        whole: it counts something.
    """

    value: Callable[[Group], tuple[float | None, str]]
    least: bool = False
    whole: bool = False


def _of(counter: str, name: str) -> Callable[[Group], tuple[float | None, str]]:
    def value(group: Group) -> tuple[float | None, str]:
        found = group.errors.get(counter)
        if found is None:
            return None, ""
        number = getattr(found, name)
        return (number if number is None or name in ("close", "inside") else abs(number),
                found.worst_case if name == "worst" else "")

    return value


THRESHOLDS: Mapping[str, Threshold] = {
    **{f"{counter}_{name}": Threshold(_of(counter, name)) for counter in COUNTERS
       for name in ("mape", "median", "p95", "worst", "bias")},
    **{f"{counter}_{name}": Threshold(_of(counter, name), least=True) for counter in COUNTERS
       for name in ("close", "inside")},
    "false_fits": Threshold(lambda group: (len(group.verdicts.false_fits), "".join(group.verdicts.false_fits[:1])),
                            whole=True),
    "false_alarms": Threshold(
        lambda group: (len(group.verdicts.false_alarms), "".join(group.verdicts.false_alarms[:1])), whole=True),
    "other_moments": Threshold(lambda group: (group.moments - group.moment_hits, ""), whole=True),
    "failure_probability": Threshold(lambda group: (group.xmem.failure_probability, "".join(group.xmem.failures[:1]))),
    "minimum_cases": Threshold(lambda group: (group.cases, ""), least=True, whole=True),
}
"""Key to what it limits. Errors are fractions, in absolute size; ``_close`` is the share within 1 %, ``_inside`` the
share in the predicted interval; ``other_moments`` counts peaks in another moment than predicted."""
MINIMUM_MODELS = "minimum_models"
LARGEST_FILE_BYTES = 1 << 20
LONGEST_LINE = 1_000
"""A key of many dots takes tomllib the square of them."""


@dataclass(frozen=True)
class Gate:
    """One entry of the file: which cases, and threshold to limit."""

    name: str
    where: Mapping[str, str | int] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What became of a gate.

    Attributes:
        cases: how many it looked at.
        broken: a line for each threshold that is broken; empty: it holds.
    """

    gate: Gate
    cases: int
    broken: tuple[str, ...]


def read(path: str | os.PathLike[str]) -> list[Gate]:
    """The gates of a file.

    Raises:
        InputError: no such file, no TOML, an unknown key or a value that makes no sense.
    """
    name = named(path)
    try:
        import tomllib
    except ImportError:  # Python 3.10
        try:
            import tomli as tomllib
        except ImportError:
            raise InputError("--gate needs tomli on Python 3.10: pip install 'peakcast[report]'") from None
    try:
        text = read_text(path, "the gates", LARGEST_FILE_BYTES)
        if max(map(len, text.splitlines()), default=0) > LONGEST_LINE:
            raise InputError(f"{name}: has a line of more than {LONGEST_LINE:,} characters: these are no gates")
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: no TOML, or an integer of thousands of digits
        raise InputError(f"{name}: not valid TOML: {show(str(error), 120)[1:-1]}") from None
    _known(document, ("gate",), name)
    entries = document.get("gate")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"{name}: has no gates: begin each with [[gate]]")
    gates = [_gate(entry, f"{name}: gate {number}") for number, entry in enumerate(entries, 1)]
    names: set[str] = set()
    for gate in gates:
        if gate.name in names or names.add(gate.name):
            raise InputError(f"{name}: two gates have the name {show(gate.name)}: name each")
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
        wanted = int if key == "data_parallel_size" else str
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise InputError(f"{where}: where: {key} must be {'a whole number' if wanted is int else 'text'}, "
                             f"not {show(value)}")
    limits = {key: _limit(value, f"{where}: {key}", key == MINIMUM_MODELS or THRESHOLDS[key].whole)
              for key, value in entry.items() if key not in ("name", "where")}
    if not limits:
        raise InputError(f"{where}: limits nothing: give a threshold such as allocated_mape = 0.005")
    return Gate(name, chosen, limits)


def _known(document: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in document:
        if key not in known:
            raise InputError(f"{where}: unknown key {show(key)}{nearest(key, known)}")


def _limit(value: Any, where: str, whole: bool) -> float:
    kinds = (int,) if whole else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise InputError(f"{where} must be {'a whole number' if whole else 'a number'} from 0, not {show(value)}")
    if not whole and value > 1:
        raise InputError(f"{where} is {value:g}: give a fraction, 0.005 for 0.5 %")
    return value


def check(gate: Gate, comparisons: Sequence[Comparison]) -> Result:
    """A gate against all cases of a report. One without a case, or without what it limits, is broken."""
    chosen = [one for one in comparisons
              if all(_place(one, key) == value for key, value in gate.where.items())]
    if not chosen:
        return Result(gate, 0, (f"{gate.name}: no case",))
    group = statistics.group(chosen)
    broken = []
    for key, limit in gate.limits.items():
        if key == MINIMUM_MODELS:
            value, case, least = len({one.case.model for one in chosen}), "", True
        else:
            threshold = THRESHOLDS[key]
            (value, case), least = threshold.value(group), threshold.least
        if value is None:
            broken.append(f"{gate.name}: {key}: no case has it")
        elif value < limit if least else value > limit:
            at = next((f" ({case}: {one.case.name})" for one in chosen if one.case.id == case), "")
            broken.append(f"{gate.name}: {key} is {value:.6g}, and {'at least' if least else 'at most'} {limit:g} "
                          f"must be{at}")
    return Result(gate, len(chosen), tuple(broken))


def _place(one: Comparison, key: str) -> str | int:
    if key == "file":
        return os.path.basename(one.case.file)
    return getattr(one.case, key) if key in ("completion", "group") else one.case.labels[key]
