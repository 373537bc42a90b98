"""Hand-made predictions for the tests of commands and reports."""

from __future__ import annotations

from dataclasses import replace

from predictor.answer.prediction import Bound, Candidate, OutOfMemory, Peak, Prediction, Timeline
from predictor.events.events import Factor, Moment
from predictor.workload.workload import Workload

GIB = 1 << 30
LAST_LAYER = "language_model.layers.31.mlp.down_proj"


def workload(**changes) -> Workload:
    """LLaVA-1.5-7B as the README asks about it."""
    keys = {"model": "llava-1.5-7b", "sequence_length": 1024, "per_device_train_batch_size": 16,
            "zero_stage": 2, "data_parallel_size": 8}
    return Workload(**(keys | changes))


def timeline(steps: int = 3) -> Timeline:
    """Start-up, then forward, backward and optimizer step of each step, in GiB that are easy to add."""
    points = [(Moment.INIT, 0, p, 0, 0) for p in range(14)]
    for step in range(1, steps + 1):
        states = 3 if step == 1 else 9
        points += [(Moment.FORWARD, step, 13, states, a) for a in range(0, 20, 2)]
        points += [(Moment.BACKWARD, step, 13, states, a) for a in (20, 21, 12, 6, 2)]
        points += [(Moment.OPTIMIZER_STEP, step, 13, 9, 4)]
    return Timeline(
        index=list(range(len(points))), moment=[p[0] for p in points], step=[p[1] for p in points],
        bytes_by_factor={Factor.PARAMETERS: [p[2] * GIB for p in points],
                         Factor.OPTIMIZER_STATES: [p[3] * GIB for p in points],
                         Factor.ACTIVATIONS: [p[4] * GIB for p in points]})


def prediction(asked: Workload | None = None, **changes) -> Prediction:
    """A peak of 43 GiB requested, 43.5 GiB allocated, 45 GiB reserved, in backward of step 2 on rank 7."""
    asked = asked or workload()
    capacity = asked.capacity
    allocated = 43 * GIB + GIB // 2
    tower = {Factor.PARAMETERS: 1 * GIB}
    language = {Factor.PARAMETERS: 12 * GIB, Factor.OPTIMIZER_STATES: 9 * GIB, Factor.ACTIVATIONS: 21 * GIB,
                Factor.ALLOCATOR: GIB // 2}
    layers = {f"language_model.layers.{i}.mlp": {Factor.PARAMETERS: GIB // 4, Factor.ACTIVATIONS: GIB // 2}
              for i in range(32)} | {"vision_tower": tower}
    verdict = None if capacity is None else "fits" if capacity >= allocated else "does_not_fit"
    result = Prediction(
        workload=asked.resolved(), filled_in=asked.filled_in,
        requested=Bound(43 * GIB), allocated=Bound(allocated), reserved=Bound(45 * GIB), device=None,
        fragmentation_bytes=GIB, capacity_bytes=capacity, headroom_bytes=None if capacity is None else capacity - 45 * GIB, verdict=verdict,
        out_of_memory=OutOfMemory(Moment.FORWARD, "lm_head", "aten::mm", 1, 7, GIB, 22 * GIB, 23 * GIB)
        if verdict == "does_not_fit" else None,
        peak=Peak(Moment.BACKWARD, LAST_LAYER, "aten::mm", 7, 2, 7, 7),
        factors={factor: tower.get(factor, 0) + language.get(factor, 0) for factor in Factor},
        modules={"vision_tower": tower, "language_model": language}, layers=layers,
        moments={
            Moment.INIT: {"requested_bytes": 13 * GIB, "step": 0, "module": "", "operator": "flatten"},
            Moment.FORWARD: {"requested_bytes": 40 * GIB, "step": 2, "module": "lm_head", "operator": "aten::mm"},
            Moment.BACKWARD: {"requested_bytes": 43 * GIB, "step": 2, "module": LAST_LAYER, "operator": "aten::mm"},
            Moment.OPTIMIZER_STEP: {"requested_bytes": 26 * GIB, "step": 2, "module": "", "operator": "adamw"},
        },
        not_modelled=("memory that PyTorch's allocator keeps in reserve", "NCCL and the CUDA context"),
        provenance={"measured_on": "assumed", "answered_by": "shipped formula"},
        candidates=(
            Candidate(Moment.FORWARD, "lm_head", "aten::mm", 2, 40 * GIB,
                      {"1": 22 * GIB, "batch·sequence": 18 * 65_536}),
            Candidate(Moment.BACKWARD, LAST_LAYER, "aten::mm", 2, 43 * GIB,
                      {"1": 22 * GIB, "batch·sequence": 20 * 65_536, "cublas": 1}),
        ),
        curve=timeline(),
    )
    return replace(result, **changes)
