#!/usr/bin/env python3
"""Run a check: jobs and what is said of them, beside measurements. By hand, not a test.

    python scripts/check.py --list                   # every check: what it asks, how long it takes, what it writes
    python scripts/check.py recipes --help
    python scripts/check.py recipes                  # what is not measured yet, then the table
    python scripts/check.py recipes --table-only     # the table of what is saved
    python scripts/check.py device --gpu h200 --time-limit 9

What was measured is kept, and not measured again: an interrupted check goes on where it was.

exit codes: 0 the tolerance holds, 1 it is broken, 2 bad input
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the repository need not be installed, and some checks are the tests'

from rich.console import Console  # noqa: E402

from calibrate.checks import registry  # noqa: E402
from calibrate.checks.outcome import Outcome  # noqa: E402
from calibrate.checks.registry import Check  # noqa: E402
from predictor.common.errors import InputError  # noqa: E402
from predictor.common.files import write_whole  # noqa: E402
from predictor.common.suggestions import nearest, show  # noqa: E402

CHECKS = registry.CHECKS | {
    "allocator": Check(
        "tests.calibrate.allocator_check", "random sequences through PyTorch's allocator and through the simulation",
        takes="two minutes", writes=("profiles/evidence/allocator_sequences.json",), tolerance={"differences": 0}),
    "replay": Check(
        "tests.replay.check", "are the requests of the replay set answered as they were recorded?",
        takes="minutes; with --all half an hour", writes=("tests/replay/answers.jsonl.xz with --record",),
        tolerance={"answers that differ": 0}),
}
"""With those that need the tests' modules."""
BAD_INPUT = 2
WIDTH = 220
"""Of tables, in characters."""


def main(words: list[str]) -> int:
    try:
        if not words or words[0] in ("-h", "--help"):
            print(__doc__)
            return 0
        if words == ["--list"]:
            print("\n".join(listing()))
            return 0
        name, *rest = words
        if name not in CHECKS:
            raise InputError(f"unknown check {show(name)}{nearest(name, CHECKS)}: --list shows all")
        return run(name, arguments(name, rest))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def listing() -> Iterator[str]:
    """What each check asks, how long it takes, and what it writes."""
    for name, check in CHECKS.items():
        table = f"; --table-only: {check.table_takes}" if check.table_takes else ""
        yield f"{name:<17}{check.asks}"
        yield f"{'':<17}takes {check.takes}{table}; writes {', '.join(check.writes) or 'nothing'}"


def arguments(name: str, words: list[str]) -> Namespace:
    """The options of a check."""
    check = CHECKS[name]
    judged = ", ".join(f"{figure} at most {most:g}" for figure, most in check.tolerance.items()) or "nothing"
    parser = ArgumentParser(
        prog=f"check.py {name}", description=check.code.__doc__, formatter_class=RawDescriptionHelpFormatter,
        epilog=f"takes: {check.takes}\nneeds: {check.needs}\n"
               f"writes: {', '.join(check.writes) or 'nothing'}\njudged by: {judged}\n"
               "exit codes: 0 the tolerance holds, 1 it is broken, 2 bad input")
    check.options(parser)
    if check.table_takes:
        parser.add_argument("--table-only", action="store_true", help="measure nothing")
    return parser.parse_args(words)


def run(name: str, given: Namespace) -> int:
    """Writes and shows what came out; 1 if a tolerance is broken."""
    outcome = CHECKS[name].run(given)
    for path, text in outcome.written.items():
        write_whole(str(path), text.encode())
        print(f"written: {path}", file=sys.stderr)
    tell(outcome)
    broken = outcome.broken(CHECKS[name].tolerance)
    for line in broken:
        print(f"broken: {line}", file=sys.stderr)
    return int(bool(broken))


def tell(outcome: Outcome) -> None:
    """Tables as they are, and texts without markup."""
    console = Console(width=WIDTH)
    for part in outcome.shown:
        print(part) if isinstance(part, str) else console.print(part)
    if outcome.report is not None:
        from calibrate.report import regression

        regression.report(console, outcome.report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
