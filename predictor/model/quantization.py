"""Quantization: puts bitsandbytes' 4-bit and 8-bit layers into a model, for QLoRA and for inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from predictor.common.errors import InputError, NotPredicted
from predictor.common.gpus import Gpu
from predictor.events import gemm_4bit
from predictor.events.model_facts import TOWERS, ModelFacts, modality
from predictor.events.sizes import Shape
from predictor.model import transformers_releases
from predictor.model.lora import quiet
from predictor.workload.modes import advice_for
from predictor.workload.quantization_keys import SKIPPED

if TYPE_CHECKING:
    from predictor.workload.workload import Workload

PINNED_BITSANDBYTES = "0.50.2"
BLOCK_ELEMENTS, NESTED_BLOCK_ELEMENTS = 64, 256
"""Weights that share a maximum, and maxima that share a maximum with double quantization (bitsandbytes/functional.py,
``quantize_4bit``)."""
CODE_ELEMENTS, NESTED_CODE_ELEMENTS = 16, 256
"""Entries of the lookup tables of 4-bit and 8-bit values (bitsandbytes/functional.py, ``get_4bit_type`` and
``create_dynamic_map``)."""
BYTES_IN_A_WORD = 4
"""Input widths of 8-bit products must be multiples of it (backends/cuda/ops.py, ``_int8_linear_matmul_impl``)."""
ITEMSIZES = {"bf16": 2, "fp32": 4}
OUTLIER_ROW_BYTES, OUTLIER_OUTPUT_BYTES = 4, 10
"""Bytes of a column of outliers, for every token and for every output of a layer (:func:`outlier_bytes`)."""


@dataclass(frozen=True)
class Quantized:
    """The settings of the ``quantization`` key that affect the memory of a step; the quantization type does not.

    Attributes:
        bits: 4 or 8.
        double_quant: whether the maxima of 4-bit weights are quantized too.
        compute_dtype: ``bf16`` or ``fp32`` for 4 bits; None for 8 bits, whose products use integers.
        outliers: whether 8-bit layers look for columns of activations beyond a threshold.
        skip_modules: beginnings or ends of paths of layers that are not quantized; None: as transformers chooses.
        prepare: the library that prepares the model for training, ``peft`` or ``trl``; None in inference.
        narrowed: whether all other weights become bf16; DeepSpeed casts them (0.19.8, runtime/engine.py,
            ``_cast_module_mixed_precision``).
        bitsandbytes: version of bitsandbytes.
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
        """Whether everything except products of 4-bit weights runs in fp32."""
        return self.prepare == "peft" and not self.narrowed


def quantized(workload: Workload) -> Quantized | None:
    """The quantization of a workload; None if it has none."""
    keys = workload.quantization
    if keys is None:
        return None
    return Quantized(
        8 if "load_in_8bit" in keys else 4, keys.get("bnb_4bit_use_double_quant", False),
        keys.get("bnb_4bit_compute_dtype"), keys.get("llm_int8_threshold", 0) > 0,
        keys["llm_int8_skip_modules"], keys.get("prepare"), workload.engine == "deepspeed",
        workload.versions.get("bitsandbytes", PINNED_BITSANDBYTES))


