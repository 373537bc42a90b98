"""From a workload to its prediction: formula, engine, timeline, in that order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from predictor import deepspeed_config, gpus, models, regimes, store, timeline
from predictor.engine import torch_loop
from predictor.engine.setup import Setup
from predictor.engine.zero2 import Zero2
from predictor.errors import InputError
from predictor.events import FACTORS, MOMENTS, EventList, Factor, Moment
from predictor.facts import modality
from predictor.formula import Formula
from predictor.gpus import Gpu
from predictor.prediction import Bound, Candidate, Peak, Prediction, Timeline
from predictor.sizes import Shape
from predictor.workload import Workload

DEFAULT_GPU = "h100-80gb"
"""Kernels and workspaces are Hopper's when no GPU is named."""

NOT_MODELLED = (
    "the caching allocator's segments: allocated is requested rounded up to 512-byte blocks, reserved is not predicted",
    "CUDA context, NCCL and library memory outside PyTorch's allocator",
    "private workspaces of cuDNN engines",
    "data loaders, evaluation, checkpoint saving, and what Hugging Face's Trainer holds beyond the reference loop",
)


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


def predict(workload: Workload, *, timeline: bool = False) -> Prediction:
    """Predict one workload's peak memory.

    Args:
        workload: what is trained and how.
        timeline: keep the curve of live bytes and the candidates' formulas (for ``explain``).

    Raises:
        InputError: an unknown model, a shape without room for its images, a setting that is not
            modelled, or a model that must be traced while torch is not installed.
    """
    workload = workload.fill(images_per_sample=1)
    gpu = gpus.find(workload.gpu or DEFAULT_GPU)
    shape = Shape(workload.per_device_train_batch_size, workload.sequence_length,
                  workload.per_device_train_batch_size * workload.images_per_sample)
    formula = find_formula(workload, shape, gpu)
    check_shape(workload, formula)
    run = worst_run(formula, workload, shape, gpu)
    return _report(workload, formula, run, shape, gpu, with_timeline=timeline)


def find_formula(workload: Workload, shape: Shape, gpu: Gpu) -> Formula:
    """The formula that answers for a workload's regime; traced now if nobody has it."""
    config = models.find(workload.model)
    key = store.Key(
        fingerprint=config.fingerprint, recipe=workload.recipe, trainable=workload.trainable, frozen=workload.frozen,
        image_size=workload.image_size, padding=workload.padding, checkpointing=_checkpointing(workload),
        attn_implementation=workload.attn_implementation, sdpa_backend=_backend(workload, gpu),
        regime=_regime(workload, shape, gpu), torch=workload.versions["torch"],
        transformers=workload.versions["transformers"])

    def trace() -> Formula:
        from predictor.tracing import trace_formula

        return trace_formula(config, key)

    return store.get(key, trace)


def _checkpointing(workload: Workload) -> str:
    if not workload.gradient_checkpointing:
        return "off"
    return "reentrant" if workload.gradient_checkpointing_kwargs["use_reentrant"] else "on"


def _backend(workload: Workload, gpu: Gpu) -> str:
    """What ``sdpa_backend: auto`` is on a GPU (ATen/native/transformers/cuda/sdp_utils.cpp, priority_order)."""
    if workload.attn_implementation != "sdpa":
        return ""
    if workload.sdpa_backend != "auto":
        return workload.sdpa_backend
    return "cudnn" if gpu.compute_capability[0] in (9, 10) else "flash"


def _regime(workload: Workload, shape: Shape, gpu: Gpu) -> tuple[str, str, str]:
    pads_masks = workload.padding != "none" and _backend(workload, gpu) in ("flash", "efficient")
    return regimes.regime_of(shape, pads_masks=pads_masks)


def check_shape(workload: Workload, formula: Formula) -> None:
    """The sequence must hold the image tokens and at least one of text."""
    tokens = workload.images_per_sample * formula.facts.tokens_per_image
    if workload.sequence_length <= tokens:
        raise InputError(f"sequence_length {workload.sequence_length} has no room for {workload.images_per_sample} image(s) "
                         f"of {formula.facts.tokens_per_image} tokens: give at least {tokens + 1}")


