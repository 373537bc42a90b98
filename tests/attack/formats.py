"""Every format of an input that the attack makes, with its share of all inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import hypothesis
from hypothesis import strategies as st

from predictor import readers
from tests.attack import bombs, conversations, documents, predicted_jobs, recorded, scripts
from tests.attack.inputs import Input


class Grammar(NamedTuple):
    """A format: a function that makes the strategy for its inputs, and how often it is taken."""

    strategy: Callable[[], st.SearchStrategy[Input]]
    share: int


GRAMMARS: dict[str, Grammar] = {
    "workload": Grammar(documents.workload_files, 4),
    "job": Grammar(predicted_jobs.predicted_jobs, 1),
    "options": Grammar(documents.option_lines, 1),
    "deepspeed": Grammar(documents.deepspeed_files, 3),
    **{f"{name} file": Grammar(partial(documents.framework_files, name), 2) for name in readers.FORMATS if name != "deepspeed"},
    **{f"{name} command": Grammar(partial(scripts.command_lines, name), 2) for name in scripts.PROGRAMS},
    "shell": Grammar(scripts.scripts, 8),
    "accelerate": Grammar(documents.accelerate_files, 4),
    "hostfile": Grammar(documents.hostfiles, 1),
    "snapshot": Grammar(recorded.snapshots, 3),
    "bomb": Grammar(bombs.snapshots, 1),
    "formula": Grammar(recorded.formulas, 2),
    "learned formula": Grammar(recorded.learned_formulas, 1),
    "profile": Grammar(recorded.profiles, 1),
    "record": Grammar(recorded.records, 1),
    "campaign": Grammar(partial(recorded.lines, "h100-80gb/campaign.jsonl", "campaign"), 1),
    "rows": Grammar(partial(recorded.lines, "evidence/recipes.jsonl", "measurements"), 1),
    "verdicts": Grammar(partial(recorded.lines, "h100-80gb/verdicts.jsonl", "measurements"), 1),
    "gates": Grammar(recorded.gates, 1),
    "samples": Grammar(recorded.samples, 2),
    "dataset": Grammar(conversations.datasets, 1),
    "parquet": Grammar(conversations.parquet, 2),
    "picture": Grammar(conversations.pictures, 1),
    "tokens": Grammar(conversations.tokens, 1),
    "conversation": Grammar(recorded.conversations, 1),
    "log": Grammar(recorded.logs, 2),
    "model": Grammar(recorded.model_files, 2),
}
"""Name of a format -> its grammar."""
WITH_READERS = [name for name in GRAMMARS if name.endswith((" file", " command")) or name == "shell"]
"""Formats of training frameworks, their command lines, and scripts."""


def each(grammar: str, seed: int, inputs: int, do: Callable[[Input], None]) -> None:
    """Does something with each of some inputs, which a format and a seed decide."""
    @hypothesis.seed(seed)
    @hypothesis.settings(max_examples=inputs, database=None, deadline=None, phases=[hypothesis.Phase.generate],
                         suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(GRAMMARS[grammar].strategy())
    def run(one: Input) -> None:
        do(one)

    run()
