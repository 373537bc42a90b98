"""From a composed run to the prediction: the peak, what is alive there, and how sure it is."""

from __future__ import annotations

from collections import Counter

import numpy as np

from predictor import regimes, timeline
from predictor.events import FACTORS, MOMENTS, Factor
from predictor.facts import ModelFacts, modality
from predictor.formula import Formula
from predictor.gpus import Gpu
from predictor.prediction import Bound, Candidate, OutOfMemory, Peak, Prediction, Timeline
from predictor.run import Run
from predictor.sizes import Shape
from predictor.survival import ASSUMED_RUNTIME_BYTES, Outcome
from predictor.workload import Workload

NOT_MODELLED = (
    "CUDA context, NCCL and library memory outside PyTorch's allocator",
    "private workspaces of cuDNN engines",
    "data loaders, evaluation, checkpoint saving, and what Hugging Face's Trainer holds beyond the reference loop",
)


def answer(workload: Workload, formula: Formula, outcome: Outcome, shape: Shape, gpu: Gpu, *, notes: tuple[str, ...],
           with_timeline: bool, minimum_capacity_bytes: int | None) -> Prediction:
    """The prediction that a run and its simulation amount to."""
    run, simulation, capacity = outcome.run, outcome.simulation, workload.capacity
    peak_allocated, peak_reserved = simulation.peak_allocated_bytes, simulation.peak_reserved_bytes
    modules, layers = _split(run, simulation.peak_at, peak_allocated, formula.facts)
    tag = run.events[int(np.argmax(run.live))].tag
    return Prediction(
        workload=workload.resolved(), filled_in=workload.filled_in,
        peak_requested=Bound(run.peak), peak_allocated=Bound(peak_allocated),
        peak_reserved=Bound(peak_reserved, outcome.reserved_low, outcome.reserved_high), peak_device=None,
        fragmentation_bytes=simulation.reserved_at_peak_bytes - peak_allocated,
        capacity_bytes=capacity, headroom_bytes=None if capacity is None else capacity - peak_allocated,
        verdict=outcome.verdict, out_of_memory=_failure(outcome), minimum_capacity_bytes=minimum_capacity_bytes,
        peak=Peak(tag.moment, tag.module, tag.operator, run.rank, tag.step),
        factors=_sum(modules), modules=modules, layers=layers,
        moments={moment: _point(run, index) for moment, index in timeline.highest(run.events, run.live)},
        not_modelled=NOT_MODELLED + notes, provenance=_provenance(workload, formula, gpu),
        candidates=_candidates(run, formula, shape, gpu) if with_timeline else (),
        curve=_curve(run) if with_timeline else None)


def _failure(outcome: Outcome) -> OutOfMemory | None:
    """Where the job runs out of memory; if that is uncertain, where it would with the least room."""
    failure = outcome.failure
    if failure is None or failure.failed_at is None or failure.out_of_memory is None:
        return None
    tag, error = outcome.run.events[failure.failed_at].tag, failure.out_of_memory
    return OutOfMemory(tag.moment, tag.module, tag.operator, tag.step, error.requested_bytes, error.allocated_bytes,
                       error.reserved_bytes)


def _point(run: Run, index: int) -> dict:
    tag = run.events[index].tag
    return {"requested_bytes": int(run.live[index]), "module": tag.module, "operator": tag.operator, "step": tag.step}


def _split(run: Run, index: int, total: int, facts: ModelFacts) -> tuple[dict, dict]:
    """Requested bytes alive at an event by modality and by layer, then factor; what blocks hold more as ``allocator``.

    An engine's flat buffers hold every modality that trains: they are split by trainable parameters.
    """
    buffers, names = run.events.buffers, run.events.names
    modules: dict[str, Counter] = {}
    layers: dict[str, Counter] = {}
    requested = 0
    for buffer in timeline.alive(run.events, index):
        size = int(run.row_bytes[buffers.size[buffer]])
        factor, layer = FACTORS[buffers.factor[buffer]], names[buffers.module[buffer]]
        shares = _shares(facts, size) if not layer and factor in FLAT else {modality(layer): size}
        for module, share in shares.items():
            modules.setdefault(module, Counter())[factor] += share
        layers.setdefault(layer, Counter())[factor] += size
        requested += size
    modules.setdefault("model", Counter())[Factor.ALLOCATOR] = total - requested
    return ({name: dict(split) for name, split in modules.items()},
            {name: dict(split) for name, split in layers.items()})


FLAT = (Factor.PARAMETERS, Factor.GRADIENTS, Factor.OPTIMIZER_STATES)
"""What ZeRO keeps in flat buffers."""


def _shares(facts: ModelFacts, size: int) -> dict[str, int]:
    """A flat buffer's bytes by modality, whole bytes; the largest takes what rounding leaves."""
    trainable = Counter()
    for parameter in facts.parameters:
        if parameter.trainable:
            trainable[modality(parameter.name)] += parameter.numel
    total = sum(trainable.values())
    shares = {name: size * numel // total for name, numel in trainable.items()}
    largest = max(trainable, key=trainable.__getitem__)
    shares[largest] += size - sum(shares.values())
    return {name: share for name, share in shares.items() if share}


def _sum(modules: dict) -> dict[Factor, int]:
    return {factor: sum(split.get(factor, 0) for split in modules.values()) for factor in Factor}


def _candidates(run: Run, formula: Formula, shape: Shape, gpu: Gpu) -> tuple[Candidate, ...]:
    lower = regimes.lowest(tuple(formula.provenance["key"]["regime"]), formula.facts.tokens_per_image)
    form = timeline.closed_form(run.events, at_least=lower)
    totals = form.sizes.at(shape, gpu)
    result = []
    for row in np.argsort(-totals, kind="stable"):
        tag = run.events[int(form.index[row])].tag
        terms = {str(term): int(c) for term, c in zip(form.sizes.terms, form.sizes.coefficients[row]) if c}
        result.append(Candidate(tag.moment, tag.module, tag.operator, tag.step, int(totals[row]), terms))
    return tuple(result)


def _curve(run: Run, points: int = 600) -> Timeline:
    stretch = np.linspace(0, len(run.live), min(points, len(run.live)) + 1).astype(int)
    index = [int(a + np.argmax(run.live[a:b])) for a, b in zip(stretch, stretch[1:])]
    split = timeline.by_factor(run.events, run.row_bytes)
    return Timeline(
        index=index, moment=[MOMENTS[run.events.moment[i]] for i in index],
        step=[int(run.events.step[i]) for i in index],
        bytes_by_factor={factor: [int(curve[i]) for i in index] for factor, curve in split.items() if curve.any()})


def _provenance(workload: Workload, formula: Formula, gpu: Gpu) -> dict:
    return {"versions": dict(workload.versions), "kernels_of": gpu.name, "profile": None,
            "runtime_bytes": ASSUMED_RUNTIME_BYTES, "formula": formula.provenance, "measured_on": "assumed"}
