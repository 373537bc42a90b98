"""Turns a simulated run into a prediction: the peaks with their intervals, and the tensors alive at the peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.allocator import AllocatorSettings
from predictor.answer.attribution import FLAT, attributed
from predictor.answer.cautions import cautions
from predictor.answer.prediction import Bound, Candidate, OutOfMemory, Peak, Prediction, Timeline
from predictor.events import timeline
from predictor.events.composed_run import Run
from predictor.events.events import FACTORS, MOMENTS, Factor, Moment
from predictor.formula import learned
from predictor.jobs import survival
from predictor.jobs.survival import Outcome, Reserved
from predictor.profile.corrections import Margin
from predictor.profile.job_traits import COUNTERS
from predictor.profile.profile import Choice
from predictor.workload.engines import ENGINES

if TYPE_CHECKING:
    from predictor.jobs.training_job import Job

RUNTIME = "CUDA context, NCCL and library memory outside PyTorch's allocator"
WORKSPACES = "private workspaces of cuDNN engines"
LOOP = "data loaders, {}, checkpoint saving, and what Hugging Face's Trainer holds beyond the reference loop"
EVALUATED, NOT_EVALUATED = "logits that an evaluation keeps for metrics", "evaluation"
"""What of evaluations is left out, where they are predicted and where not."""


def answer(job: Job, outcome: Outcome, *, with_timeline: bool, with_history: bool,
           minimum_capacity_bytes: int | None, with_cautions: bool = True) -> Prediction:
    """Builds the prediction from a job's run and its allocator simulation.

    Args:
        outcome: the run of the rank that requests the most, its simulation, and those of the ranks that allocate and
            reserve the most.
        with_timeline: also return the curve of live bytes and the candidates for the peak.
        with_history: also return the memory history, as PyTorch would record it.
        minimum_capacity_bytes: the result of that search; None if it was not run.
        with_cautions: also judge the job in other loops, which takes longer than the rest.
    """
    workload, described, margin = job.workload, job.described(), job.margin
    run, simulation, capacity = outcome.run, outcome.simulation, workload.capacity
    allocated_run, blocks = outcome.allocated or (run, simulation)
    peak_allocated, reserved = blocks.peak_allocated_bytes, outcome.reserved
    modules, layers = split_at(allocated_run, blocks.peak_at, peak_allocated, job)
    owners = attributed(allocated_run, blocks.peak_at, peak_allocated, job)
    tag = run.events[int(np.argmax(run.live))].tag
    requested = Bound.of(run.peak, margin.of("requested"))
    allocated = Bound.of(peak_allocated, margin.of("allocated")).not_below(requested)
    bound = Bound.of(reserved.bytes, margin.of("reserved"), reserved.low, reserved.high).not_below(allocated)
    return Prediction(
        workload=described, filled_in=tuple(name for name in workload.filled_in if name in described),
        requested=requested, allocated=allocated, reserved=bound,
        device=device_bound(bound, margin) if workload.gpu or job.profile else None,
        fragmentation_bytes=blocks.reserved_at_peak_bytes - peak_allocated,
        capacity_bytes=capacity, headroom_bytes=None if capacity is None else capacity - reserved.bytes,
        verdict=outcome.verdict, out_of_memory=failure_of(outcome), minimum_capacity_bytes=minimum_capacity_bytes,
        peak=Peak(tag.moment, tag.module, tag.operator, run.rank, tag.step, reserved.rank, allocated_run.rank),
        factors=sum_of(modules), modules=modules, layers=layers,
        modules_attributed=owners[0], layers_attributed=owners[1],
        moments={moment: _point(run, index) for moment, index in timeline.highest_events(run.events, run.live)},
        not_modelled=not_modelled(job.profile, job.loop or LOOP.format(
            EVALUATED if job.evaluation else NOT_EVALUATED)) + job.notes() + (
            workload.source.left_out(workload) if workload.source else ()),
        source=workload.source,
        provenance=_provenance(job, reserved),
        candidates=_candidates(run, job) if with_timeline else (),
        curve=_curve(outcome, job.setup.allocator, capacity) if with_timeline else None,
        frozen_bytes=_frozen(job), passed_bytes=_passed(run, job),
        cautions=cautions(job, outcome.verdict, bound) if with_cautions else (),
        history=survival.record(outcome, job.setup.allocator, capacity).snapshot() if with_history else None)


def _frozen(job: Job) -> int | None:
    """Bytes of frozen parameters, where every GPU holds them in full; None where the engine shards them."""
    engine = ENGINES.get(job.setup.engine)
    if engine is None or not engine.whole:
        return None
    return sum(tensor.bytes for tensor in job.formula.facts.parameters if not tensor.trainable)


def _passed(run: Run, job: Job) -> dict[str, int]:
    """Activation bytes that frozen modality modules keep for backward at the end of the last forward, by module.

    Backward still runs through such a module if a module before it trains.
    """
    parameters = [tensor for tensor in job.formula.facts.parameters if not tensor.buffer]
    frozen = {job.module_of(tensor.module) for tensor in parameters} - {
        job.module_of(tensor.module) for tensor in parameters if tensor.trainable}
    events, buffers = run.events, run.events.buffers
    modules = [job.module_of(name) for name in events.names]
    computed = np.isin(buffers.factor, [FACTORS.index(factor) for factor in (Factor.ACTIVATIONS, Factor.TEMPORARIES)])
    reached = events.buffer[(events.sign > 0) & (events.moment == MOMENTS.index(Moment.BACKWARD))]
    passed = frozen & {modules[name] for name in np.unique(buffers.module[reached[computed[reached]]]).tolist()}
    forward = np.flatnonzero(events.moment == MOMENTS.index(Moment.FORWARD))
    if not passed or not len(forward):
        return {}
    kept = [row for row in timeline.alive_buffers(events, forward[-1])
            if FACTORS[buffers.factor[row]] is Factor.ACTIVATIONS]
    return {name: sum(int(run.row_bytes[buffers.size[row]]) for row in kept if modules[buffers.module[row]] == name)
            for name in sorted(passed)}


def device_bound(reserved: Bound, margin: Margin) -> Bound:
    """The device peak that ``nvidia-smi`` shows: the reserved one, and what lies outside PyTorch's allocator."""
    low = reserved.bytes if reserved.low is None else reserved.low
    high = reserved.bytes if reserved.high is None else reserved.high
    return Bound(reserved.bytes + margin.runtime_expected, low + margin.runtime_low, high + margin.runtime_high)


