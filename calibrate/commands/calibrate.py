"""Calibrate a cluster: measure a set of short jobs once, and save the fitted corrections as a profile."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.commands import output
from predictor.common.errors import InputError
from predictor.common.files import write_whole
from predictor.common.streams import say
from predictor.common.suggestions import quoted
from predictor.report.console import WIDTH, console

if TYPE_CHECKING:
    from calibrate.campaign.design import Job
    from calibrate.campaign.rows import Row, Store
    from calibrate.measure.device_choice import MeasuringDevice
    from calibrate.report.calibrate import Result

EXAMPLES = """examples:
  peakcast calibrate --device cuda --gpu h100-80gb -o h100.json
  peakcast calibrate --device emulated --gpu a100-80gb --quick -o a100.json
  peakcast calibrate --device cuda --gpu h100-80gb --plan-only
  peakcast calibrate --device cuda --gpu h100-80gb -o h100.json --records runs/*.json
  peakcast calibrate --device cuda --gpu h100-80gb -o h100.json --jobs-from jobs.json --snapshots histories
  peakcast calibrate --device cuda --gpu h100-80gb -o h100.json --refit --snapshots histories --force
  torchrun --nnodes 2 --nproc-per-node 8 ... --no-python peakcast calibrate --device cuda --gpu h100-80gb -o h100.json

Each job is three training steps of a shallow model of full width, in a process of its own; a few are whole models.
Measurements are kept in a file beside the profile, one line per job: after an interruption, the same command
continues. Then peakcast predict ... --profile FILE uses the profile. Nothing leaves this machine.

exit codes: 0 the profile is written, 2 bad input or environment, or nothing could be measured
"""
DEVICES = {"cuda": "device", "emulated": "emulated"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the device, the jobs and the output."""
    where = parser.add_argument_group("where to measure")
    where.add_argument("--device", choices=tuple(DEVICES), help="a real GPU, or an emulated one (no GPU is needed)")
    where.add_argument("--gpu", metavar="GPU", help="which GPU it is, such as h100-80gb, a100-40gb, l40s")
    where.add_argument("--events", default="immediate", metavar="WHEN",
                       help="when events complete on the emulated GPU: immediate, launches:N or synchronization; "
                            "default: immediate")
    where.add_argument("--inject", metavar="KEY=VALUE", action="append", default=[],
                       help="make the emulated GPU differ from a real one of its name, to test calibration; keys: "
                            "calibrate/emulator/injection.py")
    extent = parser.add_argument_group("how much to measure")
    extent.add_argument("--quick", action="store_true", help="a small set of jobs: a rougher profile")
    extent.add_argument("--jobs-from", metavar="FILE",
                        help="measure the jobs of this file: JSON as --plan-only --json prints it")
    extent.add_argument("--time-limit", metavar="MINUTES",
                        help="start no job after this many minutes, and fit the jobs that were measured")
    extent.add_argument("--jobs", metavar="N", help="jobs at a time; default: 1 on a real GPU, one per core on an "
                                                    "emulated one")
    extent.add_argument("--records", metavar="FILE", nargs="+", default=[],
                        help="records of trainings (PeakcastCallback, watch) or of peakcast measure, on the same GPU "
                             "and software: they join the held-out jobs, which give the intervals")
    extent.add_argument("--plan-only", action="store_true", help="show the jobs and how long they take; run nothing")
    extent.add_argument("--retry-failed", action="store_true", help="run failed jobs again")
    extent.add_argument("--refit", action="store_true",
                        help="measure nothing: explain the memory histories in --snapshots with this release, and fit "
                             "them. After an update no GPU is needed")
    group = parser.add_argument_group("output")
    group.add_argument("-o", "--output", metavar="FILE", help="the profile, a JSON file")
    group.add_argument("--measurements", metavar="FILE",
                       help="the measurements, one line per job; default: beside the profile, ending in .jsonl")
    group.add_argument("--snapshots", metavar="DIR", help="also keep the memory history of each job there, compressed")
    group.add_argument("--json", action="store_true", help="the result as JSON, and nothing else, on the output")
    group.add_argument("--force", action="store_true", help="overwrite a profile that exists")


@dataclass(frozen=True)
class _Asked:
    """The campaign that the options ask for.

    Attributes:
        workers: jobs at a time.
        seconds: nothing starts after them; None for no limit.
        degree: number of torchrun's processes; None without torchrun.
    """

    jobs: list[Job]
    where: MeasuringDevice
    workers: int
    seconds: float | None
    degree: int | None


def run(arguments: argparse.Namespace) -> int:
    """Plans, measures, fits and writes the profile."""
    asked = _asked(arguments)
    if arguments.plan_only:
        _show_plan(arguments, asked)
        return 0
    if arguments.output is None:
        raise InputError("-o is not given: name the file of the profile, such as h100.json")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # temporary files go away
    if asked.degree and os.environ["RANK"] != "0":
        return _follow(asked)
    output.check_path(arguments.output, arguments.force)
    path = arguments.measurements or str(Path(arguments.output).with_suffix(".jsonl"))
    output.check_different(arguments.output, path, "-o and --measurements" if arguments.measurements else
                           "-o and --measurements (not given: as -o, ending in .jsonl)")
    rows, left = (_explained(arguments, asked, path), 0) if arguments.refit else _measured(arguments, asked, path)
    result = _fitted(arguments.output, asked, rows, path, left)
    from calibrate.report import calibrate as report

    output.write(argparse.Namespace(json=arguments.json, output=None), lambda: report.document(result),
                 lambda console: report.report(console, result))
    return 0


def _asked(arguments: argparse.Namespace) -> _Asked:
    where = _where(arguments)
    minutes = _number(arguments.time_limit, "--time-limit", 0.1)
    workers = _number(arguments.jobs, "--jobs", 1, whole=True)
    workers = workers or (1 if where.device.value == "device" else os.cpu_count() or 1)
    from calibrate.campaign import design
    from calibrate.job import single_rank

    degree = int(os.environ["WORLD_SIZE"]) if single_rank.launched() else None
    emulated = where.device.value == "emulated"
    # without torchrun, only an emulated GPU can create NCCL communicators
    if arguments.jobs_from:
        jobs = _listed(arguments, degree, emulated)
    else:
        jobs = design.campaign(quick=arguments.quick, communicators=emulated, degree=degree, emulated=emulated)
    return _Asked(jobs, where, 1 if degree else workers, None if minutes is None else 60 * minutes, degree)


def _where(arguments: argparse.Namespace) -> MeasuringDevice:
    for name in ("device", "gpu"):
        if getattr(arguments, name) is None:
            raise InputError(f"--{name} is not given: say "
                             + ("cuda or emulated" if name == "device" else "which GPU it is, such as h100-80gb"))
    from calibrate.emulator import Injection
    from calibrate.emulator.job_environment import has_real_driver
    from calibrate.measure.device_choice import MeasuringDevice
    from calibrate.records.record import MeasuredOn
    from predictor.allocator.completion import launches_until_complete
    from predictor.common import gpus

    launches_until_complete(arguments.events, "events")
    device = MeasuredOn(DEVICES[arguments.device])
    try:
        gpu = gpus.find(arguments.gpu).name
    except InputError as error:  # a prediction accepts a capacity instead, a calibration does not
        raise InputError(str(error).removesuffix("; or give capacity_bytes")) from None
    if device is MeasuredOn.DEVICE and arguments.inject:
        raise InputError("nothing can be injected into a real GPU: --inject needs --device emulated")
    measures = not (arguments.plan_only or arguments.refit)
    if device is MeasuredOn.DEVICE and measures and not has_real_driver():
        raise InputError("this machine has no NVIDIA driver: run this where the GPU is, or add --device emulated")
    return MeasuringDevice(gpu, device, arguments.events,
                           Injection.from_words(arguments.inject) if arguments.inject else None, arguments.snapshots)


def _listed(arguments: argparse.Namespace, degree: int | None, emulated: bool) -> list[Job]:
    if arguments.quick:
        raise InputError("--quick and --jobs-from both say which jobs: give one")
    if degree is not None:
        raise InputError("--jobs-from is for one process: torchrun's jobs are the campaign's own")
    from calibrate.campaign import user_plan

    return user_plan.read(arguments.jobs_from, emulated=emulated)


def _number(text: str | None, option: str, least: float, whole: bool = False) -> Any:
    if text is None:
        return None
    try:
        value = None if "_" in text else int(text) if whole else float(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= 1e6:
        raise InputError(f"{option} must be a {'whole ' if whole else ''}number from {least:g}, not {quoted(text)}")
    return value


def _measured(arguments: argparse.Namespace, asked: _Asked, path: str) -> tuple[list[Row], int]:
    """Measures what ``path`` does not hold yet. Returns all its rows, and the number of jobs that are left."""
    from calibrate.campaign import consistency, rows, user_records

    records = user_records.read(arguments.records)
    for file, row in zip(arguments.records, records):
        consistency.check_rows([row], asked.where, file)
    with rows.opened(path) as store:
        consistency.check_rows([*store.rows, *records], asked.where, path)
        if arguments.retry_failed:
            store.forget_failed()
        for row in records:
            store.add(row)
        left = _measure(asked, store)
        measured = store.rows
    consistency.check_rows(measured, asked.where, path)
    return measured, left


def _explained(arguments: argparse.Namespace, asked: _Asked, path: str) -> list[Row]:
    """Explains the kept histories of the rows of ``path`` with this release. Returns the rows, and keeps them there."""
    if arguments.snapshots is None:
        raise InputError("--refit explains the memory histories of a campaign: say where they are with --snapshots")
    if arguments.records or arguments.retry_failed:
        raise InputError("--refit measures and adds nothing: leave out --records and --retry-failed")
    from rich.progress import track

    from calibrate.campaign import consistency, measured_job, rows

    directory = Path(arguments.snapshots)
    measured = track(rows.read(path), "Explaining", console=console(sys.stderr, None), transient=True,
                     disable=not sys.stderr.isatty())
    explained = [measured_job.explained_again(row, directory) for row in measured]
    consistency.check_rows(explained, asked.where, path)
    write_whole(path, b"".join(map(rows.to_line, explained)))
    return explained


def _measure(asked: _Asked, store: Store) -> int:
    """Runs the jobs without a row, with a plan and a progress bar on stderr, and returns the number of jobs left."""
    from functools import partial

    from calibrate.campaign import consistency, environment, measured_job, run, torchrun
    from calibrate.report.calibrate import Progress, plan

    jobs, where, degree = asked.jobs, asked.where, asked.degree
    known = {row.id for row in store.rows}
    own_jobs = jobs if degree is None else [torchrun.of_rank(job, degree - 1) for job in jobs]
    if not known.issuperset(job.id for job in own_jobs):
        consistency.check_here(store.rows, environment.read_environment(where), where, store.path)
        store.begin()
    terminal = console(sys.stderr, width=None if sys.stderr.isatty() else WIDTH)
    plan(terminal, own_jobs, asked.workers, known)
    row_of = partial(measured_job.row_of, where=where)
    with Progress(own_jobs, asked.workers, known) as progress:
        try:
            if degree is None:
                return run.run(jobs, row_of, store, run.Limits(asked.workers, asked.seconds), progress.done)
            deadline = None if asked.seconds is None else time.monotonic() + asked.seconds
            return torchrun.run(jobs, row_of, store, lambda: deadline is not None and time.monotonic() >= deadline,
                                progress.done)
        except (KeyboardInterrupt, SystemExit):
            say(f"stopped; {len(store.rows)} jobs are kept in {store.path}: the same command goes on")
            raise


def _follow(asked: _Asked) -> int:
    """Runs the jobs on torchrun's other ranks, which write nothing."""
    from functools import partial

    from calibrate.campaign import measured_job, torchrun

    torchrun.run(asked.jobs, partial(measured_job.row_of, where=asked.where), None, lambda: False)
    return 0


def _fitted(file: str, asked: _Asked, rows: list[Row], path: str, left: int) -> Result:
    """Fits the profile to the rows of ``path`` and writes it to ``file``."""
    from calibrate.campaign.torchrun import once_a_job
    from calibrate.fit import coverage, cross_validate, fit_profile
    from calibrate.report.calibrate import Result
    from predictor.profile import profile as profiles

    provenance = {"date": date.today().isoformat(), "command": " ".join(["peakcast", *sys.argv[1:]]),
                  "commit": _commit(), "measurements": os.path.basename(path)}
    say(f"Fitting {sum(row.failed is None for row in rows)} jobs")
    profile = fit_profile(rows, measured_on=asked.where.device.value, provenance=provenance)
    profiles.write(file, profile)
    counted = rows if asked.degree is None else once_a_job(rows, asked.degree)
    return Result(profile, file, path, tuple(counted), left, coverage(rows, profile),
                  tuple(cross_validate(rows, profile)))


def _show_plan(arguments: argparse.Namespace, asked: _Asked) -> None:
    from calibrate.report import calibrate as report

    output.write(argparse.Namespace(json=arguments.json, output=None),
                 lambda: report.plan_document(asked.jobs, asked.workers),
                 lambda console: report.plan(console, asked.jobs, asked.workers))


def _commit() -> str | None:
    """The commit of a git checkout of peakcast; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None
