"""Loads a model with layers of 4 or 8 bits on the device: tensor by tensor, each quantised before the next is loaded.

transformers 5.17: modeling_utils.py, ``caching_allocator_warmup`` and ``_move_missing_keys_from_meta_to_device``;
core_model_loading.py, ``convert_and_load_state_dict_in_model``. bitsandbytes 0.50: functional.py, ``quantize_4bit``
and ``quantize_blockwise``; nn/modules.py, ``Int8Params._quantize``; backends/cuda/ops.py. peft 0.21: utils/other.py,
``prepare_model_for_kbit_training``; tuners/tuners_utils.py, ``_move_adapter_to_device_of_base_layer`` and
``cast_adapter_dtype``. :data:`SINCE` lists the differences of older releases.
"""

from __future__ import annotations

from predictor.common.releases import release
from predictor.engine.setup import BF16, FP32, Setup
from predictor.engine.tape import Tape
from predictor.events import workspaces
from predictor.events.events import EventType, Factor
from predictor.events.model_facts import Parameter
from predictor.model.lora import ADAPTERS, COPIED, UNTRAINED
from predictor.model.quantization import (
    BLOCK_ELEMENTS,
    CODE_ELEMENTS,
    ITEMSIZES,
    NESTED_BLOCK_ELEMENTS,
    NESTED_CODE_ELEMENTS,
)

SINCE = {"names_in_natural_order": ("transformers", (5, 0, 0)), "empties_cache": ("peft", (0, 20, 0))}
"""Behaviour -> the package, and its first release that has it.

- ``names_in_natural_order``: tensors are read in the natural order of their names, each 4-bit weight goes to the GPU
  once, and the warm-up of the caching allocator is as large as the quantised model. Before, they are read in
  alphabetical order, safetensors brings each to the GPU, from where those to quantise go back to the host and again to
  the GPU, and the warm-up is half the model in 16 bits (4.57: modeling_utils.py, ``_load_state_dict_into_meta_model``
  and ``caching_allocator_warmup``; quantizers/quantizer_bnb_4bit.py, ``create_quantized_param``).
- ``empties_cache``: ``prepare_model_for_kbit_training`` empties the allocator's cache.
"""
HEAD = "lm_head"
"""The layer whose weight models declare as one that can be tied to the embedding's (``_tied_weights_keys``). The
warm-up before transformers 5 does not count it."""
SPARED_BYTES = 1.2 * (1 << 30)
"""GPU memory that the warm-up of the caching allocator leaves free."""


def load(tape: Tape, setup: Setup) -> dict[int, int]:
    """Loads the model with its adapters, ready to train.

    Returns:
        Index of a tensor -> its buffer.
    """
    start = _Loading(tape, setup)
    start.read()
    if start.widens:
        start.widen()
    start.adapt()
    start.settle()
    return start.buffers