def not_modelled(profile: Choice | None, loop: str) -> tuple[str, ...]:
    """Sentences about memory that the prediction leaves out. A profile measured on a real GPU covers some of it.

    Args:
        loop: what the training loop holds beyond the reference loop.
    """
    assumed = f"{RUNTIME}: the device peak adds an assumed range"
    if profile is None:
        return (assumed, WORKSPACES, loop)
    data = profile.profile
    notes = [] if data.runtime.measured_on == "device" else [assumed]
    if data.measured_on != "device":
        notes.append(WORKSPACES)
    notes.append(loop)
    if profile.extrapolates:
        notes.append(f"what the profile {profile.name} did not cover: {', '.join(profile.extrapolates)}")
    unknown = [counter for counter in COUNTERS[:3] if counter not in data.residuals]
    if unknown:
        notes.append(f"how far measured peaks are from predicted ones: the profile {profile.name} has no intervals for "
                     f"{', '.join(unknown)} (no held-out job was measured)")
    return tuple(notes)


def failure_of(outcome: Outcome) -> OutOfMemory | None:
    """The allocation that fails. If the verdict is uncertain, the one that fails with the least memory assumed."""
    if outcome.failure is None:
        return None
    run, simulation = outcome.failure.run, outcome.failure.simulation
    assert simulation.failed_at is not None and simulation.out_of_memory is not None  # a failure has both
    tag, error = run.events[simulation.failed_at].tag, simulation.out_of_memory
    return OutOfMemory(tag.moment, tag.module, tag.operator, tag.step, run.rank, error.requested_bytes,
                       error.allocated_bytes, error.reserved_bytes)


def _point(run: Run, index: int) -> dict:
    tag = run.events[index].tag
    return {"requested_bytes": int(run.live[index]), "module": tag.module, "operator": tag.operator, "step": tag.step}


def split_at(run: Run, index: int, total: int, job: Job) -> tuple[dict, dict]:
    """Requested bytes alive at an event, by modality module and by layer, then by factor.

    The factor ``allocator`` is ``total`` minus them: what blocks hold beyond the requested bytes. An engine's flat
    buffers hold all modalities that train, so they are split in proportion to trainable parameters.
    """
    buffers, names = run.events.buffers, run.events.names
    modules: dict[str, Counter] = {}
    layers: dict[str, Counter] = {}
    requested = 0
    for buffer in timeline.alive_buffers(run.events, index):
        size = int(run.row_bytes[buffers.size[buffer]])
        factor, layer = FACTORS[buffers.factor[buffer]], names[buffers.module[buffer]]
        shares = _shares(job, size) if not layer and factor in FLAT else {job.module_of(layer): size}
        for module, share in shares.items():
            modules.setdefault(module, Counter())[factor] += share
        layers.setdefault(layer, Counter())[factor] += size
        requested += size
    modules.setdefault("model", Counter())[Factor.ALLOCATOR] = total - requested
    return ({name: dict(split) for name, split in modules.items()},
            {name: dict(split) for name, split in layers.items()})


