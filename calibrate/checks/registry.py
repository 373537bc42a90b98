"""The registry of checks: for each name the question, duration, requirements, written files and tolerance.

The module of a check has a docstring, which is its help text, and these functions:

- ``jobs(args)`` returns the jobs to run, often from a JSON list beside the module;
- ``measure(jobs, args)`` returns their measurements, made now or kept from before;
- ``table(measurements, args)`` returns the :class:`~calibrate.checks.outcome.Outcome`;
- ``options(parser)`` adds the check's own options, if it has any.

``args`` are the parsed command-line options. A module is imported only when its check runs, because each check needs
other packages.
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
    """One check.

    Attributes:
        module: full name of its module.
        question: the question that it answers, for ``--list``.
        takes: how long it takes.
        writes: the files that it writes, relative to the repository.
        tolerance: figure -> the largest value that passes. Without a tolerance the check always passes.
        needs: what must be installed.
        table_takes: how long ``--table-only`` takes; empty if the check keeps no measurements.
    """

    module: str
    question: str
    takes: str
    writes: tuple[str, ...] = ()
    tolerance: Mapping[str, float] = field(default_factory=dict)
    needs: str = "pip install -e '.[test]'; no GPU"
    table_takes: str = ""

    @property
    def code(self) -> ModuleType:
        """Its module, imported now."""
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

    def run(self, args: Namespace) -> Outcome:
        """Measures the check's jobs and returns the outcome."""
        return self.table(self.measure(self.jobs(args), args), args)