class _Loading:
    """The loading of one model. Tensors are numbered as in the model's facts."""

    def __init__(self, tape: Tape, setup: Setup) -> None:
        assert setup.quantization is not None  # to_device() calls load() only with it
        self.tape, self.setup, self.tensors = tape, setup, setup.facts.parameters
        self.quantization = setup.quantization
        self.widens = self.quantization.get("prepare") == "peft"
        self.itemsize = ITEMSIZES.get(self.quantization.get("bnb_4bit_compute_dtype", ""), FP32)
        self.buffers: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.adapters = [i for i, tensor in enumerate(self.tensors) if ADAPTERS in tensor.name]
        self.copies = [i for i, tensor in enumerate(self.tensors) if COPIED in tensor.name]
        added = {*self.adapters, *self.copies}
        self.stored = [i for i, tensor in enumerate(self.tensors) if not tensor.buffer and i not in added]
        self.mapped = False
        self.in_natural_order = self._has("names_in_natural_order")

    def _has(self, behaviour: str) -> bool:
        """Whether the setup's releases have a behaviour of :data:`SINCE`; a release that is not named is a new one."""
        package, since = SINCE[behaviour]
        return package not in self.setup.versions or release(self.setup.versions[package]) >= since

    def read(self) -> None:
        """Warms up the caching allocator, then loads the tensors in the order of their names, then the buffers."""
        tape, tensors = self.tape, self.tensors
        size = sum(self._warm_up_bytes(tensors[i]) for i in self.stored)
        if self.setup.capacity_bytes is not None:
            size = max(min(size, int(self.setup.capacity_bytes - SPARED_BYTES)), 0)
        size //= 1 if self.in_natural_order else 2
        tape.free(tape.allocate(size // 2 * 2, Factor.TEMPORARIES, "transformers::caching_allocator_warmup"))
        for index in sorted(self.stored, key=lambda index: self._reading_key(tensors[index].name)):
            if tensors[index].packed:
                read = None if self.in_natural_order else tape.allocate(
                    BF16 * 2 * tensors[index].numel, Factor.PARAMETERS, "safetensors::get_slice",
                    module=tensors[index].module)
                self._pack(index)
                if read is not None:
                    tape.free(read)
            elif tensors[index].quantized:
                self._narrow(index)
            else:
                self._make(index, BF16)
        for index, tensor in enumerate(tensors):
            if tensor.buffer:
                self._make(index, tensor.itemsize)

    def _warm_up_bytes(self, tensor: Parameter) -> int:
        if self.in_natural_order and tensor.quantized:
            return tensor.bytes
        if not self.in_natural_order and tensor.module.endswith(HEAD):
            return 0
        return BF16 * tensor.numel * (2 if tensor.packed else 1)

    def _reading_key(self, name: str) -> list[tuple[int, int, str]]:
        """Sort key of a tensor's name in the checkpoint. In natural order (``dot_natural_key``) digits are numbers and
        come before words."""
        for part in UNTRAINED:
            name = name.replace(part, ".")
        if not self.in_natural_order:
            return [(0, 0, name)]
        return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split(".")]

    def _pack(self, index: int) -> None:
        """4 bits: the whole weight in 16 bits, then its packed values, its block maxima, and the quantization table."""
        tape, tensor = self.tape, self.tensors[index]
        blocks = -(-2 * tensor.numel // BLOCK_ELEMENTS)

        def allocate(size: int, factor: Factor = Factor.PARAMETERS) -> int:
            return tape.allocate(size, factor, "bitsandbytes::quantize_4bit", module=tensor.module)

        whole = tape.allocate(BF16 * 2 * tensor.numel, Factor.PARAMETERS, "to", module=tensor.module)
        double = self.quantization["bnb_4bit_use_double_quant"]
        maxima = allocate(FP32 * blocks, Factor.TEMPORARIES if double else Factor.PARAMETERS)
        self.buffers[index] = allocate(tensor.bytes)
        allocate(FP32 * CODE_ELEMENTS)
        largest = [allocate(size, Factor.TEMPORARIES) for size in (FP32 * CODE_ELEMENTS, FP32)]  # of the table
        for buffer in largest:
            tape.free(buffer)
        if double:
            allocate(FP32)  # the mean of the maxima
            dimensions = (1, blocks, FP32, 1, 1)
            shared = [int(size(self.setup.gpu, *dimensions)) for size in
                      (workspaces.reduction_buffer, workspaces.reduction_semaphores)]
            for buffer in reversed([allocate(size, Factor.TEMPORARIES) for size in shared if size]):
                tape.free(buffer)
            centred = allocate(FP32 * blocks, Factor.TEMPORARIES)
            for size in (*(() if self.mapped else (FP32 * NESTED_CODE_ELEMENTS,)),  # once for all layers
                         FP32 * -(-blocks // NESTED_BLOCK_ELEMENTS), blocks, FP32 * NESTED_CODE_ELEMENTS):
                allocate(size)
            self.mapped = True
            tape.free(centred)
            tape.free(maxima)
        tape.free(whole)

    def _narrow(self, index: int) -> None:
        """8 bits: the whole weight in 16 bits, a copy in fp16, then the maxima of its rows and its 8-bit values."""
        tape, tensor = self.tape, self.tensors[index]
        whole, copy = (tape.allocate(BF16 * tensor.numel, Factor.PARAMETERS, "to", module=tensor.module)
                       for _ in range(2))
        for size in (FP32 * tensor.shape[0], tensor.bytes):
            self.buffers[index] = tape.allocate(size, Factor.PARAMETERS, "bitsandbytes::int8_vectorwise_quant",
                                                module=tensor.module)
        tape.free(copy)
        tape.free(whole)

    def widen(self) -> None:
        """Casts all tensors that are not quantised to fp32, then may empty the allocator's cache."""
        for index in self.stored:
            if not self.tensors[index].quantized:
                self._cast(index, FP32)
        if self._has("empties_cache"):
            self.tape.mark(EventType.EMPTY_CACHE)

    def adapt(self) -> None:
        """Adds adapters in their layer's compute dtype (fp32 for 8 bits), and copied modules in the model's dtype.

        With ``autocast_adapter_dtype`` the adapters are then cast to fp32.
        """
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
        """Casts every tensor to the dtype that it trains in.

        TRL casts adapters to bf16; DeepSpeed casts all but the 4-bit weights. Biases of 4-bit layers are cast to the
        compute dtype here; in bitsandbytes this happens when each layer first runs.
        """
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
