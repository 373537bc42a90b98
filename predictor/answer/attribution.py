"""Says to which module each tensor at the peak belongs, also where the trace names none.

A trace names the module that runs. It names none for the loss, for an engine's buffers, and for the inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from predictor.events import timeline
from predictor.events.composed_run import Run
from predictor.events.events import FACTORS, MOMENTS, EventType, Factor, Moment, rows_at
from predictor.events.model_facts import MODALITIES

if TYPE_CHECKING:
    from predictor.jobs.training_job import Job

SHARED = "shared"
"""Name in place of a module's, for tensors of no module in particular. In place of a layer's path it is empty."""
HEAD, LOSS = "head", "loss"
FLAT = (Factor.PARAMETERS, Factor.GRADIENTS, Factor.OPTIMIZER_STATES)
"""Factors that an engine keeps in flat buffers."""
COMPUTED = [FACTORS.index(factor) for factor in (Factor.ACTIVATIONS, Factor.TEMPORARIES)]
INPUTS = {"pixel_values": "vision_tower", "input_features": "audio_tower", "input_ids": "language_model",
          "attention_mask": "language_model", "labels": HEAD}
"""Name of an input -> the module that reads it."""

Split = dict[str, dict[Factor, int]]


def attributed(run: Run, index: int, total: int, job: Job) -> tuple[Split, Split]:
    """Bytes alive at an event, by module and by layer, then by factor.

    Tensors of the loss belong to the head. A flat buffer is split among the layers in proportion to their trainable
    parameters. What belongs to no module in particular is listed under :data:`SHARED`,
    or under an empty path.

    Args:
        index: the event.
        total: allocated bytes after it. The modules add up to them; what blocks hold beyond the requested bytes is
            the factor ``allocator``, which is shared.
    """
    buffers, names = run.events.buffers, run.events.names
    loss = _loss_buffers(run)
    head = min((name for name in names if job.module_of(name) == HEAD), key=len, default=LOSS)
    known = {job.module_of(name) for name in names}
    layers: dict[str, Counter[Factor]] = {}
    flat: Counter[Factor] = Counter()
    for buffer in timeline.alive_buffers(run.events, index).tolist():
        size, factor = int(run.row_bytes[buffers.size[buffer]]), FACTORS[buffers.factor[buffer]]
        layer = names[buffers.module[buffer]]
        if not layer and factor in FLAT:
            flat[factor] += size
            continue
        if not layer and loss[buffer]:
            layer = head
        elif not layer and factor is Factor.INPUTS:
            reader = INPUTS.get(names[buffers.operator[buffer]], "")
            layer = reader if reader in known else ""
        layers.setdefault(layer, Counter())[factor] += size
    for factor, size in flat.items():
        for layer, share in _shares(job, size).items():
            layers.setdefault(layer, Counter())[factor] += share
    requested = sum(split.total() for split in layers.values())
    modules = _by_module(layers, job, names)
    modules.setdefault(SHARED, Counter())[Factor.ALLOCATOR] = total - requested
    return ({name: dict(split) for name, split in modules.items()},
            {name: dict(split) for name, split in layers.items()})


def _loss_buffers(run: Run) -> np.ndarray:
    """``bool[buffers]``: computed outside all modules, after the last forward and before the first backward of one.

    That is the loss, with what it makes of the logits.
    """
    events, buffers = run.events, run.events.buffers
    named = rows_at(rows_at(np.array([bool(name) for name in events.names]), buffers.module), events.buffer)
    computed = (events.kind == EventType.ALLOCATE) & rows_at(np.isin(buffers.factor, COMPUTED), events.buffer)
    places, outside = np.flatnonzero(computed & named), np.flatnonzero(computed & ~named)
    found = np.zeros(len(buffers), dtype=bool)
    if len(places):
        after = np.searchsorted(places, outside)
        inner = (after > 0) & (after < len(places))
        outside, after = outside[inner], after[inner]
        forward, backward = MOMENTS.index(Moment.FORWARD), MOMENTS.index(Moment.BACKWARD)
        between = (events.moment[places[after - 1]] == forward) & (events.moment[places[after]] == backward)
        found[events.buffer[outside[between]]] = True
    return found


def _shares(job: Job, size: int) -> dict[str, int]:
    """Bytes of flat buffers by layer, in whole bytes. The largest layer takes the rounding remainder."""
    trainable: Counter[str] = Counter()
    for parameter in job.formula.facts.parameters:
        if parameter.trainable:
            trainable[parameter.module] += parameter.numel
    if not trainable:  # a learned formula does not list the model's parameters
        return {"": size}
    total = trainable.total()
    shares = {layer: size * numel // total for layer, numel in trainable.items()}
    shares[max(trainable, key=trainable.__getitem__)] += size - sum(shares.values())
    return {layer: share for layer, share in shares.items() if share}


def _by_module(layers: Mapping[str, Counter[Factor]], job: Job, names: tuple[str, ...]) -> dict[str, Counter[Factor]]:
    """The layers' bytes by modality module. A layer that contains several modules is shared by them."""
    around = {name[:name.index(f".{part}")] for name in names for part in MODALITIES if f".{part}" in name}
    modules: dict[str, Counter[Factor]] = {}
    for layer, split in layers.items():
        module = HEAD if layer == LOSS else SHARED if not layer or layer in around else \
            layer if layer in INPUTS.values() else job.module_of(layer)
        modules.setdefault(module, Counter()).update(split)
    return modules
