"""Renders a plan as tables and sentences for a terminal."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from predictor.allocator.settings import EXPANDABLE
from predictor.engine.host_memory import OFFLOADS
from predictor.plan import document, launch
from predictor.plan.knobs import Knob
from predictor.plan.maxima import Maximum
from predictor.plan.own_files import OwnFiles
from predictor.plan.plan import Plan, workload_of
from predictor.plan.precision import PLAIN
from predictor.plan.search import Candidate, Configuration, Step
from predictor.report import remedies, value_sources
from predictor.report.console import WIDTH
from predictor.report.layout import print_wrapped as _print
from predictor.report.layout import table
from predictor.report.units import gib, size_text
from predictor.workload.command_line import command_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MOST_WORDS = 64
"""Characters of the user's own words in a table of changes."""
STANDING = {"given": "your configuration", "proposed": "the proposed configuration", "closest": "what comes closest"}


def report(console: Console, plan: Plan, wrote: str = "") -> None:
    """Prints the result of ``peakcast plan``."""
    head(console, plan)
    if plan.found.fitting:
        console.print(_ranking(plan))
        console.print()
        for row in plan.found.fitting:
            console.print(f"# {row.setting.name}, {_shape(row.candidate)}", soft_wrap=True)
            typed(console, row)
        console.print()
    _methods(console, plan)
    _rest(console, plan)
    _knobs(console, plan)
    files(console, plan, wrote)
    _tail(console, plan)


def progress_text(step: Step) -> str:
    """A line for a search that is not over."""
    best = step.best
    known = "nothing fits so far" if best is None else (
        f"best so far: {best.setting.name}, {_shape(best.candidate)}: {size_text(best.prediction.peak_reserved_bytes)} "
        "reserved")
    return f"examining {step.setting.name} ({step.waiting} settings wait); {known}"


def head(console: Console, plan: Plan) -> None:
    """Prints the proposed configuration, or what comes closest and what would help."""
    where = f"{plan.gpus} × {plan.gpu}" if plan.gpus > 1 else plan.gpu
    best, closest = plan.proposed, plan.closest
    if plan.assumed:
        _print(console, plan.assumed)
    if best:
        console.print(f"Proposed for {where}: {best.setting.name}, {_shape(best.candidate)}.", style="bold green")
        peak = best.prediction.peak_reserved_bytes
        _print(console, f"Peak {size_text(best.prediction.peak_allocated_bytes)} allocated, {size_text(peak)} reserved "
               f"of {size_text(plan.capacity_bytes)}; {size_text(best.prediction.headroom_bytes or 0)} stay free.")
        _maxima(console, plan, best.candidate)
        for note in best.prediction.not_modelled:
            if note.startswith(OFFLOADS):
                _print(console, f"{note[:1].upper()}{note[1:].partition(' (')[0]}.")
        for differs in best.setting.differs:
            _print(console, f"It is not the same training: {differs}.")
    else:
        assert closest is not None  # a plan has a proposed or a closest configuration
        given = " with what is given" if plan.kept else ""
        console.print(f"Nothing fits {where} ({size_text(plan.capacity_bytes)}){given}.", style="bold red")
        _print(console, f"The closest: {closest.setting.name}, {_shape(closest.candidate)}; it needs GPUs of "
               f"{size_text(closest.prediction.minimum_capacity_bytes or 0)}.")
        if plan.kept:
            _print(console, f"Given, and so kept: {', '.join(plan.kept)}. Leave any out, and more is tried; or change:")
        for sentence in remedies.short(plan.remedies, to_check=remedies.BY_PREDICT):
            _print(console, sentence)
    console.print()


def _maxima(console: Console, plan: Plan, proposed: Candidate) -> None:
    """Prints the largest micro batches of the proposed setting, without and with expandable segments."""
    plain, expandable = plan.largest, plan.largest_expandable
    if not plain or plan.goal == "sequence":  # whose batch is not searched
        return
    larger = plain.micro_batch > proposed.batch
    _print(console, f"The largest that fits in this setting: {_largest(plain, proposed)}." if larger else
           "No larger micro batch was found to fit in this setting.")
    if expandable:
        said = _largest(expandable, proposed) if expandable.micro_batch > plain.micro_batch else "no larger one either"
        _print(console, f"With PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}: {said}.")
    for sentence in plain.search_limits:
        _print(console, sentence)


def _largest(maximum: Maximum, proposed: Candidate) -> str:
    """The largest shape with the wanted samples per step, and the largest micro batch without that condition."""
    chosen = maximum.candidate
    shapes = [_shape(chosen)] if chosen != proposed else []
    if maximum.micro_batch > chosen.batch:
        other = _shape(replace(chosen, batch=maximum.micro_batch, accumulation=1))
        shapes.append(f"{other}, with another number of samples per optimizer step")
    return "; ".join(shapes)


