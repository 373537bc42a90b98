"""Run random sequences through PyTorch's caching allocator on the emulated H100 and through the simulation.

    pip install -e '.[test]'
    python scripts/check.py allocator                    # 12,000 sequences, about two minutes on two cores
    python scripts/check.py allocator --sequences 100000 --first 50000

After every event requested, allocated, active, reserved and inactive split bytes, segments, retries, out-of-memory
errors, peaks and the address must be equal, after every tenth each block. No GPU is needed. The summary goes to
profiles/evidence/allocator_sequences.json; a difference is printed with its shortest sequence.
"""

from __future__ import annotations

import json
import platform
from argparse import ArgumentParser, Namespace
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from calibrate.checks.directories import EVIDENCE
from calibrate.checks.outcome import Outcome
from tests.calibrate.allocator_pair import COMPLETIONS, run
from tests.calibrate.allocator_sequences import case

PAGE = EVIDENCE / "allocator_sequences.json"


@dataclass(frozen=True)
class Sequences:
    """Some of the numbered sequences, with one completion of events."""

    completion: str
    first: int
    count: int


@dataclass(frozen=True)
class Found:
    """Counts by completion, and what differed."""

    rows: dict[str, dict[str, int]]
    differences: list[dict[str, Any]]


def options(parser: ArgumentParser) -> None:
    parser.add_argument("--sequences", type=int, default=12_000)
    parser.add_argument("--first", type=int, default=1_000, help="number of the first one; the tests run 0 to 599")


def jobs(args: Namespace) -> list[Sequences]:
    each = -(-args.sequences // len(COMPLETIONS))
    return [Sequences(completion, args.first + number * each, each) for number, completion in enumerate(COMPLETIONS)]


def measure(jobs: list[Sequences], args: Namespace) -> Found:
    """Both sides of each, compared after every event."""
    found = Found({}, [])
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("sequences", total=sum(one.count for one in jobs))
        for one in jobs:
            sums: Counter[str] = Counter()
            for outcome in run(one.completion, one.first, one.count):
                sums.update(sequences=1, events=outcome["events"], out_of_memory=outcome["ooms"],
                            retries=outcome["retries"], differences="difference" in outcome)
                sums.update(_settings(outcome["seed"]))
                if "difference" in outcome:
                    found.differences.append({"completion": one.completion, **outcome})
                    progress.console.print(outcome["difference"], outcome["case"], markup=False)
                progress.advance(bar)
            found.rows[one.completion] = dict(sums)
    return found


def table(found: Found, args: Namespace) -> Outcome:
    """How often each setting was played, and what differed."""
    record = {"measured_on": "emulated", "gpu": "h100-80gb", "date": datetime.now(timezone.utc).date().isoformat(),
              "command": f"python scripts/check.py allocator --sequences {args.sequences} --first {args.first}",
              "torch": version("torch"), "python": platform.python_version(), "by_completion": found.rows,
              "differences": found.differences}
    return Outcome({"differences": len(found.differences)}, {PAGE: json.dumps(record, indent=1) + "\n"},
                   (_shown(found.rows),))


def _settings(seed: int) -> list[str]:
    """What a sequence sets, for counting."""
    sequence = case(seed)
    keys = [part.split(":")[0] for part in sequence.settings.split(",") if part[:1].isalpha()]
    found = [f"with {key}" for key in keys] or ["with defaults"]
    found += ["with a limited driver"] * (sequence.room_bytes is not None)
    found += ["with a memory fraction"] * (sequence.fraction < 1)
    return found + ["with settings changed"] * any(event[0] == "settings" for event in sequence.events)


def _shown(rows: dict[str, dict[str, int]]) -> Table:
    table = Table("", *rows, "together")
    for name in sorted({name for row in rows.values() for name in row}, key=lambda name: (name[:5] == "with ", name)):
        counts = [row.get(name, 0) for row in rows.values()]
        table.add_row(name, *(f"{count:,}" for count in (*counts, sum(counts))))
    return table
