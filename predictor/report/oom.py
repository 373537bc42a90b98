"""Renders an explained out-of-memory error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from predictor.common.safe_text import printable
from predictor.oom.amounts import Amount
from predictor.oom.explanation import Advice, Cure, Explanation, Holder, Share
from predictor.oom.message import Kind, Message, Process
from predictor.oom.recorded import RecordedFailure
from predictor.oom.reproduction import PredictedJob, Reproduction
from predictor.oom.stack import Frame, Place
from predictor.report import remedies
from predictor.report.layout import table, wrapped
from predictor.report.table import factor_table
from predictor.report.units import size_text
from predictor.report.verdict import failed_at, verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MOST_OTHERS = 16
"""Number of further messages that the report lists. The JSON has all."""
MOST_PLACES = 10
"""Number of lines of code that the report lists for a snapshot. The JSON has all."""
MEANING = {
    Holder.TENSORS: "allocated by PyTorch: tensors, and workspaces that PyTorch allocates for libraries",
    Holder.IDLE: "reserved by PyTorch, used by no tensor",
    Holder.POOLS: "of CUDA graphs and MemPools; other requests cannot use them",
    Holder.OUTSIDE: "CUDA context, NCCL, other libraries",
    Holder.OTHER: "",
    Holder.REST: "outside PyTorch's allocator: CUDA context, NCCL, libraries, other processes",
    Holder.FREE: "not in use when the request failed",
}
NO_FIGURES = {
    Kind.WORDS: 'Look for the figures in the whole message, after "Tried to allocate": what was asked for, the GPU\'s '
                "total capacity, what was free, what PyTorch had allocated, and what it had reserved but not "
                "allocated. Give all of that message, or the whole log.",
    Kind.LIBRARY: "This error has no figures of PyTorch's memory. Look for torch.cuda.memory_reserved() and for what "
                  "torch.cuda.mem_get_info() has free, right before the call that failed.",
}
"""Which figures to look for, where an error has none."""
OF_NCCL = ("NCCL's buffers lie outside PyTorch's allocator, and each communicator has its own: neither PyTorch's "
           "figures nor a prediction's peaks of PyTorch contain them.")
OTHER_GPUS = "another number of GPUs than is predicted"
POSSIBLE_CAUSES = (
    "a loop that keeps outputs, losses or gradients longer than the predicted loop does, another length or number of "
    "samples in this batch, other versions of PyTorch or of the model's code, allocations of the program's own")


SETTINGS = frozenset((Cure.EXPANDABLE_SEGMENTS, Cure.MAX_SPLIT_SIZE))
"""Cures by the allocator's settings."""


def checked(job: PredictedJob | None, snapshot: RecordedFailure | None) -> frozenset[Cure]:
    """The cures that a job's remedies or a played snapshot judge; the message's own guess about them is not printed."""
    by_job = SETTINGS | {Cure.SMALLER_JOB} if job is not None else frozenset()
    return by_job | (SETTINGS if snapshot is not None and not snapshot.obstacle else frozenset())


def report(console: Console, found: list[Explanation], name: str, job: PredictedJob | None = None,
           snapshot: RecordedFailure | None = None) -> None:
    """Prints the first message in full, what its job's prediction adds, and one line for each further message.

    Args:
        snapshot: what a snapshot says; it is printed by :func:`snapshot_report`.
    """
    first, *others = found
    _say(console, headline(first.message), style="bold red")
    _say(console, source_line(first.message, name), style="dim")
    if first.message.place is not None:
        _say(console, place_text(first.message.place))
    console.print()
    if first.shares:
        console.print(_shares_table(first))
        console.print()
    unchecked = [advice for advice in first.advice if advice.cure not in checked(job, snapshot)]
    for sentence in (*facts(first), *(["By this message alone (not checked with the job):"] if unchecked else []),
                     *(f"- {advice_text(advice, first)}" for advice in unchecked)):
        _say(console, sentence)
    if job is not None:
        _prediction_report(console, job)
    if others:
        console.print()
        _say(console, f"{len(others):,} more message{'s' if len(others) > 1 else ''} in this log:")
        for explanation in others[:MOST_OTHERS]:
            _say(console, f"- {source_line(explanation.message, '')}: {headline(explanation.message)}")
        if len(others) > MOST_OTHERS:
            _say(console, f"- and {len(others) - MOST_OTHERS:,} more (--json)")


