"""A plan as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from predictor.plan import document, launch
from predictor.plan.plan import Plan
from predictor.plan.precision import PLAIN
from predictor.plan.search import Candidate, Configuration
from predictor.report import value_sources
from predictor.report.layout import table, wrapped
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
    _rest(console, plan)
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
            _print(console, f"It is not the same training: {differs}.")
    else:
        console.print(f"Nothing fits {where} ({size_text(plan.capacity_bytes)}).", style="bold red")
        _print(console, f"The closest: {closest.setting.name}, {_shape(closest.candidate)}; it needs GPUs of "
               f"{size_text(closest.prediction.minimum_capacity_bytes)}.")
        if plan.kept:
            _print(console, f"Given, and so kept: {', '.join(plan.kept)}. Without, more configurations are tried.")
    console.print()


def _shape(one: Candidate) -> str:
    parts = [f"micro batch {one.batch:,}" + (f" x {one.sequence:,} tokens" if one.sequence else ""),
             f"{one.accumulation:,} accumulation steps" if one.accumulation > 1 else ""]
    return ", ".join(filter(None, parts))


def _ranking(plan: Plan):
    """The configurations with their costs, in units of the first one's."""
    rows = table("configuration", "micro\nbatch", "accumu-\nlation", "tokens", "reserved\n(GiB)", "cost",
                 "recompu-\ntation", "communi-\ncation", numbers=True)
    rows.columns[0].no_wrap = False
    unit = _cost(plan, plan.found.fitting[0]).seconds or 1  # of a learned job whose model nobody saw
    for one in plan.found.fitting:
        name = one.setting.name + "".join(f" ({differs})" for differs in one.setting.differs)
        rows.add_row(name, f"{one.candidate.batch:,}", f"{one.candidate.accumulation:,}",
                     f"{one.candidate.sequence:,}" if one.candidate.sequence else "",
                     gib(one.prediction.peak_reserved.bytes), *(f"{part / unit:.3f}" for part in _cost(plan, one)))
    return rows


class _Cost(NamedTuple):
    """All, and of it recomputation and what goes between GPUs and to the host."""

    seconds: float
    recomputation: float
    sent: float


def _cost(plan: Plan, one: Configuration) -> _Cost:
    """Of a sample, or a token where samples differ."""
    cost = one.estimate
    share = 1 / (cost.samples * (one.candidate.sequence if plan.goal == "sequence" else 1))
    return _Cost(cost.seconds * share, cost.recomputation * share, (cost.communication + cost.host) * share)


def _methods(console: Console, plan: Plan) -> None:
    """The cheapest of each kind of sharing the work, or why none fits."""
    if not plan.methods:
        return
    rows = table("method", "cheapest that fits", "micro\nbatch", "reserved\n(GiB)", "cost")
    for column in rows.columns[2:]:
        column.justify = "right"
    rows.columns[1].no_wrap = False
    unit = plan.proposed and _cost(plan, plan.proposed).seconds or 1
    for one in plan.methods:
        best = one.cheapest
        rows.add_row(one.kind, *((best.setting.name, f"{best.candidate.batch:,}",
                                  gib(best.prediction.peak_reserved.bytes), f"{_cost(plan, best).seconds / unit:.3f}")
                                 if best else ("none",)))
    console.print(rows)
    reasons: dict[str, list[str]] = {}
    for one in plan.methods:
        if one.closest:
            asks = f"asks for {size_text(one.least_bytes)} at least" if one.least_bytes else "does not fit"
            reasons[f"{one.closest.name} {asks}"] = [one.kind]
        elif one.why_none:
            reasons.setdefault(one.why_none, []).append(one.kind)
    for why, kinds in reasons.items():
        _print(console, f"None of {'; '.join(kinds)}: {why}.")
    console.print()


def _rest(console: Console, plan: Plan) -> None:
    """What became of the ways to share the work that are not in the ranking, and what could not be looked at."""
    found = plan.found
    said = {one.setting.method for one in (*found.fitting, *found.cheapest.values())}
    for head, settings in (("Not looked at (costs more, or learns something else)", found.unseen),
                           ("Does not fit", found.failed)):
        methods = dict.fromkeys(one.method for one in settings if one.method not in said)
        if methods:
            _print(console, f"{head}: {'; '.join(methods)}.")
        said |= methods.keys()
    reasons: dict[str, list[str]] = {}
    for one, why in found.left_out:
        reasons.setdefault(why, []).append(one.name)
    for why, names in reasons.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        _print(console, f"Left out: {names[0]}{more}: {why}.")
    console.print()


def _knobs(console: Console, plan: Plan) -> None:
    giving = [knob for knob in plan.knobs
              if max(knob.gives_allocated_bytes or 0, knob.gives_reserved_bytes or 0) > 0]
    if plan.standing == "given":
        _print(console, f"Your configuration takes {size_text(plan.before.allocated_bytes)} allocated, "
               f"{size_text(plan.before.reserved_bytes)} reserved where memory is not short.")
    if giving:
        rows = table(f"from {STANDING[plan.standing]}", "allocated\n(GiB less)", "reserved\n(GiB less)", "costs")
        rows.columns[1].justify = rows.columns[2].justify = "right"
        for knob in giving:
            sizes = map(_signed, (knob.gives_allocated_bytes, knob.gives_reserved_bytes))
            rows.add_row(knob.change, *sizes, knob.costs)
        console.print(rows)
    nothing = [knob.change for knob in plan.knobs if not knob.why_not and knob not in giving]
    if nothing:
        _print(console, f"Would give nothing: {'; '.join(nothing)}.")
    for knob in plan.knobs:
        if knob.why_not:
            _print(console, f"Not known: {knob.change}: {knob.why_not}.")
    console.print()


def _signed(size: int) -> str:
    return f"−{gib(-size)}".replace("−<0.01", "0.00") if size < 0 else gib(size)


def _files(console: Console, plan: Plan) -> None:
    workload = document.launched(plan)
    if workload is None:
        return
    why, frozen, unfrozen = launch.no_arguments(workload), document.frozen(plan), document.unfrozen(plan)
    _print(console, f"Files: {launch.WORKLOAD} alone, {why}." if why else f"Arguments: {launch.command_line(workload)}")
    steps = ["load the model with from_pretrained(…, distributed_config=DistributedConfig(tp_size="
             f"{workload.tensor_parallel_size}))"] if not why and workload.tensor_parallel_size > 1 else []
    steps += [f"load the weights in {workload.dtype}"] if not why and workload.engine in PLAIN else []
    steps += ["add peft's adapters (lora in workload.json), which freeze the rest"] if workload.lora else []
    steps += [f"let {', '.join(unfrozen)} train"] if unfrozen else []
    steps += [f"freeze {', '.join(frozen)}"] if frozen else []
    if steps:
        _print(console, f"Before training, as no argument says it, only {launch.WORKLOAD}: {'; '.join(steps)}.")
    console.print()


def _tail(console: Console, plan: Plan) -> None:
    value_sources.report(console, plan.source)
    counts = plan.counts
    _print(console, f"{plan.configurations:,} configurations in {plan.settings} settings, in {plan.seconds:.1f} s: "
           f"{counts.ruled_out:,} cannot fit whatever the batch is, {counts.decided:,} were told apart by "
           f"{counts.composed} closed forms, the rest costs more than what is listed; {counts.simulated} runs through "
           f"the allocator's simulation, {counts.traced} traces.")
    _print(console, "Cost: " + "; ".join(plan.assumptions) + ".")
    _print(console, "Not modelled: " + ("; ".join(plan.not_modelled) or "nothing that is known"))
