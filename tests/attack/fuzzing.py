"""Fuzzing: batches of inputs of every format, each batch in a process of its own."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.attack import programs
from tests.attack.formats import GRAMMARS
from tests.attack.programs import ROOT, Died
from tests.attack.worker import CURRENT

ALL_INPUTS = 220_000
"""Inputs of the whole attack. About half of them are distinct."""
INPUTS = 250
"""Inputs of a batch. Its process keeps some memory of each, so that a longer batch would come near the limit of one input."""
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""A directory in memory, if there is one: each input writes some files."""
SECONDS = 900
"""After so many seconds a batch is ended: that is a finding."""


@dataclass(frozen=True)
class Batch:
    """Inputs that a format and a seed decide."""

    grammar: str
    seed: int
    inputs: int = INPUTS

    @property
    def name(self) -> str:
        return f"{self.grammar}/{self.seed}"


def batches(inputs: int) -> list[Batch]:
    """Batches with so many inputs in all, the formats in turn, each with its share."""
    shares = sum(grammar.share for grammar in GRAMMARS.values())
    wanted = {name: -(-inputs * grammar.share // shares) for name, grammar in GRAMMARS.items()}
    found = [Batch(name, seed, min(INPUTS, count - INPUTS * seed)) for name, count in wanted.items()
             for seed in range(-(-count // INPUTS))]
    return sorted(found, key=lambda batch: batch.seed)


def share(grammar: str) -> int:
    """Batches of a format in the whole attack."""
    return sum(batch.grammar == grammar for batch in batches(ALL_INPUTS))


def run(batch: Batch, root: Path = ROOT, *more: str) -> dict[str, Any]:
    """Judges the inputs of a batch with the code in ``root``; ``more`` are options of the worker. A process that dies is
    a finding."""
    with tempfile.TemporaryDirectory(prefix="attack-", dir=MEMORY) as name:
        try:
            return programs.answer("worker", batch.grammar, name, batch.seed, batch.inputs, *more, root=root, seconds=SECONDS)
        except Died as error:
            problem = str(error)
        current = Path(name) / CURRENT
        last = json.loads(current.read_text()) if current.is_file() else None
    return {"inputs": 0, "refused": 0, "untraced": 0, "seconds": 0.0, "clock_seconds": 0.0, "bytes": 0, "problems": 1, "findings": [{"problem": problem, "input": last}], "digests": ""}


def again(findings: Iterator[dict[str, Any]]) -> list[tuple[str | None, dict[str, Any]]]:
    """Judges the inputs of findings again: what is wrong today, with each finding."""
    from tests.attack.inputs import Input
    from tests.attack.judge import judge
    from tests.attack.targets import TOKENIZED, imported, nothing_traced

    def problem(given: Input) -> str | None:
        tokenized = given.target in TOKENIZED or given.words[:1] == ("samples",)
        if tokenized:
            imported()
        with nothing_traced(tokenized):
            return judge(given, inside, tokenized).problem

    with tempfile.TemporaryDirectory(prefix="attack-") as name:
        inside = Path(name) / "inside"
        inside.mkdir()
        return [(problem(Input.from_json(found["input"])), found) for found in findings if found["input"]]
