#!/usr/bin/env python3
"""Run a check by hand: compare predictions with measured jobs or with other packages. Checks are not tests.

    python scripts/check.py --list                   # every check: its question, duration and files
    python scripts/check.py recipes --help
    python scripts/check.py recipes                  # measures the missing jobs, then makes the table
    python scripts/check.py recipes --table-only     # makes the table of the saved results
    python scripts/check.py device --gpu h200 --time-limit 9

Measurements are kept and not made again, so an interrupted check goes on where it stopped.

exit codes: 0 the tolerance holds, 1 it is broken, 2 bad input, 130 interrupted
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
from predictor.common.suggestions import nearest, quoted  # noqa: E402

CHECKS = registry.CHECKS | {
    "allocator": Check(
        "tests.calibrate.allocator_check", "does the simulated allocator match PyTorch's on random sequences?",
        takes="two minutes", writes=("profiles/evidence/allocator_sequences.json",), tolerance={"differences": 0}),
    "long_tests": Check(
        "tests.long_tests", "do the tests pass that the test command leaves out because they are long?",
        takes="a quarter of an hour on two cores", writes=("profiles/evidence/long_tests.json",),
        tolerance={"tests that did not pass": 0, "entries without a test": 0}),
    "replay": Check(
        "tests.replay.check", "do the requests of the replay set still get the recorded answers?",
        takes="minutes; with --all half an hour", writes=("tests/replay/answers.jsonl.xz with --record",),
        tolerance={"answers that differ": 0}),
    "attack": Check(
        "tests.attack.check", "does any input end in a traceback, any relation fail, any kill change a result?",
        takes="hours; --minutes M: as much as fits", table_takes="at once",
        writes=("profiles/evidence/attack/<date>.jsonl", "profiles/pages/attack.md"),
        tolerance=dict.fromkeys(("findings among inputs", "violated relations", "kills with another end",
                                 "seeded bugs that were not found", "what was tried too little"), 0)),
}
"""The registry, and the checks that need the tests' modules."""
BAD_INPUT = 2
INTERRUPTED = 128 + 2
WIDTH = 220
"""Width of tables in characters."""


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
            raise InputError(f"unknown check {quoted(name)}{nearest(name, CHECKS)}: --list shows all")
        return run(name, arguments(name, rest))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:  # what was measured is kept
        return INTERRUPTED


def listing() -> Iterator[str]:
    """Two lines for each check: its question, then its duration and the files that it writes."""
    for name, check in CHECKS.items():
        table = f"; --table-only: {check.table_takes}" if check.table_takes else ""
        yield f"{name:<17}{check.question}"
        yield f"{'':<17}takes {check.takes}{table}; writes {', '.join(check.writes) or 'nothing'}"


def arguments(name: str, words: list[str]) -> Namespace:
    """Parses the options of a check."""
    check = CHECKS[name]
    judged = ", ".join(f"{figure} at most {most:g}" for figure, most in check.tolerance.items()) or "nothing"
    parser = ArgumentParser(
        prog=f"check.py {name}", description=check.code.__doc__, formatter_class=RawDescriptionHelpFormatter,
        epilog=f"takes: {check.takes}\nneeds: {check.needs}\n"
               f"writes: {', '.join(check.writes) or 'nothing'}\njudged by: {judged}\n"
               "exit codes: 0 the tolerance holds, 1 it is broken, 2 bad input")
    check.options(parser)
    if check.table_takes:
        parser.add_argument("--table-only", action="store_true",
                            help="measure nothing: make the table of the saved results")
    return parser.parse_args(words)


def run(name: str, args: Namespace) -> int:
    """Runs a check, writes its files and shows its tables. Returns the exit code: 1 if a tolerance is broken."""
    outcome = CHECKS[name].run(args)
    for path, text in outcome.written.items():
        write_whole(str(path), text.encode())
        print(f"written: {path}", file=sys.stderr)
    display(outcome)
    broken = outcome.broken(CHECKS[name].tolerance)
    for line in broken:
        print(f"broken: {line}", file=sys.stderr)
    return int(bool(broken))


def display(outcome: Outcome) -> None:
    """Prints tables through rich, and texts without markup."""
    console = Console(width=WIDTH)
    for part in outcome.shown:
        print(part) if isinstance(part, str) else console.print(part)
    if outcome.report is not None:
        from calibrate.report import regression

        regression.report(console, outcome.report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