def headline(m: Message) -> str:
    """The error in a sentence."""
    gpu = "the GPU" if m.device is None else f"GPU {m.device}"
    if m.kind is Kind.LIBRARY:
        asked = "" if m.requested is None else f": it asked for {size_text(m.requested.bytes)}"
        return f"{'A call of CUDA' if m.wording == 'CUDA' else m.wording} ran out of memory on {gpu}{asked}."
    if m.kind is Kind.WORDS:
        return "Out of memory on a CUDA GPU; the text has no figures."
    if m.requested is None:
        return f"Out of memory on {gpu}: a request of 1 EiB or more, which no GPU has."
    free = "" if m.free is None else f", and {size_text(m.free.bytes)} were free"
    return f"Out of memory on {gpu}: {size_text(m.requested.bytes)} were asked for{free}."


def source_line(m: Message, name: str) -> str:
    """Where in the log the message stands, and which PyTorch words it so."""
    times = f"printed {m.times:,} times" if m.times > 1 else ""
    return " · ".join(part for part in (name, f"line {m.line:,}", m.source, m.wording, times) if part)


def frame_text(frame: Frame) -> str:
    """A frame as file, line and function."""
    return printable(f"{frame.file}:{frame.line}, {frame.function}")


def place_text(place: Place, frame: Callable[[Frame], str] = frame_text) -> str:
    """Where the traceback says that it happened, as a sentence. ``frame`` gives the text of a frame."""
    moment = "" if place.moment is None else f"in {place.moment.value}" + (f" ({place.within})" if place.within else "")
    inside = "" if place.inside is None else f"in {inside_text(place)}"
    at = "" if place.innermost is None else f"at {frame(place.innermost)}"
    own = f"called from {frame(place.own)}" if place.own is not None and place.own != place.innermost else ""
    said = ", ".join(part for part in (moment, inside, at, own) if part) or "in PyTorch"
    return f"It happened {said} (from the traceback)."


def inside_text(place: Place) -> str:
    """The function of PyTorch that ran: ``the loss (cross_entropy)``, ``torch.optim.adam (_multi_tensor_adam)``."""
    assert place.inside is not None
    file = place.inside.file.rpartition("/torch/")[2].removesuffix(".py").replace("/", ".")
    of = "the loss" if place.loss else f"torch.{file}"
    return printable(f"{of} ({place.inside.function})")


def _shares_table(explanation: Explanation) -> Table:
    capacity = explanation.message.capacity
    rows = table("what holds the memory", "size", "bytes", "")
    rows.columns[1].justify = rows.columns[2].justify = "right"
    for part in explanation.shares:
        rows.add_row(holder(part), size_text(part.memory.bytes), _bytes(part.memory), MEANING[part.holder])
    if capacity is not None:
        rows.add_row("the whole GPU", size_text(capacity.bytes), _bytes(capacity), "", style="bold")
    return rows


def holder(part: Share) -> str:
    """Who holds a part of the memory."""
    return part.holder.value if part.pid is None else f"process {part.pid}"


def _bytes(amount: Amount) -> str:
    return f"{amount.bytes:,}"


