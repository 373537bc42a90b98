"""A plan as tables for a terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from predictor.plan import launch
from predictor.plan.plan import Plan, workload_of
from predictor.plan.search import Candidate, Configuration
from predictor.report.table import table, wrapped
from predictor.report.units import gib, size_text

if TYPE_CHECKING:
    from rich.console import Console

STANDING = {"given": "your configuration", "proposed": "the proposed configuration", "closest": "what comes closest"}


def report(console: Console, plan: Plan) -> None:
    """The whole answer of ``peakcast plan``."""
    _head(console, plan)
    if plan.found.fitting:
        console.print(_ranking(plan))
        console.print()
    _methods(console, plan)
    _knobs(console, plan)
    _files(console, plan)
    _tail(console, plan)


def _print(console: Console, text: str, indent: int = 0) -> None:
    for line in wrapped(console, text, indent):
        console.print(line)


def _head(console: Console, plan: Plan) -> None:
    where = f"{plan.gpus} × {plan.gpu}" if plan.gpus > 1 else plan.gpu
    best, closest = plan.proposed, plan.closest
    if best:
        console.print(f"Proposed for {where}: {best.setting.name}, {_shape(best.candidate)}.", style="bold green")
        peak = best.prediction.peak_reserved.bytes
        _print(console, f"Peak {size_text(best.prediction.peak_allocated.bytes)} allocated, {size_text(peak)} reserved "
               f"of {size_text(plan.capacity_bytes)}; {size_text(best.prediction.headroom_bytes)} stay free.")
        if plan.largest != best.candidate:
            _print(console, f"The largest that fits in this setting: {_shape(plan.largest)}.")
        for differs in best.setting.differs:
            _print(console, f"It learns something else than you asked: {differs}.")
    else:
        console.print(f"Nothing fits {where} ({size_text(plan.capacity_bytes)}).", style="bold red")
        _print(console, f"The closest: {closest.setting.name}, {_shape(closest.candidate)}; it needs GPUs of "
               f"{size_text(closest.prediction.minimum_capacity_bytes)}.")
    console.print()


def _shape(one: Candidate) -> str:
    parts = [f"micro batch {one.batch:,}" + (f" x {one.sequence:,} tokens" if one.sequence else ""),
             f"{one.accumulation:,} accumulation steps" if one.accumulation > 1 else ""]
    return ", ".join(filter(None, parts))


def _ranking(plan: Plan):
    rows = table("configuration", "micro\nbatch", "accumu-\nlation", "tokens", "reserved\nGiB", "cost", "of it recom-\nputation",
                 "communi-\ncation", numbers=True)
    rows.columns[0].no_wrap = False
    best = plan.found.fitting[0].estimate.seconds_per_sample
    for one in plan.found.fitting:
        rows.add_row(*_row(one, best))
    return rows


def _row(one: Configuration, best: float) -> tuple[str, ...]:
    cost, samples = one.estimate, one.estimate.samples * best
    return (one.setting.name + "".join(f" ({differs})" for differs in one.setting.differs),
            f"{one.candidate.batch:,}", f"{one.candidate.accumulation:,}", f"{one.candidate.sequence or '':,}" if
            one.candidate.sequence else "", gib(one.prediction.peak_reserved.bytes),
            f"{cost.seconds_per_sample / best:.3f}", f"{cost.recomputation / samples:.3f}",
            f"{(cost.communication + cost.host) / samples:.3f}")


def _methods(console: Console, plan: Plan) -> None:
    """What became of each way to share the work."""
    found = plan.found
    fits = dict.fromkeys(one.setting.method for one in found.fitting)
    groups = {"does not fit": [one.method for one in found.failed], "costs more": [one.method for one in found.unseen]}
    for name, methods in groups.items():
        left = dict.fromkeys(method for method in methods if method not in fits)
        if left:
            _print(console, f"{name.capitalize()}: {', '.join(left)}.")
    for why, _ in Counter(why for _, why in found.left_out).most_common():
        names = dict.fromkeys(one.method for one, reason in found.left_out if reason == why)
        _print(console, f"Left out: {', '.join(names)}: {why}")
    console.print()


def _knobs(console: Console, plan: Plan) -> None:
    known = [knob for knob in plan.knobs if not knob.why_not]
    if not plan.knobs:
        return
    rows = table(f"from {STANDING[plan.standing]}", "gives\nallocated GiB", "reserved\nGiB", "costs")
    rows.columns[1].justify = rows.columns[2].justify = "right"
    for knob in known:
        rows.add_row(knob.change, _signed(knob.gives_allocated_bytes), _signed(knob.gives_reserved_bytes), knob.costs)
    console.print(rows)
    for knob in plan.knobs:
        if knob.why_not:
            _print(console, f"{knob.change}: not known: {knob.why_not}")
    console.print()


def _signed(size: int) -> str:
    return f"−{gib(-size)}" if size < 0 else gib(size)


def _files(console: Console, plan: Plan) -> None:
    if plan.proposed is None or plan.proposed.setting.keys["model"].endswith(".npz"):
        return
    _print(console, f"Arguments: {launch.command_line(workload_of(plan.proposed))}")
    console.print()


def _tail(console: Console, plan: Plan) -> None:
    counts = plan.counts
    _print(console, f"{plan.configurations:,} configurations in {plan.settings} settings: {counts.configurations:,} "
           f"decided by {counts.composed} closed forms, {counts.simulated} runs through the allocator's simulation, "
           f"{counts.traced} traces; the rest cost more. {plan.seconds:.1f} s.")
    _print(console, "Cost: " + "; ".join(plan.assumptions) + ".")
    _print(console, "Not modelled: " + ("; ".join(plan.not_modelled) or "nothing that is known"))