def setup_of(workload: Workload, formula: Formula) -> Setup:
    """What the engine needs to know."""
    zero = deepspeed_config.read(workload, formula.facts.hidden_size) if workload.engine == "deepspeed" else None
    return Setup(
        facts=formula.facts, optim=workload.optim, param_groups=workload.param_groups,
        max_grad_norm=workload.max_grad_norm, gradient_accumulation_steps=workload.gradient_accumulation_steps,
        data_parallel_size=workload.data_parallel_size, zero=zero, capacity_bytes=workload.capacity)


@lru_cache(maxsize=8)
def composer(formula: Formula, setup: Setup) -> Callable[[int], EventList]:
    """The engine's events of a whole run, as a function of the rank; independent of the shape."""
    if setup.zero is None:
        return lru_cache(maxsize=1)(lambda rank: torch_loop.compose(formula.micro, setup))
    return lru_cache(maxsize=16)(Zero2(formula.micro, setup).rank)


def worst_run(formula: Formula, workload: Workload, shape: Shape, gpu: Gpu) -> Run:
    """The run of the asked rank, or of the one with the highest requested peak (the lowest of equals)."""
    setup = setup_of(workload, formula)
    compose = composer(formula, setup)
    ranks = range(setup.data_parallel_size) if workload.rank == "worst" else [workload.rank]
    return max((evaluate(compose(rank), rank, shape, gpu) for rank in ranks), key=lambda run: run.peak)


def evaluate(events: EventList, rank: int, shape: Shape, gpu: Gpu) -> Run:
    """Put numbers to a composed run."""
    row_bytes = events.sizes.at(shape, gpu)
    return Run(events, rank, row_bytes, timeline.running_sum(events, row_bytes))


def _report(workload: Workload, formula: Formula, run: Run, shape: Shape, gpu: Gpu, *, with_timeline: bool) -> Prediction:
    events, blocks = run.events, timeline.rounded(run.row_bytes)
    allocated = timeline.running_sum(events, blocks)
    at, at_allocated = int(np.argmax(run.live)), int(np.argmax(allocated))
    peak_allocated = int(allocated[at_allocated])
    modules, layers = _split(run, at_allocated, peak_allocated)
    capacity = workload.capacity
    tag = events[at].tag
    return Prediction(
        workload=workload.resolved(), filled_in=workload.filled_in,
        peak_requested=Bound(run.peak), peak_allocated=Bound(peak_allocated), peak_reserved=None, peak_device=None,
        capacity_bytes=capacity, headroom_bytes=None if capacity is None else capacity - peak_allocated,
        verdict=None if capacity is None else "fits" if peak_allocated <= capacity else "does_not_fit",
        peak=Peak(tag.moment, tag.module, tag.operator, run.rank, tag.step),
        factors=_sum(modules), modules=modules, layers=layers,
        moments={moment: _point(run, index) for moment, index in timeline.highest(events, run.live)},
        not_modelled=NOT_MODELLED, provenance=_provenance(workload, formula, gpu),
        candidates=_candidates(run, formula, shape, gpu) if with_timeline else (),
        curve=_curve(run) if with_timeline else None)


def _point(run: Run, index: int) -> dict:
    tag = run.events[index].tag
    return {"requested_bytes": int(run.live[index]), "module": tag.module, "operator": tag.operator, "step": tag.step}


def _split(run: Run, index: int, total: int) -> tuple[dict, dict]:
    """Requested bytes alive at an event by modality and by layer, then factor; rounding as ``allocator``."""
    buffers, names = run.events.buffers, run.events.names
    modules: dict[str, Counter] = {}
    layers: dict[str, Counter] = {}
    requested = 0
    for buffer in timeline.alive(run.events, index):
        size = int(run.row_bytes[buffers.size[buffer]])
        factor, layer = FACTORS[buffers.factor[buffer]], names[buffers.module[buffer]]
        modules.setdefault(modality(layer), Counter())[factor] += size
        layers.setdefault(layer, Counter())[factor] += size
        requested += size
    modules.setdefault("model", Counter())[Factor.ALLOCATOR] = total - requested
    return ({name: dict(split) for name, split in modules.items()},
            {name: dict(split) for name, split in layers.items()})


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
        index=index, moment=[MOMENTS[run.events.moment[i]] for i in index], step=[int(run.events.step[i]) for i in index],
        bytes_by_factor={factor: [int(curve[i]) for i in index] for factor, curve in split.items() if curve.any()})


def _provenance(workload: Workload, formula: Formula, gpu: Gpu) -> dict:
    return {"versions": dict(workload.versions), "kernels_of": gpu.name, "profile": None,
            "formula": formula.provenance, "measured_on": "assumed"}