def facts(explanation: Explanation) -> list[str]:
    """Sentences about what was missing, and why idle memory could not serve the request."""
    m, sentences = explanation.message, []
    if m.kind in NO_FIGURES:
        sentences.append(NO_FIGURES[m.kind])
        if m.wording == "NCCL":
            sentences.append(OF_NCCL)
    elif not explanation.shares:
        sentences.append("The message does not tell what holds the memory: give it to its end, if there is more of it.")
    if m.missing is not None:
        sentences.append(f"{size_text(m.missing.bytes)} were missing. PyTorch rounds a request up to a segment: the "
                         "tensor itself may be smaller than what was asked for.")
    elif m.requested is not None and m.free is not None and m.allowed is None:
        sentences.append("More was free than was asked for when the message was written: either memory was freed right "
                         "after the refusal, or something other than the GPU's memory ran out. The message does not "
                         "tell which.")
    if m.idle is not None and m.idle.bytes and m.kind is Kind.ALLOCATOR:
        sentences.append(f"The idle {size_text(m.idle.bytes)} did not serve the request: no free piece of them was "
                         "large enough. PyTorch had already given back every segment that no tensor used, so these are "
                         "pieces of segments in use.")
    if explanation.unidentified:
        sentences.append(f"{unidentified_text(explanation.unidentified)} In a container PyTorch does not recognize its "
                         "own process number.")
    return sentences


def unidentified_text(processes: Sequence[Process], count: int = 0) -> str:
    """The processes of which one may have failed, as a sentence. ``count`` is their number if not all are given."""
    listed = ", ".join(f"{process.pid} ({size_text(process.memory.bytes)})" for process in processes)
    more = f" and {count - len(processes):,} more" if count > len(processes) else ""
    return f"One of these may be the process that failed: {listed}{more}."


def advice_text(advice: Advice, explanation: Explanation) -> str:
    """A remedy in a sentence."""
    m, size = explanation.message, size_text(advice.bytes)
    pids = ", ".join(map(str, advice.pids))
    return {
        Cure.SMALLER_REQUEST: f"No setting helps: one request of {size} is more than the whole GPU. Look for a shape "
                              "that is larger than meant, or split this tensor.",
        Cure.EXPANDABLE_SEGMENTS: f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True could make the {size} of idle "
                                  "memory usable (if it is not set already).",
        Cure.MAX_SPLIT_SIZE: f"PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:N keeps large blocks whole and could make the "
                             f"{size} of idle memory usable; PyTorch 2.1 and later also have expandable_segments.",
        Cure.MEMORY_FRACTION: f"This process may use no more than {size} (set_per_process_memory_fraction), and the "
                              "GPU had enough: raise or remove that limit.",
        Cure.OTHER_PROCESSES: f"Other processes hold {size}, more than was missing: end them, or take another GPU "
                              f"(process {pids}).",
        Cure.OUTSIDE_PYTORCH: f"{size} are outside PyTorch's allocator, more than was missing and than a CUDA context "
                              "takes: look for other processes (nvidia-smi), other frameworks, NCCL communicators, and "
                              "libraries that allocate by themselves.",
        Cure.PRIVATE_POOLS: f"{size} lie idle in private pools: capture fewer CUDA graphs, or fewer shapes "
                            "(torch.compile's mode reduce-overhead captures them, too).",
        Cure.ROOM_FOR_LIBRARIES: "This request did not go through PyTorch's allocator, which gives none of its cache "
                                 "back for it: leave room, for example with torch.cuda.empty_cache() before, or with "
                                 "set_per_process_memory_fraction.",
        Cure.SMALLER_JOB: f"Nothing but tensors is known to hold the {size} that were missing: the job itself must "
                          "need less" + (
                              "." if m.kind is Kind.ASYNC_ALLOCATOR else ". Give its configuration (peakcast oom LOG "
                              "MODEL …, or --from FILE) to see which part, and what would help."),
    }[advice.cure]


