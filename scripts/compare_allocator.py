#!/usr/bin/env python3
"""Run random sequences through PyTorch's caching allocator on the emulated H100 and through the simulation.

    pip install -e '.[test]'
    python scripts/compare_allocator.py                    # 12,000 sequences, about two minutes on two cores
    python scripts/compare_allocator.py --sequences 100000 --first 50000

After every event requested, allocated, active, reserved and inactive split bytes, segments, retries, out-of-memory
errors, peaks and the address must be equal, after every tenth each block. No GPU is needed. The summary goes to
profiles/checks/allocator_sequences.json; a difference is printed with its shortest sequence, and ends with 1.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections import Counter
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the sequences are those of the tests

from tests.calibrate.allocator_pair import COMPLETIONS, run  # noqa: E402
from tests.calibrate.allocator_sequences import case  # noqa: E402

TARGET = ROOT / "profiles" / "checks" / "allocator_sequences.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=12_000)
    parser.add_argument("--first", type=int, default=1_000, help="number of the first one; the tests run 0 to 599")
    arguments = parser.parse_args()
    console, rows, differences = Console(), {}, []
    each = -(-arguments.sequences // len(COMPLETIONS))
    with Progress(console=console) as progress:
        bar = progress.add_task("sequences", total=each * len(COMPLETIONS))
        for number, completion in enumerate(COMPLETIONS):
            sums: Counter[str] = Counter()
            for outcome in run(completion, arguments.first + number * each, each):
                sums.update(sequences=1, events=outcome["events"], out_of_memory=outcome["ooms"],
                            retries=outcome["retries"], differences="difference" in outcome)
                sums.update(_settings(outcome["seed"]))
                if "difference" in outcome:
                    differences.append({"completion": completion, **outcome})
                    progress.console.print(outcome["difference"], outcome["case"], markup=False)
                progress.advance(bar)
            rows[completion] = dict(sums)
    _show(console, rows)
    record = {"measured_on": "emulated", "gpu": "h100-80gb", "date": datetime.now(timezone.utc).date().isoformat(),
              "command": f"python scripts/compare_allocator.py --sequences {arguments.sequences} "
                         f"--first {arguments.first}",
              "torch": version("torch"), "python": platform.python_version(), "by_completion": rows,
              "differences": differences}
    TARGET.write_text(json.dumps(record, indent=1) + "\n")
    console.print(f"saved to {TARGET.relative_to(ROOT)}")
    return 1 if differences else 0


def _settings(seed: int) -> list[str]:
    """What a sequence sets, for counting."""
    sequence = case(seed)
    keys = [part.split(":")[0] for part in sequence.settings.split(",") if part[:1].isalpha()]
    found = [f"with {key}" for key in keys] or ["with defaults"]
    found += ["with a limited driver"] * (sequence.room_bytes is not None)
    found += ["with a memory fraction"] * (sequence.fraction < 1)
    return found + ["with settings changed"] * any(event[0] == "settings" for event in sequence.events)


def _show(console: Console, rows: dict[str, dict[str, int]]) -> None:
    table = Table("", *rows, "together")
    for name in sorted({name for row in rows.values() for name in row}, key=lambda name: (name[:5] == "with ", name)):
        counts = [row.get(name, 0) for row in rows.values()]
        table.add_row(name, *(f"{count:,}" for count in (*counts, sum(counts))))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
