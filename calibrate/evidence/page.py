"""The comparison with real GPUs as a page of Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

from calibrate.evidence import addresses, headline, searches, verdicts
from calibrate.evidence.addresses import Orders
from calibrate.evidence.comparison import (
    CLOSE,
    GROUPS,
    JOBS,
    WORST,
    Comparison,
    Figure,
    Share,
    by,
    gpu_of,
    jobs,
    measurements,
    share,
)
from calibrate.evidence.headline import how_of
from calibrate.evidence.predictions import Key
from calibrate.evidence.searches import Search
from calibrate.evidence.sources import Basis, Kind
from calibrate.evidence.verdicts import Judged, Thread, Threads

GIB = 1 << 30
EDGES = (0.0001, 0.001, 0.01, 0.05)
UNPREDICTED = "the authors' scripts take minutes a row on two cores, and were not run yet"
VERDICTS = {"fits": "fits", "uncertain": "uncertain", "does_not_fit": "does not fit"}
HEAD = """# What other people's GPUs say

Nobody here measured these: they are figures that others published of real GPUs, beside what peakcast says of the same
jobs. Made by `python scripts/check.py real_gpus` from `profiles/evidence/real_gpus`, which has the source of every
figure (repository, commit, file), the job as keys of `peakcast predict` or as the author's own script, and what was
predicted. Errors are (predicted - measured) / measured. Facts and figures only: no file of others is copied.

- Every job was reconstructed, and the reconstruction committed, before its prediction was made, but for reports that
  say otherwise. Nothing was tuned to these figures. A row whose setting was chosen after its error was seen is
  *fitted*; one with a setting that neither the source nor its code states is *assumed*. Both are shown below, and
  neither is in the headline. Of the reports of jobs that ran out of memory, those that rest on assumptions are in it,
  and it says how many they are.
- Of two sources the latest script was run first; then the scripts of the commits that published the figures took its
  place. Their notes say how far it was off.
- Predicted are peaks for the versions of this repository (PyTorch 2.11, transformers 5.17), not for the authors'.
- *requested*: what tensors asked for (memory histories record it); *allocated*: `max_memory_allocated`; *reserved*:
  `max_memory_reserved`; *device*: nvidia-smi, compared with predicted reserved bytes.
- `peakcast predict` is judged apart from `peakcast dryrun`, which runs the author's script, changed only as its note
  says, on an emulated GPU: real PyTorch, no formula of peakcast's.
- A measurement is one published figure or pair of figures, at one moment of a job. Measurements of one job are not
  independent: the headline counts the jobs, too. Of Gemma's jobs three moments of the run that `predict` composes are
  compared.
- Published figures have few digits. An error within the last one is no difference.

