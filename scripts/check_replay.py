#!/usr/bin/env python3
"""Answer the requests of the replay set again, and compare with what was recorded.

    python scripts/check_replay.py                       # those that shipped formulas answer (minutes)
    python scripts/check_replay.py --all                 # also those that trace or run jobs (half an hour on two cores)
    python scripts/check_replay.py --only 'plan/*'
    python scripts/check_replay.py --all --record        # keep today's answers, and print every number that moved

Needs what the tests need, no GPU. A request is a line of tests/replay/requests.jsonl. Answers are recorded in
tests/replay/answers.jsonl.xz, also those of a run that was interrupted.

exit codes: 0 every answer is as recorded, 1 an answer differs
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from fnmatch import fnmatch
from pathlib import Path

from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.replay import replaying  # noqa: E402
from tests.replay.replaying import Answer, Request  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also requests that trace or run jobs")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="names of requests, such as 'plan/*'")
    parser.add_argument("--missing", action="store_true", help="only requests without a recorded answer")
    parser.add_argument("--record", action="store_true", help="keep today's answers")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="at a time; default: a core each")
    arguments = parser.parse_args()
    before = replaying.recorded()
    wanted = [request for request in replaying.requests().values()
              if fnmatch(request.name, arguments.only) and (arguments.all or request.layer == "test")
              and not (arguments.missing and request.name in before)]
    answers: dict[str, Answer] = {}
    try:
        with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as workers:
            _ask(workers, wanted, answers)
    finally:
        if arguments.record:
            replaying.record(before | answers)
    differ = [name for name in answers if _tell(name, before.get(name), answers[name])]
    print(f"{len(answers)} requests, {len(differ)} answered otherwise than recorded")
    return 0 if arguments.record or not differ else 1


def _ask(workers: ProcessPoolExecutor, wanted: list[Request], answers: dict[str, Answer]) -> None:
    running = {workers.submit(replaying.answer, request): request.name for request in wanted}
    for done in track(as_completed(running), "Asking", total=len(running), console=Console(stderr=True)):
        answers[running[done]] = done.result()


def _tell(name: str, before: Answer | None, after: Answer) -> bool:
    """Prints what differs, numbers first."""
    if before is None:
        print(f"{name}: new")
        return False
    lines = [f"  {layer}: {line}" for layer in ("numbers", "wording")
             for line in replaying.differences(getattr(before, layer), getattr(after, layer))]
    print(*([name, *lines] if lines else []), sep="\n", end="\n" if lines else "")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