def _shape(shape: Candidate) -> str:
    parts = [f"micro batch {shape.batch:,}" + (f" x {shape.sequence:,} tokens" if shape.sequence else ""),
             f"{shape.accumulation:,} accumulation steps" if shape.accumulation > 1 else ""]
    return ", ".join(filter(None, parts))


def _ranking(plan: Plan) -> Table:
    """A table of the configurations with their costs, relative to the cost of the first."""
    rows = table("configuration", "micro\nbatch", "accumu-\nlation", "tokens", "reserved\n(GiB)", "cost",
                 "recompu-\ntation", "communi-\ncation", numbers=True)
    rows.columns[0].no_wrap = False
    unit = cost(plan, plan.found.fitting[0]).seconds or 1  # 0 for a learned job without a list of parameters
    for row in plan.found.fitting:
        name = row.setting.name + "".join(f" ({differs})" for differs in row.setting.differs)
        rows.add_row(name, f"{row.candidate.batch:,}", f"{row.candidate.accumulation:,}",
                     f"{row.candidate.sequence:,}" if row.candidate.sequence else "",
                     gib(row.prediction.peak_reserved_bytes), *(f"{part / unit:.3f}" for part in cost(plan, row)))
    return rows


class _Cost(NamedTuple):
    """Seconds of a sample or a token, and of these the recomputation and the transfers between GPUs and to the host."""

    seconds: float
    recomputation: float
    sent: float


def cost(plan: Plan, row: Configuration) -> _Cost:
    """The cost per sample, or per token if sequence lengths differ between configurations."""
    cost = row.estimate
    tokens = (row.candidate.sequence or 1) if plan.goal == "sequence" else 1
    parts = (cost.seconds, cost.recomputation, cost.communication + cost.host)
    share = 1 / (float(cost.samples) * tokens)
    return _Cost(*(float(part) * share for part in parts))


def typed(console: Console, row: Configuration) -> None:
    """Prints the command that predicts a configuration, in lines that a shell takes as one."""
    lines = [""]
    for word in map(shlex.quote, shlex.split(command_line(workload_of(row)))):
        if lines[-1].strip() and len(lines[-1]) + len(word) > WIDTH - 3:
            lines.append(" ")
        lines[-1] += f" {word}" if lines[-1] else word
    for number, line in enumerate(lines, start=1):
        console.print(line + " \\" * (number < len(lines)), soft_wrap=True, markup=False, highlight=False)


def _methods(console: Console, plan: Plan) -> None:
    """Prints the cheapest configuration of each way to share the work, or why none fits."""
    if not plan.methods:
        return
    rows = table("method", "cheapest that fits", "micro\nbatch", "reserved\n(GiB)", "cost")
    for column in rows.columns[2:]:
        column.justify = "right"
    rows.columns[1].no_wrap = False
    unit = plan.proposed and cost(plan, plan.proposed).seconds or 1
    for method in plan.methods:
        best = method.cheapest
        rows.add_row(method.kind, *((
            best.setting.name, f"{best.candidate.batch:,}", gib(best.prediction.peak_reserved_bytes),
            f"{cost(plan, best).seconds / unit:.3f}") if best else ("none",)))
    console.print(rows)
    reasons: dict[str, list[str]] = {}
    for method in plan.methods:
        if method.closest:
            needs = f"needs at least {size_text(method.least_bytes)}" if method.least_bytes else "does not fit"
            reasons[f"{method.closest.name} {needs}"] = [method.kind]
        elif method.why_none:
            reasons.setdefault(method.why_none, []).append(method.kind)
    for reason, names in reasons.items():
        _print(console, f"No {' or '.join(names)} configuration fits: {reason}.")
    console.print()


def _rest(console: Console, plan: Plan) -> None:
    """Prints the methods that are in no table yet: not examined, not fitting, or not predicted."""
    found = plan.found
    printed = {row.setting.method for row in (*found.fitting, *found.cheapest.values())}
    for head, settings in (("Not examined (costs more, or trains something else)", found.unseen),
                           ("Does not fit", found.failed)):
        methods = dict.fromkeys(setting.method for setting in settings if setting.method not in printed)
        if methods:
            _print(console, f"{head}: {'; '.join(methods)}.")
        printed |= methods.keys()
    reasons: dict[str, list[str]] = {}
    for setting, reason in found.left_out:
        reasons.setdefault(reason, []).append(setting.name)
    for reason, names in reasons.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        _print(console, f"Left out: {names[0]}{more}: {reason}.")
    console.print()


