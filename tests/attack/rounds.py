"""What one round of relations found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from predictor.common.value_types import thaw
from predictor.workload.workload import Workload


@dataclass
class Round:
    """What one round found.

    Attributes:
        checked: relation -> how often it was checked.
        violations: each with its relation, the jobs and the numbers.
        models: the models of the jobs that were answered.
        asked: the models of all jobs, those that were not answered among them.
    """

    checked: Counter[str] = field(default_factory=Counter)
    violations: list[dict[str, Any]] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)

    def check(self, relation: str, holds: bool, *jobs: Workload, **numbers: Any) -> None:
        """Counts a relation, and keeps the jobs if it does not hold."""
        self.checked[relation] += 1
        if not holds:
            self.violations.append({"relation": relation, "numbers": numbers, "jobs": [given(job) for job in jobs]})

    def add(self, other: Round) -> None:
        """Adds what another round found."""
        self.checked += other.checked
        self.violations += other.violations
        self.models |= other.models
        self.asked |= other.asked


def given(job: Workload) -> dict[str, Any]:
    """The keys of a job that differ from the defaults."""
    return {name: thaw(value) for name, value in job.resolved().items() if name not in job.filled_in}


def name_of(job: Workload) -> str:
    """The model's known name, or that of its file."""
    return Path(job.model).stem if job.model.endswith(".json") else job.model
