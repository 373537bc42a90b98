"""Loads a model straight to the GPU, as transformers does with a ``device_map``: TRL asks for one on a single GPU.

TRL 1.16, trainer/utils.py, ``create_model_from_path``. transformers 5.17, modeling_utils.py,
``caching_allocator_warmup``; core_model_loading.py, ``convert_and_load_state_dict_in_model``, which reads tensors in
the natural order of their names. accelerate 1.15, utils/modeling.py, ``get_max_memory``, whose tensor makes sure that
CUDA works. peft 0.21, tuners/tuners_utils.py, ``_move_adapter_to_device_of_base_layer`` and ``cast_adapter_dtype``.
"""

from __future__ import annotations

from predictor.engine.quantized_loading import SPARED_BYTES
from predictor.engine.setup import BF16, FP32, Setup
from predictor.engine.tape import Tape
from predictor.events.events import Factor
from predictor.model.lora import ADAPTERS, COPIED, UNTRAINED

FIRST_BYTES = 8
SMALL_SEGMENT_BYTES = 2 << 20
"""What the allocator reserves for that first tensor, and the warm-up leaves out."""


def load(tape: Tape, setup: Setup) -> dict[int, int]:
    """Loads the model, then its adapters.

    Returns:
        Index of a tensor -> its buffer.
    """
    tensors = setup.facts.parameters
    added = [index for index, tensor in enumerate(tensors) if ADAPTERS in tensor.name or COPIED in tensor.name]
    stored = [index for index, tensor in enumerate(tensors) if not tensor.buffer and index not in set(added)]
    tape.free(tape.allocate(FIRST_BYTES, Factor.TEMPORARIES, "accelerate::get_max_memory"))
    size = sum(tensors[index].bytes for index in stored) - SMALL_SEGMENT_BYTES
    if setup.capacity_bytes is not None:
        size = min(size, int(setup.capacity_bytes - SPARED_BYTES))
    if size > 0:
        tape.free(tape.allocate(size // 2 * 2, Factor.TEMPORARIES, "transformers::caching_allocator_warmup"))
    buffers: dict[int, int] = {}

    def make(index: int, itemsize: int) -> None:
        tensor = tensors[index]
        buffers[index] = tape.allocate(itemsize * tensor.numel, Factor.PARAMETERS, "to", module=tensor.module)

    for index in sorted(stored, key=lambda index: natural_key(tensors[index].name)):
        make(index, tensors[index].itemsize)
    for index, tensor in enumerate(tensors):
        if tensor.buffer:
            make(index, tensor.itemsize)
    narrow = BF16 if any(tensors[index].itemsize == BF16 for index in stored) else FP32
    for index in added:
        make(index, narrow if ADAPTERS in tensors[index].name else tensors[index].itemsize)
    for index in added:
        if ADAPTERS in tensors[index].name and tensors[index].itemsize != narrow:
            old = buffers[index]
            make(index, tensors[index].itemsize)
            tape.free(old)
    return buffers


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key of a tensor's name in the checkpoint (``dot_natural_key``): digits are numbers and come before words."""
    for part in UNTRAINED:
        name = name.replace(part, ".")
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split(".")]
