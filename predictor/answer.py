"""From a composed run to the prediction: the peak, what is alive there, and how sure it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from predictor import regimes, timeline
from predictor.errors import InputError
from predictor.events import FACTORS, MOMENTS, EventList, Factor
from predictor.facts import ModelFacts, modality
from predictor.formula import Formula
from predictor.gpus import Gpu
from predictor.prediction import Bound, Candidate, Peak, Prediction, Timeline
from predictor.sizes import Shape
from predictor.workload import Workload

NOT_MODELLED = (
    "the caching allocator's segments: allocated is requested rounded up to 512-byte blocks, reserved is not predicted",
    "CUDA context, NCCL and library memory outside PyTorch's allocator",
    "private workspaces of cuDNN engines",
    "data loaders, evaluation, checkpoint saving, and what Hugging Face's Trainer holds beyond the reference loop",
)

ASSUMED_RUNTIME_BYTES = 1 << 30
"""CUDA context, NCCL and libraries, until a profile has measured them: between, the verdict is uncertain."""


LARGEST_BUFFER_BYTES = 1 << 46
"""Beyond it sums of buffers could leave 64 bits."""


@dataclass(frozen=True, eq=False)
class Run:
    """A composed run of one rank at one shape, with its sizes and running sum in bytes."""

    events: EventList
    rank: int
    row_bytes: np.ndarray
    live: np.ndarray

    @property
    def peak(self) -> int:
        """Peak requested bytes."""
        return int(self.live.max())


def evaluate(events: EventList, rank: int, shape: Shape, gpu: Gpu) -> Run:
    """Put numbers to a composed run."""
    row_bytes = sizes_at(events, shape, gpu)
    return Run(events, rank, row_bytes, timeline.running_sum(events, row_bytes))


def sizes_at(events: EventList, shape: Shape, gpu: Gpu) -> np.ndarray:
    """Bytes of every size row at a shape.

    Raises:
        InputError: one of them is beyond :data:`LARGEST_BUFFER_BYTES`.
    """
    if events.sizes.largest(shape, gpu) > LARGEST_BUFFER_BYTES:
        raise InputError(f"one buffer alone would take more than {LARGEST_BUFFER_BYTES >> 40} TiB: "
                         "give a smaller batch, sequence or model")
    return events.sizes.at(shape, gpu)


def answer(workload: Workload, formula: Formula, run: Run, shape: Shape, gpu: Gpu, *, notes: tuple[str, ...],
           with_timeline: bool) -> Prediction:
    """The prediction that a run amounts to."""
    events, blocks = run.events, timeline.rounded(run.row_bytes)
    allocated = timeline.running_sum(events, blocks)
    at, at_allocated = int(np.argmax(run.live)), int(np.argmax(allocated))
    peak_allocated = int(allocated[at_allocated])
    modules, layers = _split(run, at_allocated, peak_allocated, formula.facts)
    capacity = workload.capacity
    tag = events[at].tag
    return Prediction(
        workload=workload.resolved(), filled_in=workload.filled_in,
        peak_requested=Bound(run.peak), peak_allocated=Bound(peak_allocated), peak_reserved=None, peak_device=None,
        capacity_bytes=capacity, headroom_bytes=None if capacity is None else capacity - peak_allocated,
        verdict=_verdict(peak_allocated, capacity),
        peak=Peak(tag.moment, tag.module, tag.operator, run.rank, tag.step),
        factors=_sum(modules), modules=modules, layers=layers,
        moments={moment: _point(run, index) for moment, index in timeline.highest(events, run.live)},
        not_modelled=NOT_MODELLED + notes, provenance=_provenance(workload, formula, gpu),
        candidates=_candidates(run, formula, shape, gpu) if with_timeline else (),
        curve=_curve(run) if with_timeline else None)


def _verdict(peak_allocated: int, capacity: int | None) -> str | None:
    if capacity is None:
        return None
    if peak_allocated > capacity:
        return "does_not_fit"
    return "fits" if peak_allocated + ASSUMED_RUNTIME_BYTES <= capacity else "uncertain"


def _point(run: Run, index: int) -> dict:
    tag = run.events[index].tag
    return {"requested_bytes": int(run.live[index]), "module": tag.module, "operator": tag.operator, "step": tag.step}


def _split(run: Run, index: int, total: int, facts: ModelFacts) -> tuple[dict, dict]:
    """Requested bytes alive at an event by modality and by layer, then factor; rounding as ``allocator``.

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
            "formula": formula.provenance, "measured_on": "assumed"}