def _prediction_report(console: Console, job: PredictedJob) -> None:
    """Prints where the job is predicted to fail, whether that is the reported failure, what holds the memory, remedies.
    """
    found = job.reproduction
    console.print()
    for sentence in assumed(job):
        _say(console, sentence)
    outside = size_text(job.prediction.provenance.get("runtime_bytes", 0))
    _say(console, f"Predicted for this configuration on the whole GPU, {outside} outside PyTorch assumed: "
                  f"{verdict(job.prediction)}", style="bold")
    if found is None:
        _say(console, "The message does not tell how much memory PyTorch could have: its failure cannot be compared.")
    else:
        for sentence in reproduction_sentences(found, are_gpus_doubtful=job.are_gpus_doubtful):
            _say(console, sentence)
        console.print()
        console.print(compared_table(found))
        console.print()
        if found.outcome.failure is not None:
            console.print(factor_table(found.outcome, console.width, point="at the failure",
                                       total=found.outcome.failure.allocated_bytes))
            console.print()
    judged = remedies.short(job.remedies)
    if judged:
        _say(console, remedies_title(found), style="bold")
    for sentence in judged:
        _say(console, f"- {sentence}")


def assumed(job: PredictedJob) -> list[str]:
    """Sentences about what nobody gave, and about a GPU whose memory is not that of the message."""
    said = job.prediction.workload
    if job.other_bytes is None:
        return list(job.assumed)
    own = f"and {said['gpu']} has {size_text(job.other_bytes)}" if said.get("gpu") else \
        f"not {size_text(job.other_bytes)}"
    return [f"The message's GPU has {size_text(said['capacity_bytes'])}, {own}: the message's memory counts"
            + (f", with the kernels of {said['gpu']}." if said.get("gpu") else "."), *job.assumed]


def remedies_title(found: Reproduction | None) -> str:
    """With how much memory the remedies are judged."""
    if found is None:
        return "Remedies, each predicted on this GPU:"
    had = f"with the {size_text(found.outcome.limit_bytes)} that PyTorch had"
    if found.missed_bytes:
        had += f" less the {size_text(found.missed_bytes)} not predicted"
    if found.missed_tensor_bytes < found.missed_bytes:
        had += f" (expandable segments: less the {size_text(found.missed_tensor_bytes)} that tensors took more)"
    return f"Remedies, each predicted {had}:"


def compared_table(found: Reproduction) -> Table:
    """The numbers that both the message and the prediction have, side by side."""
    rows = table("", "reported", "predicted", "predicted - reported", numbers=True)
    for item in found.compared:
        equal = item.reported.may_be(item.predicted_bytes)
        rows.add_row(item.name, size_text(item.reported.bytes), size_text(item.predicted_bytes),
                     "equal, as printed" if equal else f"{item.difference_bytes:+,} B")
    return rows


def reproduction_sentences(reproduction: Reproduction, *, are_gpus_doubtful: bool = False) -> list[str]:
    """Where the job fails with the memory that it had, and whether that is the reported failure.

    ``are_gpus_doubtful`` names another number of GPUs among what may explain a difference.
    """
    outcome = reproduction.outcome
    causes = f"{OTHER_GPUS}, {POSSIBLE_CAUSES}" if are_gpus_doubtful else POSSIBLE_CAUSES
    had = f"With the {size_text(outcome.limit_bytes)} that PyTorch could have here"
    rank = f" (rank {reproduction.rank})" if reproduction.rank != "worst" else ""
    if outcome.failure is None:
        return [f"{had} the job{rank} is predicted to survive, with at most "
                f"{size_text(outcome.peak_reserved_bytes)} reserved. The prediction does not explain this error. What "
                f"may explain it: {causes}."]
    sentences = [f"{had} the job is predicted to run out of memory{failed_at(outcome.failure)}."]
    if reproduction.agrees:
        return [*sentences, "The prediction explains this error: its numbers agree with those of the message."]
    return [*sentences, "The numbers do not agree, so this may be another failure than the reported one. What may "
                        f"explain it: {causes}."]