"""


def load(compared: Comparison) -> str:
    """The page of the evidence that comes with peakcast."""
    return text(compared, verdicts.read(), searches.read(), addresses.read())


def text(compared: Comparison, threads: Threads, searched: Iterable[Search] = (),
         orders: Mapping[Key, Orders] | None = None) -> str:
    """The whole page."""
    parts = (_headline(compared), _groups(compared), _worst(compared), _verdicts(threads), _apart(compared),
             _rows(compared), _other_addresses(compared, orders or {}), _set_aside(compared),
             _missing(compared, threads), _searches(searched))
    return HEAD + "\n".join(line.rstrip() for line in chain.from_iterable(parts)) + "\n"


def _headline(compared: Comparison) -> Iterator[str]:
    yield f"**{headline.summary(compared)}**"
    yield ""
    yield from _head("figures whose error is at most", *(f"{edge:.2%}" for edge in EDGES), f"beyond {EDGES[-1]:.0%}")
    for name, figures in by(compared.judged, lambda figure: figure.group).items():
        counts = [sum(abs(figure.error) <= edge for figure in figures) for edge in EDGES]
        yield _line(name, *counts, len(figures) - counts[-1])
    yield ""


def by_kind(compared: Comparison) -> Iterator[str]:
    """The table of the judged figures by how they were predicted, and by kind of job."""
    yield from _by(compared, "kind of job", lambda figure: figure.row.kind.value)


def _groups(compared: Comparison) -> Iterator[str]:
    yield from by_kind(compared)
    yield ""
    yield from _by(compared, "GPU", gpu_of)
    yield ""
    yield from _by(compared, "source", lambda figure: figure.source.name)
    yield ""


def _by(compared: Comparison, title: str, key: Callable[[Figure], str]) -> Iterator[str]:
    groups = list(GROUPS)[:2]
    yield from _head(title, "by", "measurements", "jobs", *(f"{group} within {CLOSE:.0%}, worst" for group in groups))
    for name, figures in by(compared.judged, lambda figure: f"{key(figure)} | {how_of(figure)}").items():
        yield _line(name, measurements(figures), jobs(figures),
                    *(_share(share(figure for figure in figures if figure.group == group)) for group in groups))


def _share(found: Share | None) -> str:
    return "" if found is None else f"{found.close} of {found.figures}, {found.worst:+.3%}"


def _worst(compared: Comparison) -> Iterator[str]:
    yield f"## The {WORST} worst"
    yield ""
    yield from _head("source", "job", "GPU", "quantity", "measured", "error", "cause")
    for figure in compared.worst():
        yield _line(figure.source.name, figure.row.id, gpu_of(figure), _quantity(figure), _gib(figure.measured),
                    f"{figure.error:+.3%}", figure.row.cause or "**unexplained**")
    yield ""


def _verdicts(threads: Threads) -> Iterator[str]:
    pairs = threads.pairs
    failures = [(thread.said["allocated_bytes"], judged.allocated_bytes) for thread, judged in pairs
                if judged.allocated_bytes and "allocated_bytes" in thread.said]
    same = sum(_gib(said) == _gib(emulated) for said, emulated in failures)
    yield "## Jobs that ran out of memory"
    yield ""
    yield f"**{headline.verdict_summary(threads)}**"
    yield ""
    yield ("Where a message shows what PyTorch could have, that is the capacity. *Allocated then* is what tensors held "
           "when the allocation failed: as the message says, and on the emulated GPU; the same in "
           f"{same} of {len(failures)} messages.")
    yield ""
    yield from _head("report", "where", "GPU", "happened", "predicted", "allocated then: said", "emulated",
                     "basis and remarks")
    for thread, judged in pairs:
        remarks = "; ".join(filter(None, (thread.basis.value, _revision(thread), thread.note,
                                          thread.cause and f"cause: {thread.cause}")))
        yield _line(thread.id, thread.where, thread.gpu, thread.happened.value, _verdict(thread, judged),
                    _gib(thread.said.get("allocated_bytes", 0)), _gib(judged.allocated_bytes), remarks)
    yield ""


def _revision(thread: Thread) -> str:
    if thread.revision is None:
        return ""
    how = f"read again ({thread.revision.source})" if thread.revision.source else "fitted"
    return f"{how}: {thread.revision.setting}; at first it was said: {VERDICTS[thread.revision.first_verdict.value]}"


def _verdict(thread: Thread, judged: Judged) -> str:
    said = VERDICTS[judged.verdict.value]
    return f"{said} ({_gib(judged.reserved_bytes)} reserved)" if judged.reserved_bytes else said


def _apart(compared: Comparison) -> Iterator[str]:
    """Rows that the headline does not count because they are no jobs."""
    recordings = [figure for figure in compared.figures if figure.row.kind is Kind.RECORDING]
    yield "## Memory histories, replayed"
    yield ""
    yield ("The simulated allocator is given the allocations and frees that PyTorch recorded on a real GPU, and "
           "decides itself which segments it reserves.")
    yield ""
    yield from _head("source", "GPU", "histories", "reserved to the byte", "worst")
    yield from _together(recordings, lambda figure: (figure.source.name, gpu_of(figure)), 0)
    yield ""
    operators = [figure for figure in compared.figures if figure.row.kind is Kind.OPERATOR]
    yield "## Single operators"
    yield ""
    yield from _head("source", "GPU", "operator", "cause of what is off", "rows", f"within {EDGES[0]:.2%}", "worst")
    yield from _together(operators, lambda figure: (figure.source.name, gpu_of(figure), _operator(figure),
                                                    figure.row.cause), EDGES[0])
    yield ""


def _operator(figure: Figure) -> str:
    return figure.row.job.operator.name if figure.row.job.operator is not None else ""


def _together(figures: Iterable[Figure], key: Callable[[Figure], tuple[str, ...]], limit: float) -> Iterator[str]:
    """A line for each group of figures: its key, how many there are, how many are within a limit, the worst error."""
    for name, members in by(figures, lambda figure: " | ".join(key(figure))).items():
        worst = max((figure.error for figure in members), key=abs)
        yield _line(name, len(members), sum(abs(figure.error) <= limit for figure in members), f"{worst:+.4%}")


def _rows(compared: Comparison) -> Iterator[str]:
    yield "## All jobs"
    yield ""
    for source in compared.sources:
        figures = [figure for figure in compared.figures if figure.source is source and figure.row.kind in JOBS]
        if not figures:
            continue
        yield f"### {source.name}"
        yield ""
        yield f"{source.about} Commit {source.commit or 'none'}; license: {source.license}."
        yield ""
        for note in dict.fromkeys(figure.row.note for figure in figures if figure.row.note):
            yield f"- {note}"
        yield ""
        yield from _head("job", "kind", "GPU", "versions", "where", "how", "quantity", "measured", "predicted", "error",
                         "remarks")
        for figure in figures:
            row = figure.row
            versions = ", ".join(f"{name} {version}" for name, version in row.versions.items())
            yield _line(row.id, row.kind.value, gpu_of(figure), versions, row.where, how_of(figure), _quantity(figure),
                        f"{figure.measured:,}", f"{figure.predicted:,}", f"{figure.error:+.4%}",
                        _remarks(compared, figure))
        yield ""


def _remarks(compared: Comparison, figure: Figure) -> str:
    found = compared.predictions[figure.source.name, figure.row.id]
    events = ""
    if found.events:
        same = "the same events" if not found.events_that_differ else f"{found.events_that_differ} events differ"
        events = f"{same} ({found.events:,})"
    row = figure.row
    cause = row.cause or ("" if figure.is_close else "**unexplained**")
    return "; ".join(filter(None, (
        "assumed" if row.basis is Basis.ASSUMED else "", row.fitted and f"fitted: {row.fitted}", events, cause)))


def _other_addresses(compared: Comparison, orders: Mapping[Key, Orders]) -> Iterator[str]:
    """What the scripts reserve where the driver's addresses are in other orders."""
    figures = [(figure, found) for figure in compared.figures if figure.quantity == "reserved_bytes"
               and (found := orders.get((figure.source.name, figure.row.id))) and found.digest == figure.row.digest]
    if not figures:
        return
    yield "## Other addresses of the driver"
    yield ""
    yield ("Of free blocks of one size PyTorch's allocator takes the one at the lowest address, and no source says "
           "which addresses its driver gave. On the emulated GPU they go up. Here they are drawn at random, with the "
           "seeds 1, 2, 3 and so on: what the same script prints as reserved then, and in how many runs. An error "
           "within that range can be one of addresses. No driver draws them so; the order of a real one was measured "
           "on an H200 and an H100.")
    yield ""
    yield from _head("source", "job", "measured", "predicted", "with random addresses (runs)", "as measured")
    for figure, found in figures:
        runs = ", ".join(f"{size:,} ({count})" for size, count in sorted(Counter(found.reserved_bytes).items()))
        same = found.reserved_bytes.count(figure.measured)
        yield _line(figure.source.name, figure.row.id, f"{figure.measured:,}", f"{figure.predicted:,}", runs,
                    f"{same} of {len(found.reserved_bytes)}")
    yield ""


