"""bitsandbytes' layers of 4 and 8 bits in a model: QLoRA, and inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from predictor.common.errors import InputError
from predictor.common.gpus import Gpu
from predictor.events import gemm_4bit
from predictor.events.model_facts import TOWERS, ModelFacts, modality
from predictor.events.sizes import Shape
from predictor.model.lora import quiet
from predictor.workload.modes import unpredicted
from predictor.workload.quantization_keys import SKIPPED

if TYPE_CHECKING:
    from predictor.workload.workload import Workload

PINNED_BITSANDBYTES = "0.50.2"
BLOCK_ELEMENTS, NESTED_BLOCK_ELEMENTS = 64, 256
"""Weights that share a maximum, and maxima that share one (bitsandbytes/functional.py, ``quantize_4bit``)."""
CODE_ELEMENTS, NESTED_CODE_ELEMENTS = 16, 256
"""Of the tables of all values (the same file, ``get_4bit_type`` and ``create_dynamic_map``)."""
BYTES_IN_A_WORD = 4
"""Rows of products of 8 bits are whole words (backends/cuda/ops.py, ``_int8_linear_matmul_impl``)."""
ITEMSIZES = {"bf16": 2, "fp32": 4}
OUTLIER_ROW_BYTES, OUTLIER_OUTPUT_BYTES = 4, 10
"""Of a column of outliers, for every token and every output of a layer (:func:`outlier_bytes`)."""
@dataclass(frozen=True)
class Quantized:
    """What of the ``quantization`` key decides which memory a step allocates: the values of few bits do not.

    Attributes:
        bits: 4 or 8.
        compute_dtype: ``bf16`` or ``fp32``; of 8 bits None, whose products are of integers.
        outliers: whether layers of 8 bits look for columns beyond a threshold.
        skip_modules: beginnings or ends of paths of layers that keep their weights; None: as transformers chooses.
        prepare: ``peft`` or ``trl``; None in inference.
        narrowed: whether all other weights are bf16 in the end: DeepSpeed makes them so (0.19.8, runtime/engine.py,
            ``_cast_module_mixed_precision``).
        bitsandbytes: release.
    """

    bits: int
    double_quant: bool
    compute_dtype: str | None
    outliers: bool
    skip_modules: tuple[str, ...] | None
    prepare: str | None
    narrowed: bool
    bitsandbytes: str

    @property
    def in_fp32(self) -> bool:
        """Whether all but products of 4-bit weights runs in fp32."""
        return self.prepare == "peft" and not self.narrowed


def quantized(workload: Workload) -> Quantized | None:
    """The layers of 4 or 8 bits of a workload; None if it has none."""
    wanted = workload.quantization
    if wanted is None:
        return None
    return Quantized(
        8 if "load_in_8bit" in wanted else 4, wanted.get("bnb_4bit_use_double_quant", False),
        wanted.get("bnb_4bit_compute_dtype"), wanted.get("llm_int8_threshold", 0) > 0,
        wanted["llm_int8_skip_modules"], wanted.get("prepare"), workload.engine == "deepspeed",
        workload.versions.get("bitsandbytes", PINNED_BITSANDBYTES))


def check_rows(workload: Workload, facts: ModelFacts, shape: Shape, gpu: Gpu) -> None:
    """Refuses shapes at which layers with a bias take bitsandbytes' own kernel: whether the others then make a
    workspace of cuBLASLt is not followed."""
    wanted = quantized(workload)
    if wanted is None or wanted.bits == 8:
        return
    rows = {True: shape.batch * shape.sequence, False: sum(facts.image_tokens) or shape.images * facts.tokens_per_image}
    biases = {tensor.module: tensor.numel for tensor in facts.parameters if tensor.name.endswith(".bias")}
    for tensor in facts.parameters:
        if tensor.packed and tensor.module in biases:
            seen = rows[modality(tensor.name) not in (*TOWERS, "projector")]
            outputs = biases[tensor.module]
            if gemm_4bit.is_fused(gpu, seen, outputs, 2 * tensor.numel // outputs, ITEMSIZES[wanted.compute_dtype]):
                raise InputError(f"quantization: {tensor.module}, a layer of 4 bits, would see {seen} tokens: of so "
                                 "few bitsandbytes takes another kernel, which is not predicted of layers with a "
                                 f"bias: {unpredicted(workload.mode)}")


def notes(workload: Workload, facts: ModelFacts, rows: int) -> tuple[str, ...]:
    """What is not modelled of layers of 8 bits; ``rows`` of tokens that those of the language model see at most."""
    wanted = quantized(workload)
    if wanted is None or not wanted.outliers:
        return ()
    outputs = max((t.shape[0] for t in facts.parameters if t.quantized and modality(t.name) not in TOWERS), default=0)
    later = ", and 2 for every token until its backward pass" if workload.mode == "training" else ""
    return ("columns of activations beyond llm_int8_threshold "
            f"{workload.quantization['llm_int8_threshold']:g}, as many as the data have: predicted as if there were "
            f"none; while a layer runs each takes at most {OUTLIER_ROW_BYTES} bytes for every token and "
            f"{OUTLIER_OUTPUT_BYTES} for every output ({outlier_bytes(rows, outputs):,} bytes in the widest of the "
            f"language model), then 8 bytes in each layer{later}; the first takes 1 MiB for cuBLASLt",)


def outlier_bytes(rows: int, outputs: int) -> int:
    """The most that a column of outliers adds to a layer's peak: it is gathered twice in 16 bits, and its weights, of 8
    bits, are gathered twice and multiplied by their maxima twice in fp32 (bitsandbytes 0.50, backends/default/ops.py,
    int8_mixed_scaled_mm and int8_vectorwise_dequant)."""
    return OUTLIER_ROW_BYTES * rows + OUTLIER_OUTPUT_BYTES * outputs


def replace(model, wanted: Quantized) -> None:
    """Put bitsandbytes' layers into a model on meta, in place, their weights quantised.

    Raises:
        InputError: a module to skip that is none, nothing left to quantise, or layers of 8 bits without kernels.
    """
    import torch

    quiet()
    from bitsandbytes.nn import Linear4bit, Linear8bitLt
    from transformers import BitsAndBytesConfig
    from transformers.integrations import replace_with_bnb_linear
    from transformers.quantizers import base, quantizers_utils

    linear = [name for name, layer in model.named_modules() if type(layer) is torch.nn.Linear]
    for pattern in (given for given in wanted.skip_modules or () if given not in SKIPPED):
        if all(quantizers_utils.should_convert_module(name, [pattern]) for name in linear):
            raise InputError(f"quantization: llm_int8_skip_modules names {pattern!r}, with which no path of a linear "
                             f"layer begins or ends (for example {linear[0]})")
    skipped = base.HfQuantizer.get_modules_to_not_convert(model, wanted.skip_modules, model._keep_in_fp32_modules)
    if wanted.bits == 8:
        settings = {"load_in_8bit": True, "llm_int8_threshold": float(wanted.outliers)}
    else:
        compute = {"bf16": torch.bfloat16, "fp32": torch.float32}[wanted.compute_dtype]
        settings = {"load_in_4bit": True, "bnb_4bit_compute_dtype": compute,
                    "bnb_4bit_use_double_quant": wanted.double_quant}
    replace_with_bnb_linear(model, skipped, BitsAndBytesConfig(**settings))
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, (Linear4bit, Linear8bitLt))}
    if not layers:
        raise InputError("quantization: llm_int8_skip_modules leaves no layer to quantise")
    for name, layer in layers.items():
        if wanted.bits == 8 and layer.in_features % BYTES_IN_A_WORD:
            raise InputError(f"quantization: {name} takes {layer.in_features} numbers, for which bitsandbytes has no "
                             "product of 8 bits: add it to llm_int8_skip_modules")
        layer.weight = _packed(layer, wanted) if wanted.bits == 4 else _bytes(layer)
        if layer.bias is not None:
            layer.bias.data = layer.bias.data.to(model.config.dtype)
        if wanted.bits == 8:
            layer.init_8bit_state()
    setattr(model, f"is_loaded_in_{wanted.bits}bit", True)  # as transformers marks it; peft asks
    base._assign_is_quantized(model)  # and flash attention


def _packed(layer, wanted: Quantized):
    """The weight of a layer as ``Params4bit.to`` leaves it on a device."""
    import torch
    from bitsandbytes.functional import QuantState
    from bitsandbytes.nn import Params4bit

    def empty(*shape: int, dtype=torch.float32):
        return torch.empty(shape, dtype=dtype, device="meta")

    weights = layer.in_features * layer.out_features
    blocks = -(-weights // BLOCK_ELEMENTS)
    state = QuantState(empty(blocks), torch.Size((layer.out_features, layer.in_features)), empty(CODE_ELEMENTS),
                       BLOCK_ELEMENTS, "nf4", torch.bfloat16)
    if wanted.double_quant:
        nested = QuantState(empty(-(-blocks // NESTED_BLOCK_ELEMENTS)), code=empty(NESTED_CODE_ELEMENTS),
                            blocksize=NESTED_BLOCK_ELEMENTS, dtype=torch.float32)
        state = QuantState(empty(blocks, dtype=torch.uint8), state.shape, state.code, BLOCK_ELEMENTS, "nf4",
                           torch.bfloat16, empty(), nested)
    return Params4bit(empty((weights + 1) // 2, 1, dtype=torch.uint8), quant_state=state, bnb_quantized=True,
                      compress_statistics=wanted.double_quant, quant_type="nf4", module=layer)


def _bytes(layer):
    """The weight of a layer as ``Int8Params.to`` leaves it on a device, with the maxima of its rows."""
    import torch
    from bitsandbytes.nn import Int8Params

    weight = torch.empty(layer.out_features, layer.in_features, dtype=torch.int8, device="meta")
    return Int8Params(weight, requires_grad=False, CB=weight, SCB=torch.empty(layer.out_features, device="meta"))


def row_maxima(model) -> list:
    """Of the weights of layers of 8 bits: neither parameters nor buffers."""
    states = [getattr(layer, "state", None) for layer in model.modules()]
    return [state.SCB for state in states if hasattr(state, "SCB")]


def prepare(model, wanted: Quantized) -> None:
    """What comes before the adapters."""
    if wanted.prepare == "peft":
        from peft import prepare_model_for_kbit_training

        prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)


def narrow(model, wanted: Quantized) -> None:
    """What comes after the adapters: TRL makes what trains bf16 (trl/trainer/sft_trainer.py since November 2025)."""
    import torch

    for parameter in model.parameters() if wanted.prepare == "trl" else ():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)


def settle(model, wanted: Quantized) -> None:
    """What engine and layers do to weights in the end: biases of 4-bit layers take their compute dtype when each first
    runs (bitsandbytes/nn/modules.py, ``Linear4bit.forward``)."""
    import torch
    from bitsandbytes.nn import Linear4bit

    for parameter in model.parameters() if wanted.narrowed else ():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(torch.bfloat16)
    for layer in model.modules():
        if isinstance(layer, Linear4bit) and layer.bias is not None:
            layer.bias.data = layer.bias.data.to(layer.compute_dtype)