def snapshot_report(console: Console, failure: RecordedFailure, name: str, message: Message) -> None:
    """Prints what the snapshot says about the failed allocation, or about its end, beside the message."""
    console.print()
    _say(console, f"{name}: {state(failure)}{another(failure, message)}", style="bold")
    if failure.fits_unfragmented is not None:
        idle = failure.reserved_bytes - failure.allocated_bytes
        _say(console, f"{size_text(idle)} were idle in PyTorch's cache and {size_text(failure.free_bytes or 0)} free: "
                      f"without fragmentation the request would {'' if failure.fits_unfragmented else 'not '}have fit.")
    rows = table("blocks in use, by the line that allocated them", "requested", "blocks", numbers=False)
    rows.columns[1].justify = rows.columns[2].justify = "right"
    for group in failure.allocations[:MOST_PLACES]:
        rows.add_row(printable(group.place), size_text(group.bytes), f"{group.blocks:,}")
    rest = failure.allocations[MOST_PLACES:]
    if rest:
        rows.add_row(f"{len(rest):,} more lines (--json)", size_text(sum(group.bytes for group in rest)),
                     f"{sum(group.blocks for group in rest):,}")
    console.print(rows)
    _say(console, expandable(failure, name))


def state(failure: RecordedFailure) -> str:
    """The failed allocation of a snapshot, or PyTorch's memory at its end, as a sentence after the snapshot's name."""
    memory = f"{size_text(failure.allocated_bytes)} allocated, {size_text(failure.reserved_bytes)} reserved"
    if failure.entry is None:
        most = sum(group.bytes for group in failure.allocations)
        highest = "" if failure.highest_entry is None else (
            f" At its highest point, entry {failure.highest_entry:,}, blocks of {size_text(most)} were in use.")
        return f"no failed allocation is recorded on device {failure.device}; at the end {memory}.{highest}"
    return (f"the allocation of {size_text(failure.requested_bytes or 0)} at entry {failure.entry:,} failed on device "
            f"{failure.device}, with {memory}.")


def another(failure: RecordedFailure, message: Message) -> str:
    """A sentence, after a space, where the snapshot's failure is not the message's; else empty."""
    if failure.entry is None:
        return " The message's failure is not in it: what follows is of the recording alone."
    if failure.is_of(message) is not False or message.allocated is None:
        return ""
    return (f" That is not the failure of the message, which had {size_text(message.allocated.bytes)} allocated: what "
            "follows is of the snapshot's.")


def expandable(failure: RecordedFailure, name: str, *, hint: bool = True) -> str:
    """What expandable segments would have changed, as a sentence; with ``hint`` also how to play other settings."""
    result = failure.what_if
    if failure.obstacle:
        return f"What other allocator settings would change is not known: {failure.obstacle}."
    if result is None:
        return "It was recorded with expandable segments."
    peak = f"a reserved peak of {size_text(result.peak_reserved_bytes)}"
    if failure.entry is None and result.failure is not None:
        said = (f"the job runs out of the {size_text(result.limit_bytes or 0)} that PyTorch has on the snapshot's "
                f"device, at entry {result.failure.entry:,}")
    elif failure.entry is None:
        said = peak
    elif result.failure is None:
        said = f"the allocation succeeds, with {peak}"
    else:
        said = f"the job still runs out of memory, at entry {result.failure.entry:,}"
    other = f" (peakcast replay {name} --allocator-conf … plays it with other settings, too)" if hint else ""
    return f"With expandable_segments:True: {said}{other}."


def document(found: list[Explanation], log: str, job: PredictedJob | None) -> dict[str, Any]:
    """The explained messages, and what the job's prediction adds, as JSON data."""
    judged = None if job is None else job.remedies
    return {"log": log, "messages": [_message(explanation) for explanation in found],
            "prediction": job and job.prediction.to_json(), "assumed": job and assumed(job),
            "reproduction": job and job.reproduction and _reproduction(job.reproduction),
            "remedies": None if judged is None else [remedy.to_json() for remedy in judged]}