def _knobs(console: Console, plan: Plan) -> None:
    giving = [knob for knob in plan.knobs
              if max(knob.gives_allocated_bytes or 0, knob.gives_reserved_bytes or 0) > 0]
    if plan.standing == "given":
        _print(console, f"Your configuration takes {size_text(plan.before.allocated_bytes)} allocated, "
               f"{size_text(plan.before.reserved_bytes)} reserved on a larger GPU.")
    if giving:
        rows = table(f"from {STANDING[plan.standing]}", "allocated\nsaved (GiB)", "reserved\nsaved (GiB)", "costs")
        rows.columns[1].justify = rows.columns[2].justify = "right"
        for knob in giving:
            sizes = map(signed, (knob.gives_allocated_bytes, knob.gives_reserved_bytes))
            rows.add_row(knob_text(knob), *sizes, knob.costs)
        console.print(rows)
    nothing = [knob_text(knob) for knob in plan.knobs if not knob.why_not and knob not in giving]
    if nothing:
        _print(console, f"Would give nothing: {'; '.join(nothing)}.")
    for knob in plan.knobs:
        if knob.why_not:
            _print(console, f"Not known: {knob_text(knob)}: {knob.why_not}.")
    console.print()


def knob_text(knob: Knob) -> str:
    """A change in the words of the user's own file; in peakcast's where there are none, or long ones."""
    return knob.own_words if knob.where and 0 < len(knob.own_words) <= MOST_WORDS else knob.change


def signed(size: int | None) -> str:
    """Bytes that a knob gives, in GiB; with a minus sign if it takes them, empty if they are unknown."""
    if size is None:
        return ""
    return f"−{gib(-size)}".replace("−<0.01", "0.00") if size < 0 else gib(size)


def files(console: Console, plan: Plan, wrote: str = "") -> None:
    """Prints how the proposed configuration is launched, and which files were written, or how to write them.

    Prints nothing if nothing fits, or for a learned job.

    Args:
        wrote: what was written, as a sentence; empty if nothing was.
    """
    workload = document.launched(plan)
    if workload is None:
        return
    if isinstance(plan.own, OwnFiles):
        change, reserved = plan.own.change, size_text(plan.own.peak_reserved_bytes)
        where = plan.source.file if plan.source else ""
        _print(console, f"Change {change.text} ({change.where}): {reserved} reserved. "
               f"{wrote or '--write DIR writes the changed files.'}" if change else
               f"{where} is the plan already, nothing to change: {reserved} reserved.")
        console.print()
        return
    why, frozen, unfrozen = launch.no_arguments(workload), document.frozen(plan), document.unfrozen(plan)
    _print(console, f"Files: {launch.WORKLOAD} alone, {why}." if why else f"Arguments: {launch.command_line(workload)}")
    steps = ["load the model with from_pretrained(…, distributed_config=DistributedConfig(tp_size="
             f"{workload.tensor_parallel_size}))"] if not why and workload.tensor_parallel_size > 1 else []
    steps += [f"load the weights in {workload.dtype}"] if not why and workload.engine in PLAIN else []
    steps += ["add peft's adapters (lora in workload.json), which freeze the rest"] if workload.lora else []
    steps += [f"let {', '.join(unfrozen)} train"] if unfrozen else []
    steps += [f"freeze {', '.join(frozen)}"] if frozen else []
    if plan.own:
        _print(console, f"{plan.own}.")
    _print(console, wrote or "--write DIR writes the files.")
    if steps:
        _print(console, f"Before training, do what no argument does: {'; '.join(steps)}.")
    console.print()


def _tail(console: Console, plan: Plan) -> None:
    value_sources.report(console, plan.source)
    counts = plan.counts
    untraced = f"{counts.no_formula:,} have no formula yet, " if counts.no_formula else ""
    _print(console, f"{plan.configurations:,} configurations in {plan.settings} settings, in {plan.seconds:.1f} s: "
           f"{counts.ruled_out:,} cannot fit at any batch size, {counts.decided:,} were compared with the capacity by "
           f"{counts.composed} closed forms, {untraced}the rest costs more than what is listed; {counts.simulated} "
           f"runs through the allocator's simulation, {counts.traced} trace{'s' if counts.traced != 1 else ''}.")
    _print(console, *map(remedies.caution, plan.proposed.prediction.cautions if plan.proposed else ()))
    _print(console, "Cost: " + "; ".join(plan.assumptions) + ".")
    _print(console, "Not modelled: " + ("; ".join(plan.not_modelled) or "nothing that is known"))
