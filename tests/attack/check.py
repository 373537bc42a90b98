"""Attack peakcast: fuzzed inputs of every format, relations between predictions, kills, and seeded bugs.

    python scripts/check.py attack                                   # all of it, hours; goes on where it stopped
    python scripts/check.py attack --minutes 30                      # as much as fits, and its page
    python scripts/check.py attack --part fuzz --inputs 5000 --only shell
    python scripts/check.py attack --part seeded                     # each of the known bugs, seeded in a copy
    python scripts/check.py attack --again                           # judges the kept findings with today's code

Needs what the tests need, and no GPU. Results are kept in profiles/evidence/attack/, a file for each date: what a file
has is not run again. The page profiles/pages/attack.md is about the newest of them.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from calibrate.checks.directories import EVIDENCE, PAGES
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import append, bar, lines
from predictor.common.errors import InputError
from predictor.version import VERSION
from tests.attack import fuzzing, page, programs, seeded
from tests.attack.answers import PAGE_ROUNDS
from tests.attack.disturbances import DISTURBANCES
from tests.attack.formats import WITH_READERS
from tests.attack.kills import PLAN
from tests.attack.programs import ROOT
from tests.attack.relations import KINDS
from tests.attack.rounds import Round

RESULTS = EVIDENCE / "attack"
PARTS = ("fuzz", "relations", "kills", "seeded", "branches")
ROUNDS = {"prediction": 20, "shipped": 11, "page": PAGE_ROUNDS, "reader": 4, "adapters": 6, "fresh trace": 11, "framework": 60, "optimizer states": 20}
"""Kind of round of relations -> how many make one row."""
KILLS = 6
"""Kills of a row."""
SHARES = {"prediction": 400, "shipped": 43, "page": 24, "reader": 60, "adapters": 36, "fresh trace": 55, "framework": 120, "optimizer states": 20}
"""Kind of round -> how many there are for 20,000 relations."""
BRANCH_INPUTS = 200
"""Inputs of each format of :data:`OF_READERS` of which the reached branches are counted: coverage.py makes them slow."""
OF_READERS = [*WITH_READERS, "accelerate", "hostfile", "deepspeed"]


@dataclass(frozen=True)
class Work:
    """One row of the results: its part and name, and what makes it."""

    part: str
    name: str
    make: Callable[[], dict[str, Any]]


def options(parser: ArgumentParser) -> None:
    parser.add_argument("--part", choices=PARTS, action="append", help="one part (repeat for further parts); default: all")
    parser.add_argument("--inputs", type=int, default=fuzzing.ALL_INPUTS, metavar="N",
                        help=f"fuzzed inputs, not all of them distinct; default: {fuzzing.ALL_INPUTS:,}")
    parser.add_argument("--relations", type=int, default=20_000, metavar="N", help="relations, about; default: 20,000")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names of formats, rounds, kills or bugs")
    parser.add_argument("--minutes", type=float, metavar="M", help="start nothing after so many minutes")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep the results there; default: today's file")
    parser.add_argument("--again", action="store_true", help="only judge again the inputs of kept findings")


def file_of(args: Namespace) -> Path:
    """Where the results are kept: today's file, or with ``--table-only`` and ``--again`` the newest."""
    if args.results is not None:
        return args.results
    kept = sorted(RESULTS.glob("*.jsonl"))
    return kept[-1] if kept and (args.table_only or args.again) else RESULTS / f"{date.today().isoformat()}.jsonl"


def jobs(args: Namespace) -> list[Work]:
    """All work that was asked for, in an order in which each part has its turn."""
    makers = {"fuzz": _fuzz, "relations": _relations, "kills": _kills, "seeded": _seeded, "branches": _branches}
    parts = [[work for work in makers[part](args) if fnmatch(work.name.partition("/")[0], args.only)] for part in args.part or PARTS]
    turns = sorted((number / max(len(part), 1), index, number) for index, part in enumerate(parts) for number in range(len(part)))
    return [parts[index][number] for _, index, number in turns]


def _fuzz(args: Namespace) -> Iterator[Work]:
    for batch in fuzzing.batches(args.inputs):
        yield Work("fuzz", batch.name, lambda batch=batch: fuzzing.run(batch))


def _relations(args: Namespace) -> Iterator[Work]:
    for kind in KINDS:
        rounds, size = max(1, round(SHARES[kind] * args.relations / 20_000)), ROUNDS[kind]
        for first in range(0, rounds, size):
            words = ("relations", kind, first, min(size, rounds - first))
            yield Work("relations", f"{kind}/{first}", lambda words=words: _ended(*words))