def _set_aside(compared: Comparison) -> Iterator[str]:
    aside = [figure for figure in compared.figures if figure.row.kind in JOBS and not figure.is_judged]
    found = share(aside)
    if found is None:
        return
    yield "## Not in the headline"
    yield ""
    yield (f"{measurements(aside)} measurements are fitted, or rest on an assumption that their row names: "
           f"{found.close} of {found.figures} figures within {CLOSE:.0%}, worst {found.worst:+.2%}.")
    yield ""


def _missing(compared: Comparison, threads: Threads) -> Iterator[str]:
    yield "## Not reconstructed, or not predicted"
    yield ""
    for source in compared.sources:
        for item in source.not_reconstructed:
            yield f"- {source.name}: {item.what}: {item.why}"
    for item in threads.not_reconstructed:
        yield f"- {item.what}: {item.why}"
    for source in compared.sources:
        if names := [row.id for owner, row in compared.unpredicted if owner is source]:
            yield f"- {source.name}: {'; '.join(names)}: reconstructed, not predicted: {UNPREDICTED}"
    yield ""


def _searches(searched: Iterable[Search]) -> Iterator[str]:
    listed = list(searched)
    if not listed:
        return
    yield "## Where was searched"
    yield ""
    for search in listed:
        yield f"- {search.where}: {search.what}: {search.found}"


def _quantity(figure: Figure) -> str:
    return figure.quantity.removesuffix("_bytes")


def _gib(value: int) -> str:
    return f"{value / GIB:.2f} GiB" if value else ""


def _head(*columns: str) -> Iterator[str]:
    yield _line(*columns)
    yield "|" + " --- |" * len(columns)


def _line(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
