"""Every check by name: what it asks, what it takes and needs, what it writes, and by what it is judged.

The module of a check has a docstring, which is its help, and functions:

- ``jobs(given)``: what is run, often a JSON list that lies beside the module;
- ``measure(jobs, given)``: what was found, measured now or kept from before;
- ``table(found, given)``: the :class:`~calibrate.checks.outcome.Outcome`;
- ``options(parser)``, if it has options of its own.

``given`` has the command line's options. Modules are imported when their check is run: each needs other packages.
"""

from __future__ import annotations

import importlib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from calibrate.checks.outcome import Outcome


@dataclass(frozen=True)
class Check:
    """One check."""

    module: str
    asks: str
    takes: str
    writes: tuple[str, ...] = ()
    tolerance: Mapping[str, float] = field(default_factory=dict)
    """Most that each figure may be; nothing judges a check without one."""
    needs: str = "pip install -e '.[test]'; no GPU"
    table_takes: str = ""
    """How long the table takes, of what is saved; empty: nothing is saved that a table could be made of."""

    @property
    def code(self) -> ModuleType:
        return importlib.import_module(self.module)

    @property
    def jobs(self) -> Callable[[Namespace], Any]:
        return self.code.jobs

    @property
    def measure(self) -> Callable[[Any, Namespace], Any]:
        return self.code.measure

    @property
    def table(self) -> Callable[[Any, Namespace], Outcome]:
        return self.code.table

    @property
    def options(self) -> Callable[[ArgumentParser], None]:
        return getattr(self.code, "options", lambda parser: None)

    def run(self, given: Namespace) -> Outcome:
        """Jobs, measurements, table."""
        return self.table(self.measure(self.jobs(given), given), given)


CHECKS = {
    "emulated": Check(
        "calibrate.checks.emulated", "166 fixed jobs on the emulated H100, beside predictions",
        takes="half an hour", table_takes="a minute", writes=("profiles/h100-80gb/emulated.jsonl",),
        tolerance={"peaks in another moment": 0, "jobs whose peaks differ": 0}),
    "verdicts": Check(
        "calibrate.checks.verdicts", "does a job survive at its predicted limit, and die just below?",
        takes="15 minutes", table_takes="at once", writes=("profiles/h100-80gb/verdicts.jsonl",),
        tolerance={"limits that were not found": 0}),
    "recipes": Check(
        "calibrate.checks.recipes", "jobs of every recipe, engine, optimizer, precision and loss, beside predictions",
        takes="an hour", table_takes="some minutes",
        writes=("profiles/evidence/recipes.jsonl", "profiles/pages/recipes.md"),
        tolerance={"allocated": 0.01, "reserved": 0.05}),
    "models": Check(
        "calibrate.checks.models", "two jobs of every model that is known by name, beside first predictions",
        takes="an hour or two", table_takes="half an hour",
        writes=("profiles/evidence/models.jsonl", "profiles/pages/models.md"),
        tolerance={"allocated": 0.02}),
    "tensor_parallel": Check(
        "calibrate.checks.tensor_parallel", "tensor-parallel jobs, first and last ranks, beside predictions",
        takes="an hour", table_takes="some minutes",
        writes=("profiles/evidence/tensor_parallel.jsonl", "profiles/pages/tensor_parallel.md"),
        tolerance={"requested": 0.01, "rows that cannot be read": 0}),
    "inference": Check(
        "calibrate.checks.inference", "jobs of inference, call by call, beside predictions",
        takes="some minutes", table_takes="a minute",
        writes=("profiles/evidence/inference.jsonl", "profiles/pages/inference.md"),
        tolerance=dict.fromkeys(("requested_bytes", "allocated_bytes", "reserved_bytes", "moments"), 0.01)),
    "maximum_load": Check(
        "calibrate.checks.maximum_load", "does the largest load that is said to fit survive, and one more die?",
        takes="some minutes", table_takes="at once",
        writes=("profiles/evidence/maximum_load.jsonl", "profiles/pages/maximum_load.md"),
        tolerance={"jobs that came out otherwise": 0}),
    "plan": Check(
        "calibrate.checks.plan", "does what a plan proposes survive, and the next larger batch die?",
        takes="a quarter of an hour", table_takes="at once", writes=("profiles/evidence/plan.jsonl",),
        tolerance={"plans that came out otherwise": 0}),
    "methods": Check(
        "calibrate.checks.methods", "does what a plan says of each method hold: data, sharded, tensor, combined?",
        takes="half an hour", table_takes="at once",
        writes=("profiles/evidence/methods.jsonl", "profiles/pages/methods.md"),
        tolerance={"jobs that came out otherwise": 0}),
    "recovery": Check(
        "calibrate.checks.recovery", "does a calibration find what was put into the emulated H100?",
        takes="20 minutes", writes=("profiles/evidence/recovery.json",),
        tolerance={"error of what was injected": 0.01, "groups that get worse": 0}),
    "device": Check(
        "calibrate.checks.device", "a GPU, its emulation and the predictions side by side",
        takes="ten minutes on the GPU", table_takes="a minute",
        writes=("profiles/<gpu>/device/", "profiles/<gpu>/device.md", "profiles/<gpu>/profile-device.json"),
        tolerance={"campaigns that are not done": 0},
        needs="pip install -e '.[calibrate]'; the GPU, or --device emulated"),
    "readers": Check(
        "calibrate.checks.readers", "what the readers know of LLaMA-Factory, ms-swift and axolotl, beside the packages",
        takes="a minute", writes=("profiles/evidence/readers.json",), tolerance={"differences": 0},
        needs="pip install --no-deps llamafactory ms-swift axolotl, and what importing them asks for"),
    "gemma_report": Check(
        "calibrate.checks.gemma_report", "QLoRA peaks that somebody measured on a real GPU, beside predictions",
        takes="some minutes", writes=("profiles/evidence/gemma_report.md",)),
    "liger_h100": Check(
        "calibrate.checks.liger_h100", "other people's measurements of operators on real H100s, beside the tracer",
        takes="some minutes", writes=("profiles/evidence/liger_h100.md",),
        needs="pip install -e '.[trace]'; plain_ops_h100.csv"),
    "explore_page": Check(
        "calibrate.checks.explore_page", "does a page of explore predict what Python does, at once, and alone?",
        takes="some minutes", writes=("profiles/evidence/explore_page.json with --save",),
        tolerance={"faults": 0, "controls that redraw too slowly": 0}, needs="Chromium"),
    "report_page": Check(
        "calibrate.checks.report_page", "is the page of a regression report drawn, silent, and alone?",
        takes="a minute", tolerance={"faults": 0}, needs="Chromium"),
}
