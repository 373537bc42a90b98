"""What the page of evidence and the first page of a report say of other people's GPUs; the README has the verdicts."""

from __future__ import annotations

from calibrate.evidence.comparison import CLOSE, Comparison, Figure, by, jobs, measurements, share
from calibrate.evidence.sources import Basis, Kind
from calibrate.evidence.verdicts import Happened, Thread, Threads, Verdict

HOW = {"workload": "predict", "report": "predict", "command": "dryrun"}
"""The command that predicts a form of job."""
WHAT = {"predict": "peakcast predict", "dryrun": "peakcast dryrun of the authors' scripts"}


def summary(compared: Comparison) -> str:
    """The headline: how many figures of how many jobs are how close."""
    if not compared.judged:
        return "No figure of other people's GPUs is predicted."
    training = [figure for figure in compared.judged if figure.row.kind is Kind.TRAINING]
    parts = [f"Others' measurements on {len(compared.gpus)} kinds of real GPUs, {compared.date}: "
             f"{_counted(compared.judged)}, {measurements(training)} of training, from {len(compared.judged_sources)} "
             "sources."]
    parts += [f"{WHAT[how]} ({_counted(figures)}): {_shares(figures)}."
              for how, figures in by(compared.judged, how_of).items()]
    return " ".join([*parts, f"Allocated within {CLOSE:.0%}, by GPU: {by_gpu(compared)}."])


def by_gpu(compared: Comparison) -> str:
    """How many of the judged allocated figures are close, for each GPU that is named."""
    figures = [figure for figure in compared.judged if figure.group == "allocated" and figure.row.gpu]
    found = by(figures, lambda figure: figure.row.gpu.removeprefix("NVIDIA ").removeprefix("GeForce "))
    return ", ".join(f"{name} {sum(figure.is_close for figure in rows)} of {len(rows)}"
                     for name, rows in sorted(found.items()))


def _counted(figures: list[Figure]) -> str:
    return f"{measurements(figures)}, of {jobs(figures)} jobs"


def _shares(figures: list[Figure]) -> str:
    groups = by(figures, lambda figure: figure.group)
    return "; ".join(f"{name} within {CLOSE:.0%} in {found.close} of {found.figures} ({found.portion:.0%}), worst "
                     f"{found.worst:+.2%}"
                     for name, figures in groups.items() if (found := share(figures)) is not None)


def verdict_summary(threads: Threads) -> str:
    """The headline of the reports of jobs that ran out of memory."""
    listed = [thread for thread, _ in threads.judged_pairs]
    failed = sum(thread.happened is Happened.OUT_OF_MEMORY for thread in listed)
    assumed = sum(thread.basis is Basis.ASSUMED for thread in listed)
    uncertain = sum(judged.verdict is Verdict.UNCERTAIN for _, judged in threads.judged_pairs)
    text = (f"{len(threads.false_fits)} of {len(listed)} public reports are false fits: said to fit, and ran out of "
            f"memory, as {failed} of them did. Said not to fit, but ran: {len(threads.false_alarms)}; uncertain: "
            f"{uncertain}. {assumed} of the reports rest partly on assumed settings. {_places(listed)}")
    revised = [thread.is_fitted for thread, _ in threads.pairs if thread.revision]
    if not revised:
        return text
    return (f"{text} At first reading, {len(threads.false_fits_at_first)} of {len(threads.pairs)} were false fits. "
            f"{len(revised) - sum(revised)} were then given settings of their authors' own commands or code, which are "
            f"named; {sum(revised)} with a setting that was chosen after its verdict was seen is left out above.")


def _places(listed: list[Thread]) -> str:
    """Where the reports are: in threads, which are named OWNER/NAME#NUMBER, or in files of repositories."""
    wheres = [thread.where.split(",")[0].split(" ")[0] for thread in listed]
    threads = [where for where in wheres if "#" in where]
    files = [where for where in wheres if "#" not in where]
    return (f"{len(threads)} of them are in {len(set(threads))} threads on GitHub, {len(files)} in files of "
            f"{len(set(files))} repositories.")


def how_of(figure: Figure) -> str:
    return HOW[figure.row.job.form]