def _kills(args: Namespace) -> Iterator[Work]:
    for scene, how, count in PLAN:
        for first in range(0, count, KILLS):
            words = ("kills", scene, how.name, first, min(KILLS, count - first))
            yield Work("kills", f"{scene}/{how.name}/{first}", lambda words=words: _ended(*words))
    for name in DISTURBANCES:
        yield Work("kills", name, lambda name=name: _ended("disturbances", name))
    yield Work("kills", "valid_files", lambda: _ended("valid_files"))


def _ended(*words: object) -> dict[str, Any]:
    """What a part of the attack found; if its process died, that is the finding."""
    module = words[0]
    try:
        found = programs.answer(*words)
    except programs.Died as error:
        if module == "relations":
            found = Round()
            found.check("rounds end", False, error=str(error))
            return {"checked": dict(found.checked), "violations": found.violations, "models": [], "unanswered": []}
        return {"disturbance": [f"no answer: {error}"]}
    return {"kills": found} if module == "kills" else found


def _seeded(args: Namespace) -> Iterator[Work]:
    for bug in seeded.BUGS:
        yield Work("seeded", bug.name, lambda bug=bug: seeded.found(bug))


def _branches(args: Namespace) -> Iterator[Work]:
    yield Work("branches", "readers", branches)


def branches() -> dict[str, Any]:
    """The share of the readers' branches that some inputs of each of their formats reach."""
    from tests.attack import branches as measured

    with tempfile.TemporaryDirectory(prefix="attack-") as name:
        for number, grammar in enumerate(OF_READERS):
            batch = fuzzing.Batch(grammar, 0, BRANCH_INPUTS)
            fuzzing.run(batch, ROOT, "--branches", f"{name}/{number}")
        found = measured.of([path for path in Path(name).iterdir() if path.is_file()])
    return {"inputs": BRANCH_INPUTS * len(OF_READERS), "of": measured.OF, "branches": found.all, "reached": found.reached, "lines": found.lines,
            "lines_reached": found.lines_reached}


def measure(work: list[Work], args: Namespace) -> list[dict[str, Any]]:
    """All rows of the results, new ones last."""
    file = file_of(args)
    rows = lines(file)
    if args.table_only:
        return rows
    if args.again:
        return _judged_again(rows)
    end = None if args.minutes is None else time.monotonic() + 60 * args.minutes
    file.parent.mkdir(parents=True, exist_ok=True)
    for one in bar(work, "Attacking"):
        asked = args.inputs if one.part == "fuzz" else None
        if (one.part, one.name, asked) in map(_identity, lines(file)):  # made before, or by another process meanwhile
            continue
        if end is not None and time.monotonic() > end:
            break
        row = {"part": one.part, "name": one.name, "inputs_asked": asked, "date": date.today().isoformat(), "version": VERSION, **one.make()}
        append(file, row)
        for line in page.problems(row):
            print(f"{one.part} {one.name}: {line[:600]}", file=sys.stderr)
    return lines(file)


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["part"], row["name"], row.get("inputs_asked")


def _judged_again(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [finding for row in rows for finding in row.get("findings", ()) if finding["input"]]
    if not found:
        raise InputError("no finding is kept: nothing to judge again")
    findings = [{"problem": problem, "input": before["input"]} for problem, before in fuzzing.again(iter(found)) if problem]
    return [{"part": "fuzz", "name": "again", "inputs": len(found), "refused": 0, "untraced": 0, "seconds": 0.0, "clock_seconds": 0.0, "bytes": 0, "problems": len(findings),
             "findings": findings, "digests": ""}]


def table(rows: list[dict[str, Any]], args: Namespace) -> Outcome:
    """What was run and found, and the page of it."""
    rows = list({_identity(row): row for row in rows}.values())  # two processes may have made the same one
    summary = page.Summary.of(rows)
    ours = args.results is None and not args.again
    shown = [json.dumps(line, ensure_ascii=False)[:1500] for row in rows for line in page.problems(row)]
    short = [] if args.part or args.only != "*" or not ours else summary.too_few()
    return Outcome(summary.figures() | {"what was tried too little": len(short)}, {PAGES / "attack.md": page.text(summary)} if ours else {},
                   (*summary.lines(), *(f"tried too little: {line}" for line in short), *shown[:50]))
