"""Predict what other people measured on real GPUs, and compare (profiles/evidence/real_gpus).

    pip install -e '.[test]'
    python scripts/check.py real_gpus                           # predicts what is missing, then makes the page
    python scripts/check.py real_gpus --table-only              # makes the page of the saved predictions
    python scripts/check.py real_gpus --checkouts DIRECTORY     # also runs the authors' own scripts, which are there
    python scripts/check.py real_gpus --only Wedsonlin --checkouts DIRECTORY --recordings DIRECTORY
    python scripts/check.py real_gpus --only GAOYUE --checkouts DIRECTORY --orders 20

No GPU is needed. A row is predicted once: its prediction is kept with a fingerprint of the reconstruction, and made
again only if that changes. Rows that run a script of their author's need a checkout of the repository in the directory
``--checkouts``, named ``OWNER+NAME``, at the commit that the source states, with its packages' metadata, and what it
imports. Rows that replay a memory history, or compare one with a run, need it in ``--recordings``, under the same name.
With ``--orders N`` the scripts of the chosen rows that print reserved bytes run N more times, each with addresses that
are drawn at random where the driver chooses them.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from calibrate.checks import reconstruction
from calibrate.checks.directories import PAGES
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import bar
from calibrate.evidence import addresses, comparison, headline, page, predictions, searches, sources, verdicts
from calibrate.evidence.addresses import Orders
from calibrate.evidence.predictions import Predicted
from calibrate.evidence.sources import Row, Source
from calibrate.evidence.verdicts import Judged, Thread, Threads
from predictor.common.errors import InputError

PAGE = PAGES / "real_gpus.md"


@dataclass(frozen=True)
class Evidence:
    """All rows with their sources, and all reports of jobs that ran out of memory, with what is predicted so far."""

    sources: tuple[Source, ...]
    predicted: dict[predictions.Key, Predicted]
    threads: Threads
    orders: dict[predictions.Key, Orders]


def options(parser: ArgumentParser) -> None:
    parser.add_argument("--checkouts", type=Path, help="where the authors' repositories are checked out")
    parser.add_argument("--recordings", type=Path, help="where their memory histories are, if not in the checkouts")
    parser.add_argument("--only", default="", help="predict only rows whose source or id contains this")
    parser.add_argument("--orders", type=int, default=0, metavar="N",
                        help="also run their scripts with N random orders of the driver's addresses")


def jobs(args: Namespace) -> Evidence:
    """The evidence of the repository."""
    return Evidence(sources.read_all(), predictions.read(), verdicts.read(), addresses.read())


def measure(jobs: Evidence, args: Namespace) -> Evidence:
    """The evidence with the predictions that were missing. Names on stderr what cannot be predicted."""
    if args.table_only:
        return jobs
    if args.orders < 0:
        raise InputError(f"--orders {args.orders}: must be 0 or more")
    inputs = reconstruction.Inputs(args.checkouts, args.recordings or args.checkouts)
    for source, row in bar([pair for pair in _missing_rows(jobs, inputs) if _chosen(args, pair[0].name, pair[1].id)],
                           "Predicting"):
        try:
            found = reconstruction.predict(source, row, inputs)
        except InputError as error:
            print(f"{source.name} {row.id}: {error}", file=sys.stderr)
            continue
        entry = Predicted(source.name, row.id, row.digest, _today(), **found)
        jobs.predicted[entry.key] = entry
        predictions.write(jobs.predicted.values())
    for thread in bar([thread for thread in _missing_threads(jobs.threads, inputs) if _chosen(args, thread.id)],
                      "Judging"):
        try:
            judged = Judged(thread.id, thread.digest, _today(), **reconstruction.judge(thread, inputs))
        except InputError as error:
            print(f"{thread.id}: {error}", file=sys.stderr)
            continue
        verdicts.write({**verdicts.read().judged, thread.id: judged})
    for source, row in bar(list(_to_order(jobs, args, inputs)), "Other addresses") if args.orders else ():
        reserved: list[int] = []
        try:
            for seed in range(1, args.orders + 1):
                reserved.append(reconstruction.reserved_in_order(seed, row, inputs))
                order = Orders(source.name, row.id, row.digest, _today(), tuple(reserved))
                jobs.orders[order.key] = order
                addresses.write(jobs.orders.values())
        except InputError as error:
            print(f"{source.name} {row.id}: {error}", file=sys.stderr)
    return Evidence(jobs.sources, jobs.predicted, verdicts.read(), jobs.orders)


def table(found: Evidence, args: Namespace) -> Outcome:
    """The page, and the figures that the tolerance judges."""
    compared = comparison.make(found.sources, found.predicted)
    text = page.text(compared, found.threads, searches.read(), found.orders)
    return Outcome(figures={"jobs said to fit that ran out of memory": len(found.threads.false_fits)},
                   written={PAGE: text}, shown=(headline.summary(compared),))


def _missing_rows(jobs: Evidence, inputs: reconstruction.Inputs) -> Iterator[tuple[Source, Row]]:
    for source in jobs.sources:
        for row in source.rows:
            if predictions.of(source, row, jobs.predicted) is None and inputs.has(source, row):
                yield source, row


def _to_order(jobs: Evidence, args: Namespace, inputs: reconstruction.Inputs) -> Iterator[tuple[Source, Row]]:
    """Rows whose scripts are to be run with other addresses, and were not yet so often."""
    for source in jobs.sources:
        for row in source.rows:
            kept = jobs.orders.get((source.name, row.id))
            is_kept = kept is not None and kept.digest == row.digest and len(kept.reserved_bytes) >= args.orders
            if (reconstruction.prints_reserved(row) and not is_kept and _chosen(args, source.name, row.id)
                    and inputs.has(source, row)):
                yield source, row


def _missing_threads(threads: Threads, inputs: reconstruction.Inputs) -> Iterator[Thread]:
    known = {thread.id for thread, _ in threads.pairs}
    for thread in threads.threads:
        if thread.id not in known and inputs.has_checkout(thread.job, thread.checkout):
            yield thread


def _chosen(args: Namespace, *names: str) -> bool:
    return args.only in " ".join(names)


def _today() -> str:
    return date.today().isoformat()