def check_rows(workload: Workload, facts: ModelFacts, shape: Shape, gpu: Gpu) -> None:
    """Rejects shapes for which a 4-bit layer with a bias runs in bitsandbytes' fused kernel.

    The trace does not follow whether the other layers then allocate cuBLASLt's workspace.

    Raises:
        InputError: a 4-bit layer with a bias gets so few tokens.
    """
    settings = quantized(workload)
    if settings is None or settings.bits == 8:
        return
    assert settings.compute_dtype is not None  # only 8 bits have none
    rows = {True: shape.batch * shape.sequence, False: sum(facts.image_tokens) or shape.images * facts.tokens_per_image}
    biases = {tensor.module: tensor.numel for tensor in facts.parameters if tensor.name.endswith(".bias")}
    for tensor in facts.parameters:
        if tensor.packed and tensor.module in biases:
            tokens = rows[modality(tensor.name) not in (*TOWERS, "projector")]
            outputs = biases[tensor.module]
            if gemm_4bit.is_fused(gpu, tokens, outputs, 2 * tensor.numel // outputs, ITEMSIZES[settings.compute_dtype]):
                raise NotPredicted(f"quantization: {tensor.module}, a 4-bit layer, would get {tokens} tokens: for so "
                                   "few tokens bitsandbytes uses another kernel, which is not predicted for layers "
                                   f"with a bias: {advice_for(workload.mode)}")


def notes(workload: Workload, facts: ModelFacts, rows: int) -> tuple[str, ...]:
    """Notes on effects of 8-bit layers that are not modelled; ``rows`` is the most tokens that a layer of the language
    model gets."""
    settings = quantized(workload)
    if settings is None or not settings.outliers:
        return ()
    assert workload.quantization is not None  # else there would be no settings
    outputs = max((t.shape[0] for t in facts.parameters if t.quantized and modality(t.name) not in TOWERS), default=0)
    later = ", and 2 for every token until its backward pass" if workload.mode == "training" else ""
    return ("columns of activations beyond llm_int8_threshold "
            f"{workload.quantization['llm_int8_threshold']:g}: the prediction assumes none, but their number depends "
            f"on the data; while a layer runs, each column takes at most {OUTLIER_ROW_BYTES} bytes for every token and "
            f"{OUTLIER_OUTPUT_BYTES} for every output ({outlier_bytes(rows, outputs):,} bytes in the widest layer of "
            f"the language model), then 8 bytes in each layer{later}; the first column takes 1 MiB for cuBLASLt",)


def outlier_bytes(rows: int, outputs: int) -> int:
    """The most bytes that a column of outliers adds to a layer's peak.

    The column is gathered twice in 16 bits. Its 8-bit weights are gathered twice, and multiplied by their maxima twice
    in fp32 (bitsandbytes 0.50, backends/default/ops.py, int8_mixed_scaled_mm and int8_vectorwise_dequant).
    """
    return OUTLIER_ROW_BYTES * rows + OUTLIER_OUTPUT_BYTES * outputs


def replace(model, settings: Quantized) -> None:
    """Replaces linear layers of a model on meta by bitsandbytes' layers with quantised weights, in place.

    Raises:
        InputError: a module to skip does not exist, no layer is left to quantise, or bitsandbytes has no 8-bit kernel
            for a layer.
    """
    import torch

    quiet()
    from bitsandbytes.nn.modules import Linear4bit, Linear8bitLt
    from transformers import BitsAndBytesConfig
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    from transformers.quantizers import base

    linear = [name for name, layer in model.named_modules() if type(layer) is torch.nn.Linear]
    for pattern in (entry for entry in settings.skip_modules or () if entry not in SKIPPED):
        if not any(transformers_releases.skips_quantizing(name, pattern) for name in linear):
            raise InputError(f"quantization: llm_int8_skip_modules names {pattern!r}, with which no path of a linear "
                             f"layer begins or ends (for example {linear[0]})")
    skip_modules = None if settings.skip_modules is None else list(settings.skip_modules)
    skipped = base.HfQuantizer.get_modules_to_not_convert(model, skip_modules, model._keep_in_fp32_modules)
    keywords: dict[str, Any]
    if settings.bits == 8:
        keywords = {"load_in_8bit": True, "llm_int8_threshold": float(settings.outliers)}
    else:
        assert settings.compute_dtype is not None  # only 8 bits have none
        compute = {"bf16": torch.bfloat16, "fp32": torch.float32}[settings.compute_dtype]
        keywords = {"load_in_4bit": True, "bnb_4bit_compute_dtype": compute,
                    "bnb_4bit_use_double_quant": settings.double_quant}
    replace_with_bnb_linear(model, skipped, quantization_config=BitsAndBytesConfig(**keywords))
    layers: dict[str, Any] = {name: layer for name, layer in model.named_modules()
                              if isinstance(layer, (Linear4bit, Linear8bitLt))}
    if not layers:
        raise InputError("quantization: llm_int8_skip_modules leaves no layer to quantise")
    for name, layer in layers.items():
        if settings.bits == 8 and layer.in_features % BYTES_IN_A_WORD:
            raise InputError(f"quantization: {name} takes {layer.in_features} numbers, for which bitsandbytes has no "
                             "product of 8 bits: add it to llm_int8_skip_modules")
        layer.weight = _packed(layer, settings) if settings.bits == 4 else _bytes(layer)
        if layer.bias is not None:
            layer.bias.data = layer.bias.data.to(model.config.dtype)
        if settings.bits == 8:
            layer.init_8bit_state()
    setattr(model, f"is_loaded_in_{settings.bits}bit", True)  # transformers' mark, which peft reads
    if hasattr(base, "_assign_is_quantized"):
        base._assign_is_quantized(model)  # transformers' mark, which flash attention reads


def _packed(layer, settings: Quantized):
    """A layer's 4-bit weight, as ``Params4bit.to`` leaves it on a device."""
    import torch
    from bitsandbytes.functional import QuantState
    from bitsandbytes.nn.modules import Params4bit

    def empty(*shape: int, dtype=torch.float32):
        return torch.empty(shape, dtype=dtype, device="meta")

    weights = layer.in_features * layer.out_features
    blocks = -(-weights // BLOCK_ELEMENTS)
    state = QuantState(empty(blocks), torch.Size((layer.out_features, layer.in_features)), empty(CODE_ELEMENTS),
                       BLOCK_ELEMENTS, "nf4", torch.bfloat16)
    if settings.double_quant:
        nested = QuantState(empty(-(-blocks // NESTED_BLOCK_ELEMENTS)), code=empty(NESTED_CODE_ELEMENTS),
                            blocksize=NESTED_BLOCK_ELEMENTS, dtype=torch.float32)
        state = QuantState(empty(blocks, dtype=torch.uint8), state.shape, state.code, BLOCK_ELEMENTS, "nf4",
                           torch.bfloat16, empty(), nested)
    return Params4bit(empty((weights + 1) // 2, 1, dtype=torch.uint8), quant_state=state, bnb_quantized=True,
                      compress_statistics=settings.double_quant, quant_type="nf4", module=layer)


def _bytes(layer):
    """A layer's 8-bit weight, as ``Int8Params.to`` leaves it on a device, with the maxima of its rows."""
    import torch
    from bitsandbytes.nn.modules import Int8Params

    weight = torch.empty(layer.out_features, layer.in_features, dtype=torch.int8, device="meta")
    return Int8Params(weight, requires_grad=False, CB=weight, SCB=torch.empty(layer.out_features, device="meta"))


def row_maxima(model) -> list:
    """Row maxima of the weights of 8-bit layers, which are neither parameters nor buffers."""
    states = [getattr(layer, "state", None) for layer in model.modules()]
    return [state.SCB for state in states if state is not None and hasattr(state, "SCB")]


def prepare(model, settings: Quantized) -> None:
    """Prepares a quantized model for training, before adapters are added."""
    if settings.prepare == "peft":
        from peft import prepare_model_for_kbit_training

        prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)


def narrow(model, settings: Quantized) -> None:
    """Casts trainable parameters to bf16, as TRL does after adapters are added (trl/trainer/sft_trainer.py since
    November 2025)."""
    import torch

    for parameter in model.parameters() if settings.prepare == "trl" else ():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)


def cast_to_final_dtypes(model, settings: Quantized) -> None:
    """Gives weights their final dtypes.

    DeepSpeed casts all floating-point weights to bf16. The biases of 4-bit layers get the compute dtype at the first
    forward (bitsandbytes/nn/modules.py, ``Linear4bit.forward``).
    """
    import torch
    from bitsandbytes.nn.modules import Linear4bit

    for parameter in model.parameters() if settings.narrowed else ():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(torch.bfloat16)
    for layer in model.modules():
        if isinstance(layer, Linear4bit) and layer.bias is not None:
            layer.bias.data = layer.bias.data.to(layer.compute_dtype)
