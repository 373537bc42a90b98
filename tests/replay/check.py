"""Repeat the requests of the replay set and compare the answers with the recorded ones.

    python scripts/check.py replay                       # those that shipped formulas answer (minutes)
    python scripts/check.py replay --all                 # also those that trace or run jobs (half an hour on two cores)
    python scripts/check.py replay --only 'plan/*'
    python scripts/check.py replay --all --record        # keep today's answers, and print every number that moved

Needs what the tests need, no GPU. A request is a line of tests/replay/requests.jsonl. Answers are recorded in
tests/replay/answers.jsonl.xz, also those of a run that was interrupted.
"""

from __future__ import annotations

import multiprocessing
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatch

from rich.console import Console
from rich.progress import track

from calibrate.checks.outcome import Outcome
from tests.replay import replaying
from tests.replay.replaying import Answer, Request


@dataclass(frozen=True)
class Asked:
    """Answers by the names of their requests: those that were recorded, and today's."""

    before: dict[str, Answer]
    after: dict[str, Answer]


def options(parser: ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="also requests that trace or run jobs")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="names of requests, such as 'plan/*'")
    parser.add_argument("--missing", action="store_true", help="only requests without a recorded answer")
    parser.add_argument("--record", action="store_true", help="keep today's answers")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="at a time; default: a core each")


def jobs(given: Namespace) -> list[Request]:
    known = replaying.recorded() if given.missing else {}
    return [request for request in replaying.requests().values()
            if fnmatch(request.name, given.only) and (given.all or request.layer == "test")
            and request.name not in known]


def measure(jobs: list[Request], given: Namespace) -> Asked:
    """Today's answers; those of an interrupted run are kept, too."""
    asked = Asked(replaying.recorded(), {})
    try:
        with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as workers:
            _ask(workers, jobs, asked.after)
    finally:
        if given.record:
            replaying.record(asked.before | asked.after)
    return asked


def _ask(workers: ProcessPoolExecutor, wanted: list[Request], answers: dict[str, Answer]) -> None:
    running = {workers.submit(replaying.answer, request): request.name for request in wanted}
    for done in track(as_completed(running), "Asking", total=len(running), console=Console(stderr=True)):
        answers[running[done]] = done.result()


def table(asked: Asked, given: Namespace) -> Outcome:
    """Every answer that differs, numbers first; one that is recorded anew is right."""
    shown, differ = [], 0
    for name, answer in asked.after.items():
        if name not in asked.before:
            shown.append(f"{name}: new")
            continue
        lines = list(_differences(asked.before[name], answer))
        differ += bool(lines)
        shown += [name, *lines] if lines else []
    shown.append(f"{len(asked.after)} requests, {differ} answered otherwise than recorded")
    return Outcome({} if given.record else {"answers that differ": differ}, shown=tuple(shown))


def _differences(before: Answer, after: Answer) -> Iterator[str]:
    for layer in ("numbers", "wording"):
        for line in replaying.differences(getattr(before, layer), getattr(after, layer)):
            yield f"  {layer}: {line}"