CHECKS = {
    "emulated": Check(
        "calibrate.checks.emulated", "do predictions match 166 measured jobs on the emulated H100?",
        takes="half an hour", table_takes="a minute", writes=("profiles/h100-80gb/emulated.jsonl",),
        tolerance={"peaks in another moment": 0, "jobs whose peaks differ": 0}),
    "verdicts": Check(
        "calibrate.checks.verdicts", "does a job survive at its predicted limit, and die just below?",
        takes="15 minutes", table_takes="at once", writes=("profiles/h100-80gb/verdicts.jsonl",),
        tolerance={"limits that were not found": 0}),
    "recipes": Check(
        "calibrate.checks.recipes", "do predictions match jobs of every recipe, engine, optimizer, precision and loss?",
        takes="an hour", table_takes="some minutes",
        writes=("profiles/evidence/recipes.jsonl", "profiles/pages/recipes.md"),
        tolerance={"allocated": 0.01, "reserved": 0.05}),
    "models": Check(
        "calibrate.checks.models",
        "do predictions match two jobs of every known model, and what do first predictions cost?",
        takes="an hour or two", table_takes="half an hour",
        writes=("profiles/evidence/models.jsonl", "profiles/pages/models.md"),
        tolerance={"allocated": 0.02}),
    "tensor_parallel": Check(
        "calibrate.checks.tensor_parallel", "do predictions match the first and last ranks of tensor-parallel jobs?",
        takes="an hour", table_takes="some minutes",
        writes=("profiles/evidence/tensor_parallel.jsonl", "profiles/pages/tensor_parallel.md"),
        tolerance={"requested": 0.01, "rows that cannot be read": 0}),
    "inference": Check(
        "calibrate.checks.inference", "do predictions match inference jobs, call by call?",
        takes="some minutes", table_takes="some minutes",
        writes=("profiles/evidence/inference.jsonl", "profiles/pages/inference.md"),
        tolerance=dict.fromkeys(("requested_bytes", "allocated_bytes", "reserved_bytes", "moments"), 0.01)),
    "maximum_load": Check(
        "calibrate.checks.maximum_load", "does the predicted maximum load survive, and one more die?",
        takes="some minutes", table_takes="at once",
        writes=("profiles/evidence/maximum_load.jsonl", "profiles/pages/maximum_load.md"),
        tolerance={"jobs that came out otherwise": 0}),
    "course": Check(
        "calibrate.checks.course", "do simulated courses over varied batches match emulated ones after every step?",
        takes="an hour", table_takes="some minutes",
        writes=("profiles/evidence/course.jsonl", "profiles/pages/course.md"),
        tolerance={"steps that differ": 0, "errors at another place": 0}),
    "loops": Check(
        "calibrate.checks.loops", "is what loops as people write them reserve in the range of predict --loops?",
        takes="ten minutes", table_takes="a minute",
        writes=("profiles/evidence/loops.jsonl", "profiles/pages/loops.md"), tolerance={"peaks out of the range": 0}),
    "remedies": Check(
        "calibrate.checks.remedies", "do remedies that are said to fit survive, and does the job without them die?",
        takes="half an hour", table_takes="at once", writes=("profiles/evidence/remedies.jsonl",),
        tolerance={"runs that came out otherwise": 0}),
    "plan": Check(
        "calibrate.checks.plan", "does the batch that a plan proposes survive, and a larger one die?",
        takes="a quarter of an hour", table_takes="at once", writes=("profiles/evidence/plan.jsonl",),
        tolerance={"plans that came out otherwise": 0}),
    "plan_agreement": Check(
        "calibrate.checks.plan_agreement", "does predict say of a plan's configurations what the plan says?",
        takes="ten minutes", table_takes="at once", writes=("profiles/evidence/plan_agreement.jsonl",),
        tolerance={"configurations that differ": 0, "configurations short of 200": 0}),
    "methods": Check(
        "calibrate.checks.methods", "do a plan's methods (data, sharded, tensor, combined) survive and die as planned?",
        takes="half an hour", table_takes="at once",
        writes=("profiles/evidence/methods.jsonl", "profiles/pages/methods.md"),
        tolerance={"jobs that came out otherwise": 0}),
    "stacks": Check(
        "calibrate.checks.stacks", "do predictions match jobs under other releases of PyTorch and transformers?",
        takes="an hour and 8 GB of disk", table_takes="at once",
        writes=("profiles/evidence/stacks.jsonl", "profiles/pages/stacks.md"),
        tolerance={"requested": 0.0001, "allocated": 0.0005, "reserved": 0.005}),
    "recovery": Check(
        "calibrate.checks.recovery", "does a calibration recover changes that were made to the emulated H100?",
        takes="20 minutes", writes=("profiles/evidence/recovery.json",),
        tolerance={"error of what was injected": 0.01, "groups that get worse": 0}),
    "device": Check(
        "calibrate.checks.device", "do a real GPU, its emulation and the predictions agree?",
        takes="a quarter of an hour on the GPU", table_takes="a minute",
        writes=("profiles/<gpu>/device/", "profiles/pages/device_<gpu>.md", "profiles/<gpu>/profile-device.json"),
        tolerance={"campaigns that are not done": 0},
        needs="pip install -e '.[calibrate]'; the GPU, or --device emulated"),
    "readers": Check(
        "calibrate.checks.readers",
        "do the readers of LLaMA-Factory, ms-swift, axolotl and TRL agree with the packages?",
        takes="a minute", writes=("profiles/evidence/readers.json",), tolerance={"differences": 0},
        needs="pip install --no-deps llamafactory ms-swift axolotl trl, and the packages that importing them needs"),
    "real_gpus": Check(
        "calibrate.checks.real_gpus", "do predictions match what other people measured on real GPUs?",
        takes="hours", table_takes="at once",
        writes=("profiles/evidence/real_gpus", "profiles/pages/real_gpus.md"),
        tolerance={"jobs said to fit that ran out of memory": 0},
        needs="pip install -e '.[test]'; the authors' checkouts for those rows that run their scripts"),
    "gemma_report": Check(
        "calibrate.checks.gemma_report", "do predictions match published QLoRA peaks on a real GPU?",
        takes="some minutes", writes=("profiles/pages/gemma_report.md",)),
    "liger_h100": Check(
        "calibrate.checks.liger_h100", "does the tracer match published measurements of operators on real H100s?",
        takes="some minutes", writes=("profiles/pages/liger_h100.md",),
        needs="pip install -e '.[trace]'; plain_ops_h100.csv"),
    "explore_page": Check(
        "calibrate.checks.explore_page",
        "does a page of peakcast explore give Python's answers, redraw fast and make no requests?",
        takes="some minutes", writes=("profiles/evidence/explore_page.json with --save",),
        tolerance={"faults": 0, "controls that redraw too slowly": 0}, needs="Chromium"),
    "speed": Check(
        "calibrate.checks.speed", "how long do predictions, plans and searches take, and how does that grow?",
        takes="a quarter of an hour on an idle machine", table_takes="at once",
        writes=("profiles/evidence/speed.jsonl", "profiles/pages/speed.md", "profiles/pages/speed.svg")),
    "walk": Check(
        "calibrate.checks.walk", "which package calls which, from command line to answer, and is any call upwards?",
        takes="ten seconds", writes=("profiles/pages/walk.md",), tolerance={"calls upwards": 0},
        needs="pip install -e ."),
    "report_page": Check(
        "calibrate.checks.report_page",
        "does the page of a regression report show its figures, without messages or requests?",
        takes="a minute", tolerance={"faults": 0}, needs="Chromium"),
}
