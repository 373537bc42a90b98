"""A predictable job for each model that a plan's settings train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from predictor.common.errors import InputError
from predictor.formula import store
from predictor.jobs.training_job import Job
from predictor.plan import cost
from predictor.plan.background import Background
from predictor.plan.memory import Memory
from predictor.plan.minimum_states import least_bytes
from predictor.plan.setting import Setting
from predictor.plan.space import DATA, NOT_DEEPSPEED, TENSOR, Space

Group = tuple[int, str, bool, Any]
"""What the facts of a model depend on: tensor parallelism, recipe, quantization, and picture sizes."""


class Examples:
    """A predictable job for each model that trains. The cost estimate takes facts from it."""

    def __init__(self, around: Space, memory: Memory, background: Background) -> None:
        self.space, self.memory, self.background = around, memory, background
        self.jobs: dict[Group, Job | InputError] = {}
        self.settings: dict[Group, list[Setting]] = {}
        for setting in around.settings:
            self.settings.setdefault(self._group(setting), []).append(setting)
        self.refused: list[tuple[Setting, str]] = []
        self.job = self._any()

    def _any(self) -> Job:
        """The job of the first setting that has one.

        Raises:
            InputError: none has.
        """
        for settings in self.settings.values():
            with suppress(InputError):
                return self._of(settings[0])
        raise nothing(self.refused)

    @property
    def tensor_parallel(self) -> bool:
        """Whether any job uses tensor parallelism."""
        return any(degree > 1 and isinstance(job, Job) for (degree, *_), job in self.jobs.items())

    def known(self, setting: Setting) -> tuple[Callable[..., cost.Estimate], int]:
        """The cost estimate of a setting, and the bytes that it needs at least.

        The estimate is a function of arrays of batch, accumulation and sequence.
        """
        job, whole = self._of(setting), None
        if self._group(setting)[0] > 1:
            alone = {"engine": "torch", "ddp": None, **NOT_DEEPSPEED, DATA: 1, TENSOR: 1}
            whole = self._of(replace(setting, keys={**setting.keys, **alone}))
        workload = setting.at_any_shape.fill(images_per_sample=job.workload.images_per_sample)
        model = cost.Model.of(job.formula.facts, whole.formula.facts if whole else None)
        return partial(cost.estimate, workload, model, job.gpu), least_bytes(workload, job.formula.facts)

    def _of(self, setting: Setting) -> Job:
        group = self._group(setting)
        if group not in self.jobs:
            self.jobs[group] = self._first(self.settings.get(group, [setting]))
        job = self.jobs[group]
        if isinstance(job, InputError):
            raise job
        return job

    def _first(self, settings: Sequence[Setting]) -> Job | InputError:
        """The job of the first setting that needs no trace, else of the first that can be traced, else the reason why
        none can."""
        problem: InputError | None = None
        for traces in (False, True):
            if traces:
                self.background.warm()
            problem, refused = None, []
            for setting in settings:
                try:
                    return self.memory.example(setting, trace=traces)
                except InputError as error:
                    problem = problem or error
                    refused.append((setting, str(error)))
            self.refused += refused if traces else ()
        assert problem is not None  # settings are never empty
        return problem

    @staticmethod
    def _group(setting: Setting) -> Group:
        workload = setting.at_any_shape
        return workload.tensor_parallel_size, workload.recipe, bool(workload.quantization), workload.image_size


def nothing(left_out: Sequence[tuple[Setting, str]]) -> InputError:
    """The reason why no setting can be predicted. A reason of some settings only is not the user's mistake."""
    reasons = dict.fromkeys(reason for _, reason in left_out)
    (setting, reason), count = left_out[0], len(left_out)
    if store.NO_FORMULA in reasons:
        return InputError(f"model {setting.keys['model']}: there is no formula yet for any configuration that could be "
                          "planned, and --no-trace forbids to trace one: leave out --no-trace (a trace needs torch)")
    if len(reasons) == 1:
        return InputError(reason)
    return InputError(f"none of {count} configurations can be predicted; the first, {setting.name}: {reason}")
