"""Renders the short answer of ``peakcast oom``: at most 40 lines of 100 characters."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from predictor.common.safe_text import printable
from predictor.oom.explanation import Cure, Explanation, Holder
from predictor.oom.message import Kind, Message
from predictor.oom.recorded import RecordedFailure
from predictor.oom.reproduction import PredictedJob, Reproduction
from predictor.oom.stack import Frame
from predictor.report import oom, remedies
from predictor.report.layout import SCREEN, details_line, table, wrapped
from predictor.report.units import size_text
from predictor.report.verdict import failed_at, verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LONGEST_NAME = 40
"""Characters of the name of a file or function; the beginning of a longer one is left out."""
MOST_ADVICE = 2
"""Sentences of advice by the message alone; only one where other cures were checked."""
MOST_PLACES = 2
"""Lines of code that are named for a snapshot."""
MOST_FACTORS = 3
MOST_ASSUMED = 4
MOST_PROCESSES = 3
MEANING = oom.MEANING | {
    Holder.TENSORS: "allocated by PyTorch, workspaces included",
    Holder.POOLS: "of CUDA graphs and MemPools",
    Holder.REST: "CUDA context, NCCL, libraries, other processes",
}

class Most(NamedTuple):
    """How many remedies and assumptions of a job the answer has at most."""

    remedies: int
    assumed: int


SIZES = (*(Most(number, MOST_ASSUMED) for number in range(remedies.MOST + 1, 0, -1)),  # a note of what was not checked
         *(Most(1, number) for number in range(MOST_ASSUMED - 1, -1, -1)))
"""What the answer may be cut to, so that it has at most 40 lines: first remedies are left out, then assumptions."""

Part = tuple["str | Table", str]
"""A sentence or a table, and the style of the sentence."""


def report(console: Console, found: list[Explanation], name: str, job: PredictedJob | None = None,
           snapshot: tuple[RecordedFailure, str] | None = None) -> None:
    """Prints what took the memory, where it failed, the compared peaks, remedies, and where the rest is.

    Args:
        snapshot: what a snapshot says, and the snapshot's name.
    """
    parts: list[Part] = []
    for most in SIZES:
        parts = [*_message(found[0], name, oom.checked(job, snapshot and snapshot[0])),
                 *(() if job is None else _job(job, most)),
                 *((text, "") for text in (() if snapshot is None else _snapshot(*snapshot, found[0].message))),
                 (_rest(found, job, most, snapshot is not None), "")]
        if sum(len(_lines(console, part)) for part, _ in parts) <= SCREEN:
            break
    for part, style in parts:
        for line in _lines(console, part) if isinstance(part, str) else [part]:
            console.print(line, style=style)


def _lines(console: Console, part: str | Table) -> Sequence[object]:
    """The lines that a sentence or a table takes. An empty sentence is an empty line."""
    return console.render_lines(part) if not isinstance(part, str) else wrapped(console, part, indent=0) or [""]


def _message(explanation: Explanation, name: str, checked: Collection[Cure]) -> Iterator[Part]:
    """What the message itself says. Advice that was checked otherwise is left out."""
    m = explanation.message
    yield oom.headline(m), "bold red"
    yield oom.source_line(m, _end(name)), "dim"
    if m.place is not None:
        yield oom.place_text(m.place, _frame), ""
    yield "", ""
    if explanation.shares:
        yield _shares(explanation), ""
        yield "", ""
    for fact in _facts(explanation):
        yield fact, ""
    advice = [item for item in explanation.advice if item.cure not in checked]
    for item in advice[:1 if checked else MOST_ADVICE]:
        yield f"- By this message alone: {oom.advice_text(item, explanation)}", ""


def _shares(explanation: Explanation) -> Table:
    """Who holds the memory. Of several other processes only their sum is given."""
    rows = table("what holds the memory", "size", "")
    rows.columns[1].justify = "right"
    others = [part for part in explanation.shares if part.holder is Holder.OTHER]
    for part in explanation.shares:
        if part.holder is Holder.OTHER and len(others) > 1:
            if part is others[0]:
                rows.add_row(f"{len(others):,} other processes", size_text(sum(p.memory.bytes for p in others)), "")
            continue
        rows.add_row(oom.holder(part), size_text(part.memory.bytes), MEANING[part.holder])
    if explanation.message.capacity is not None:
        rows.add_row("the whole GPU", size_text(explanation.message.capacity.bytes), "", style="bold")
    return rows


def _facts(explanation: Explanation) -> Iterator[str]:
    """What was missing, and why idle memory could not serve the request."""
    m = explanation.message
    if m.missing is None:
        yield from oom.facts(explanation)[:2 if m.kind in oom.NO_FIGURES else 1]
        return
    idle = m.idle is not None and m.idle.bytes and m.kind is Kind.ALLOCATOR
    pieces = f"; the idle {size_text(m.idle.bytes)} had no free piece large enough" if m.idle and idle else ""
    yield f"{size_text(m.missing.bytes)} were missing{pieces}."
    if explanation.unidentified:
        yield oom.unidentified_text(explanation.unidentified[:MOST_PROCESSES], len(explanation.unidentified))


def _job(job: PredictedJob, most: Most) -> Iterator[Part]:
    """Where the job is predicted to fail, beside the message, what holds the memory then, and remedies."""
    found = job.reproduction
    yield "", ""
    for sentence in oom.assumed(job)[:most.assumed]:
        yield sentence, ""
    if found is None:
        yield (f"Predicted: {verdict(job.prediction)} The message does not tell how much memory PyTorch could have: "
               "its failure cannot be compared."), "bold"
    else:
        for number, sentence in enumerate(_outcome(found, job)):
            yield sentence, "" if number else "bold"
        yield oom.compared_table(found), ""
    judged = remedies.short(job.remedies, brief=True)
    if judged:
        yield oom.remedies_title(found), "bold"
    for sentence in judged[:most.remedies]:
        yield f"- {sentence}", ""


def _outcome(found: Reproduction, job: PredictedJob) -> Iterator[str]:
    """Where the job is predicted to fail with the memory that it had, whether that is the reported failure, and what
    holds the memory then.
    """
    outcome = found.outcome
    had = f"with the {size_text(outcome.limit_bytes)} that PyTorch could have"
    if outcome.failure is None:
        what = "another number of GPUs may; --details: what else" if job.are_gpus_doubtful else "--details: what may"
        yield (f"Predicted {had}: it survives, with at most {size_text(outcome.peak_reserved_bytes)} reserved. The "
               f"prediction does not explain this error ({what}).")
        if job.prediction.verdict == "uncertain":
            yield f"On the whole GPU it may not: {verdict(job.prediction)}"
        return
    rounded = outcome.segment_bytes or 0
    segment = f", for which PyTorch asks for a segment of {size_text(rounded)}" \
        if rounded > outcome.failure.requested_bytes else ""
    yield f"Predicted {had}: it runs out of memory{failed_at(outcome.failure)}{segment}."
    if found.agrees:
        yield "This is the reported failure: the numbers agree."
    elif job.are_gpus_doubtful:
        yield "The numbers do not agree: another failure, or another number of GPUs (--details: why)."
    else:
        yield "The numbers do not agree: the reported failure may be another one (--details: why)."
    sizes = sorted(outcome.factors.items(), key=lambda item: -item[1])
    named = [f"{factor.value} {size_text(size)}" for factor, size in sizes[:MOST_FACTORS] if size]
    if named:
        yield f"Allocated then, mostly: {', '.join(named)}."


def _snapshot(failure: RecordedFailure, name: str, message: Message) -> Iterator[str]:
    """What the snapshot says about the failed allocation, or about its end, beside the message."""
    yield f"{_end(name)}: {oom.state(failure)}{oom.another(failure, message)}"
    first = [f"{_end(printable(group.place))} ({size_text(group.bytes)})"
             for group in failure.allocations[:MOST_PLACES]]
    if first:
        yield f"Largest blocks, by line of code: {', '.join(first)}."
    yield oom.expandable(failure, _end(name), hint=False)


def _rest(found: list[Explanation], job: PredictedJob | None, most: Most, has_snapshot: bool) -> str:
    """A sentence that says what ``--details`` has beside the short answer."""
    more = len(found) - 1
    has_more_remedies = job is not None and len(remedies.short(job.remedies, brief=True)) > most.remedies
    has_more_assumed = job is not None and len(oom.assumed(job)) > most.assumed
    return details_line(f"{more:,} more message{'s' if more > 1 else ''}" if more else "",
                        "more remedies" if has_more_remedies else "",
                        "more assumptions" if has_more_assumed else "", "bytes", "all facts",
                        "memory by module" if job is not None and job.reproduction is not None else "",
                        "blocks by line" if has_snapshot else "")


def _frame(frame: Frame) -> str:
    return oom.frame_text(replace(frame, file=_end(frame.file), function=_end(frame.function)))


def _end(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME:]}"
