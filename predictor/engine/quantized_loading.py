"""A model of layers of 4 or 8 bits comes to the device: tensor by tensor, each quantised there before the next follows.

transformers 5.17: modeling_utils.py, ``caching_allocator_warmup`` and ``_move_missing_keys_from_meta_to_device``;
core_model_loading.py, ``convert_and_load_state_dict_in_model``. bitsandbytes 0.50: functional.py, ``quantize_4bit``
and ``quantize_blockwise``; nn/modules.py, ``Int8Params._quantize``; backends/cuda/ops.py. peft 0.21: utils/other.py,
``prepare_model_for_kbit_training``; tuners/tuners_utils.py, ``_move_adapter_to_device_of_base_layer`` and
``cast_adapter_dtype``.
"""

from __future__ import annotations

from predictor.engine.compose import Tape
from predictor.engine.setup import BF16, FP32, Setup
from predictor.events import workspaces
from predictor.events.events import Factor, Kind
from predictor.model.lora import ADAPTERS, COPIED, UNTRAINED
from predictor.model.quantization import (
    BLOCK_ELEMENTS,
    CODE_ELEMENTS,
    ITEMSIZES,
    NESTED_BLOCK_ELEMENTS,
    NESTED_CODE_ELEMENTS,
)

SPARED_BYTES = 1.2 * (1 << 30)
"""What the warm-up leaves of the GPU."""


def load(tape: Tape, setup: Setup) -> dict[int, int]:
    """The model with its adapters, ready to train; the buffer of each tensor, by its index."""
    start = _Loading(tape, setup)
    start.read()
    if start.widens:
        start.widen()
    start.adapt()
    start.settle()
    return start.buffers