def _message(explanation: Explanation) -> dict[str, Any]:
    m = explanation.message
    sizes = {"requested_bytes": m.requested, "capacity_bytes": m.capacity, "free_bytes": m.free,
             "allocated_bytes": m.allocated, "idle_bytes": m.idle, "private_pools_idle_bytes": m.pools,
             "reserved_bytes": m.reserved, "allowed_bytes": m.allowed, "missing_bytes": m.missing,
             "this_process_bytes": explanation.this_process, "limit_bytes": explanation.limit}
    return {
        "kind": m.kind.value, "wording": m.wording, "source": m.source, "line": m.line, "times": m.times,
        "device": m.device, **{name: size and size.bytes for name, size in sizes.items()},
        "rounding_bytes": {name: size.rounding_bytes for name, size in sizes.items() if size is not None},
        "place": None if m.place is None else _place(m.place),
        "shares": [{"holder": part.holder.name.lower(), "pid": part.pid, "bytes": part.memory.bytes,
                    "rounding_bytes": part.memory.rounding_bytes} for part in explanation.shares],
        "other_processes": [{"pid": p.pid, "bytes": p.memory.bytes} for p in explanation.others],
        "unidentified_processes": [{"pid": p.pid, "bytes": p.memory.bytes} for p in explanation.unidentified],
        "advice": [{"cure": advice.cure.value, "bytes": advice.bytes, "pids": list(advice.pids),
                    "text": advice_text(advice, explanation)} for advice in explanation.advice],
    }


def _place(place: Place) -> dict[str, Any]:
    def frame(item: Frame | None) -> dict[str, Any] | None:
        return None if item is None else {"file": item.file, "line": item.line, "function": item.function}

    return {"moment": place.moment and place.moment.value, "within": place.within or None,
            "inside": frame(place.inside), "innermost": frame(place.innermost), "own": frame(place.own)}


def _reproduction(reproduction: Reproduction) -> dict[str, Any]:
    """The predicted failure beside the reported one as JSON data."""
    outcome, failure = reproduction.outcome, reproduction.outcome.failure
    return {
        "rank": reproduction.rank, "limit_bytes": outcome.limit_bytes, "agrees": reproduction.agrees,
        "missed_bytes": reproduction.missed_bytes, "missed_tensor_bytes": reproduction.missed_tensor_bytes,
        "compared": [{"name": item.name, "reported_bytes": item.reported.bytes,
                      "rounding_bytes": item.reported.rounding_bytes, "predicted_bytes": item.predicted_bytes,
                      "difference_bytes": item.difference_bytes, "agrees": item.agrees}
                     for item in reproduction.compared],
        "out_of_memory": None if failure is None else asdict(failure) | {
            "moment": failure.moment.value, "segment_bytes": outcome.segment_bytes},
        "factors": {factor.value: size for factor, size in outcome.factors.items()},
        "modules": {name: {factor.value: size for factor, size in split.items()}
                    for name, split in outcome.modules.items()},
        "peak_reserved_bytes": outcome.peak_reserved_bytes if failure is None else None,
    }


def snapshot_document(failure: RecordedFailure, path: str, message: Message) -> dict[str, Any]:
    """A snapshot's failed allocation as JSON data, and whether it is the message's."""
    result = failure.what_if
    return {
        "snapshot": path, "device": failure.device, "entry": failure.entry, "is_of_message": failure.is_of(message),
        "requested_bytes": failure.requested_bytes, "allocated_bytes": failure.allocated_bytes,
        "reserved_bytes": failure.reserved_bytes, "free_bytes": failure.free_bytes,
        "fits_without_fragmentation": failure.fits_unfragmented, "highest_entry": failure.highest_entry,
        "allocations": [{"place": group.place, "requested_bytes": group.bytes, "blocks": group.blocks}
                        for group in failure.allocations],
        "what_if": None if result is None else {
            "allocator_conf": result.settings, "peak_allocated_bytes": result.peak_allocated_bytes,
            "peak_reserved_bytes": result.peak_reserved_bytes, "failures_avoided": result.failures_avoided,
            "out_of_memory_at_entry": None if result.failure is None else result.failure.entry},
        "obstacle": failure.obstacle or None,
    }


def _say(console: Console, text: str, style: str = "") -> None:
    for line in wrapped(console, text, indent=0):
        console.print(line, style=style)
