"""Start-up of ZeRO-1 and ZeRO-2: moves the model to the GPU, flattens each optimizer group, and copies its partition.

DeepSpeed 0.19.8: runtime/engine.py, ``_configure_distributed_model``; runtime/zero/stage_1_and_2.py,
``DeepSpeedZeroOptimizer.__init__``, ``_update_model_bit16_weights``, ``initialize_optimizer_states``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.allocator.simulate import Columns, Device, simulate
from predictor.engine.common import to_device
from predictor.engine.setup import FP32, Setup
from predictor.engine.tape import Tape
from predictor.engine.zero_partition import Group
from predictor.events.events import EventType, Factor

PLACEHOLDER_BYTES = 4
"""``torch.empty(1)``, which takes the place of a parameter that was moved to the CPU."""


def start_up(setup: Setup, groups: Sequence[Group], *, casts_buffers: bool, flatten_on_gpu: bool) -> Tape:
    """Events until the first step, the same on every rank.

    Args:
        casts_buffers: whether this release of DeepSpeed casts the model's buffers, too, to the dtype of its weights.
        flatten_on_gpu: whether this release of DeepSpeed flattens on the GPU where memory suffices.
    """
    tape = Tape()
    buffers = to_device(tape, setup)
    if casts_buffers:
        _cast_buffers(tape, buffers, setup)
    for group in groups:
        _flatten(tape, group, buffers, setup, flatten_on_gpu)
        _master_weights(tape, group, setup)
    if setup.deepspeed.offload_optimizer:
        largest = max(numel for group in groups for numel in group.numels)
        tape.allocate(setup.facts.itemsize * largest, Factor.GRADIENTS, "zero::temp_grad_buffer_for_gpu_offload")
        return tape
    gradients = [tape.allocate(FP32 * group.partition_numel, Factor.GRADIENTS, "zero::initialize_optimizer_states")
                 for group in groups]
    for buffer in gradients:
        tape.free(buffer)
    return tape


def _cast_buffers(tape: Tape, buffers: dict[int, int], setup: Setup) -> None:
    """``module.bfloat16()`` or ``module.half()``, where weights have their dtype already and buffers are in fp32.

    What the model's forward then does otherwise is not modelled: rotary embeddings convert their few frequencies back.
    """
    itemsize = setup.facts.itemsize
    for index, tensor in enumerate(setup.facts.parameters):
        if tensor.buffer and itemsize < tensor.itemsize == FP32:
            tape.allocate(itemsize * tensor.numel, Factor.PARAMETERS, "to", module=tensor.module)
            tape.free(buffers[index])


def _flatten(tape: Tape, group: Group, buffers: dict[int, int], setup: Setup, flatten_on_gpu: bool) -> None:
    """Replaces the parameters of one group by its flat buffer."""
    itemsize = setup.facts.itemsize
    pad_bytes, flat_bytes = itemsize * (group.flat_numel - sum(group.numels)), itemsize * group.flat_numel
    copied = len(group.parameters) > 1 or pad_bytes > 0  # a single tensor is viewed
    old = [buffers[parameter] for parameter in group.parameters]
    if flatten_on_gpu:
        tape.mark(EventType.EMPTY_CACHE)
    on_gpu = flatten_on_gpu and flat_bytes <= _free_bytes(tape, setup)
    if not on_gpu:
        for place, buffer in enumerate(old):
            old[place] = tape.allocate(PLACEHOLDER_BYTES, Factor.PARAMETERS, "zero::placeholder")
            tape.free(buffer)
        tape.mark(EventType.EMPTY_CACHE)
    if copied or not on_gpu:
        padding = tape.allocate(pad_bytes, Factor.PARAMETERS, "zero::pad") if pad_bytes and on_gpu else None
        tape.allocate(flat_bytes, Factor.PARAMETERS, "zero::flatten")
        if padding is not None:
            tape.free(padding)
        for buffer in old:
            tape.free(buffer)


def _master_weights(tape: Tape, group: Group, setup: Setup) -> None:
    """Copies the master weights of one group's partition from the flat buffer."""
    itemsize, clone = setup.facts.itemsize, None
    if itemsize < FP32:
        clone = tape.allocate(itemsize * group.partition_numel, Factor.PARAMETERS, "zero::clone")
    if not setup.deepspeed.offload_optimizer:
        tape.allocate(FP32 * group.partition_numel, Factor.OPTIMIZER_STATES, "zero::master_weights")
    if clone is not None:
        tape.free(clone)


def _free_bytes(tape: Tape, setup: Setup) -> float:
    """Free bytes by NVML: all that the allocator has not reserved (cuda_accelerator.py, ``available_memory``)."""
    if setup.capacity_bytes is None:
        return float("inf")
    events = Columns(np.array(tape.event_types), np.array(tape.event_buffers), np.array(tape.buffers.sizes),
                     np.array(tape.buffers.streams))
    return setup.capacity_bytes - simulate(events, Device(setup.allocator)).reserved_bytes