class _Loading:
    """Tensors by index: those of the checkpoint under the names that they have there, then those of the adapters."""

    def __init__(self, tape: Tape, setup: Setup) -> None:
        self.tape, self.setup, self.tensors = tape, setup, setup.facts.parameters
        self.widens = setup.quantization.get("prepare") == "peft"
        self.itemsize = ITEMSIZES.get(setup.quantization.get("bnb_4bit_compute_dtype"), FP32)
        self.buffers: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.adapters = [i for i, tensor in enumerate(self.tensors) if ADAPTERS in tensor.name]
        self.copies = [i for i, tensor in enumerate(self.tensors) if COPIED in tensor.name]
        added = {*self.adapters, *self.copies}
        self.stored = [i for i, tensor in enumerate(self.tensors) if not tensor.buffer and i not in added]
        self.mapped = False

    def read(self) -> None:
        """One allocation as large as the model, for the cache's sake; tensors in the order of their names; buffers."""
        tape, tensors = self.tape, self.tensors
        size = sum(tensors[i].bytes if tensors[i].quantized else BF16 * tensors[i].numel for i in self.stored)
        if self.setup.capacity_bytes is not None:
            size = max(min(size, int(self.setup.capacity_bytes - SPARED_BYTES)), 0)
        tape.free(tape.allocate(size // 2 * 2, Factor.TEMPORARIES, "transformers::caching_allocator_warmup"))
        for index in sorted(self.stored, key=lambda index: _natural(tensors[index].name)):
            if tensors[index].packed:
                self._pack(index)
            elif tensors[index].quantized:
                self._narrow(index)
            else:
                self._make(index, BF16)
        for index, tensor in enumerate(tensors):
            if tensor.buffer:
                self._make(index, tensor.itemsize)

    def _pack(self, index: int) -> None:
        """The weight in full, then its 4 bits, its maxima, and the table of what they mean."""
        tape, tensor = self.tape, self.tensors[index]
        blocks = -(-2 * tensor.numel // BLOCK_ELEMENTS)

        def made(size: int, factor: Factor = Factor.PARAMETERS) -> int:
            return tape.allocate(size, factor, "bitsandbytes::quantize_4bit", module=tensor.module)

        whole = tape.allocate(BF16 * 2 * tensor.numel, Factor.PARAMETERS, "to", module=tensor.module)
        double = self.setup.quantization["bnb_4bit_use_double_quant"]
        maxima = made(FP32 * blocks, Factor.TEMPORARIES if double else Factor.PARAMETERS)
        self.buffers[index] = made(tensor.bytes)
        made(FP32 * CODE_ELEMENTS)
        for buffer in [made(size, Factor.TEMPORARIES) for size in (FP32 * CODE_ELEMENTS, FP32)]:  # its largest value
            tape.free(buffer)
        if double:
            made(FP32)  # the mean of the maxima
            dimensions = (1, blocks, FP32, 1, 1)
            shared = [int(size(self.setup.gpu, *dimensions)) for size in
                      (workspaces.reduction_buffer, workspaces.reduction_semaphores)]
            for buffer in reversed([made(size, Factor.TEMPORARIES) for size in shared if size]):
                tape.free(buffer)
            centred = made(FP32 * blocks, Factor.TEMPORARIES)
            for size in (*(() if self.mapped else (FP32 * NESTED_CODE_ELEMENTS,)),  # for all layers
                         FP32 * -(-blocks // NESTED_BLOCK_ELEMENTS), blocks, FP32 * NESTED_CODE_ELEMENTS):
                made(size)
            self.mapped = True
            tape.free(centred)
            tape.free(maxima)
        tape.free(whole)

    def _narrow(self, index: int) -> None:
        """The weight in full, and once more in fp16, as it comes back from the host; maxima of rows, and its 8 bits."""
        tape, tensor = self.tape, self.tensors[index]
        whole, copy = (tape.allocate(BF16 * tensor.numel, Factor.PARAMETERS, "to", module=tensor.module)
                       for _ in range(2))
        for size in (FP32 * tensor.shape[0], tensor.bytes):
            self.buffers[index] = tape.allocate(size, Factor.PARAMETERS, "bitsandbytes::int8_vectorwise_quant",
                                                module=tensor.module)
        tape.free(copy)
        tape.free(whole)

    def widen(self) -> None:
        """All that is not quantised becomes fp32; what that leaves in the cache is given back."""
        for index in self.stored:
            if not self.tensors[index].quantized:
                self._cast(index, FP32)
        self.tape.mark(Kind.EMPTY_CACHE)

    def adapt(self) -> None:
        """Adapters come in the layer's compute dtype (of 8 bits: fp32), copies of modules as those are; then adapters
        become fp32."""
        quantized = {tensor.module for tensor in self.tensors if tensor.quantized}
        wide = FP32 if self.widens else BF16
        for index in self.adapters:
            layer = self.tensors[index].name.partition(ADAPTERS)[0] + ".base_layer"
            self._make(index, self.itemsize if layer in quantized else wide)
        for index in self.copies:
            self._make(index, wide)
        for index in self.adapters if self.setup.autocast_adapter_dtype else ():
            self._cast(index, FP32)

    def settle(self) -> None:
        """TRL makes adapters bf16, DeepSpeed all but the 4-bit weights; biases of 4-bit layers take the compute dtype,
        in truth when each first runs."""
        for index, tensor in enumerate(self.tensors):
            if index in self.sizes:
                self._cast(index, tensor.itemsize)

    def _make(self, index: int, itemsize: int) -> None:
        tensor = self.tensors[index]
        self.sizes[index] = itemsize
        self.buffers[index] = self.tape.allocate(itemsize * tensor.numel, Factor.PARAMETERS, "to", module=tensor.module)

    def _cast(self, index: int, itemsize: int) -> None:
        if self.sizes[index] != itemsize:
            old = self.buffers[index]
            self._make(index, itemsize)
            self.tape.free(old)


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Of a tensor's name in the checkpoint, digits as numbers and before words (``dot_natural_key``)."""
    for part in UNTRAINED:
        name = name.replace(part, ".")
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split(".")]