def _shares(job: Job, size: int) -> dict[str, int]:
    """A flat buffer's bytes by modality module, in whole bytes. The largest module takes the rounding remainder."""
    trainable: Counter[str] = Counter()
    for parameter in job.formula.facts.parameters:
        if parameter.trainable:
            trainable[job.module_of(parameter.module)] += parameter.numel
    if not trainable:  # a learned formula does not list the model's parameters
        return {job.module_of(""): size}
    total = sum(trainable.values())
    shares = {name: size * numel // total for name, numel in trainable.items()}
    largest = max(trainable, key=trainable.__getitem__)
    shares[largest] += size - sum(shares.values())
    return {name: share for name, share in shares.items() if share}


def sum_of(modules: dict) -> dict[Factor, int]:
    return {factor: sum(split.get(factor, 0) for split in modules.values()) for factor in Factor}


def _candidates(run: Run, job: Job) -> tuple[Candidate, ...]:
    shape, gpu = job.shape, job.gpu
    form = timeline.closed_form(run.events, at_least=job.lowest())
    totals = form.sizes.at(shape, gpu)
    result = []
    for row in np.argsort(-totals, kind="stable"):
        tag = run.events[int(form.index[row])].tag
        coefficients = form.sizes.coefficients[row]
        if tag.moment is Moment.EVALUATION:  # its sizes belong to another batch size (engine/evaluation.py)
            coefficients = np.zeros_like(coefficients)
        terms = {str(term): int(c) for term, c in zip(form.sizes.terms, coefficients) if c}
        result.append(Candidate(tag.moment, tag.module, tag.operator, tag.step, int(totals[row]), terms))
    return tuple(result)


def _curve(outcome: Outcome, settings: AllocatorSettings, capacity_bytes: int | None, points: int = 600) -> Timeline:
    """The outcome's run in at most ``points`` stretches, each by its highest point."""
    run = outcome.run
    stretch = np.linspace(0, len(run.live), min(points, len(run.live)) + 1).astype(int)
    index = [int(a + np.argmax(run.live[a:b])) for a, b in zip(stretch, stretch[1:])]
    allocated, reserved = survival.highest(outcome, settings, capacity_bytes, stretch[1:]).tolist()
    split = timeline.by_factor(run.events, run.row_bytes, index)
    return Timeline(
        index=index, moment=[MOMENTS[run.events.moment[i]] for i in index],
        step=[int(run.events.step[i]) for i in index],
        bytes_by_factor={factor: curve.tolist() for factor, curve in split.items() if curve.any()},
        allocated_bytes=allocated, reserved_bytes=reserved)


def _provenance(job: Job, reserved: Reserved) -> dict:
    """The versions, profile and formula behind the numbers, and what each interval comes from."""
    margin, profile = job.margin, job.profile and _calibration(job.profile, job.margin)
    orders = None if reserved.low is None else {"low_bytes": reserved.low, "high_bytes": reserved.high}
    return {"versions": dict(job.workload.versions), "kernels_of": job.gpu.name, "profile": profile,
            "answered_by": _answered_by(job.formula.provenance),
            "runtime_bytes": margin.runtime_high, "formula": job.formula.provenance,
            "measured_on": profile["measured_on"] if profile else "assumed",
            "runtime": {"low_bytes": margin.runtime_low, "high_bytes": margin.runtime_high,
                        "communicators": job.communicators, **_runtime_measured(job)},
            "completion_orders": orders}


def _runtime_measured(job: Job) -> Mapping[str, str]:
    """Where the memory outside PyTorch's allocator was measured, and that of the communicators, if there are any."""
    if job.profile is None:
        return dict.fromkeys(("measured_on", "communicators_measured_on"), "assumed")
    runtime = job.profile.profile.runtime
    return {"measured_on": runtime.measured_on, "communicators_measured_on":
            runtime.communicators_measured_on if job.communicators else runtime.measured_on}


def _answered_by(formula: Mapping[str, Any]) -> str:
    """How an answer was got: from a shipped or learned formula, a trace (now, or kept from before), or a run."""
    if formula["source"] == learned.SOURCE:
        return "emulated run" if formula.get("run") else "learned formula"
    return "shipped formula" if formula.get("shipped") else "trace"


def _calibration(choice: Choice, margin: Margin) -> dict:
    """The profile, and by counter the relative bounds used, their level, and their held-out jobs behind them."""
    residuals = {counter: interval for counter, interval in choice.profile.residuals.items() if margin.of(counter)}
    return {
        "name": choice.name, "measured_on": choice.profile.measured_on,
        "level": {counter: None if choice.times(counter) else interval.level
                  for counter, interval in residuals.items()},
        "extrapolates": list(choice.extrapolates),
        "samples": {counter: interval.samples for counter, interval in residuals.items()},
        "relative": {counter: margin.of(counter) for counter in residuals},
        "outside": [{"what": way, "counters": list(reach.counters), "reason": reach.reason}
                    for way, reach in choice.outside.items()]}
