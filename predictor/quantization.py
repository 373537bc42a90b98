"""QLoRA: the ``quantization`` key of a workload, and bitsandbytes' 4-bit layers in a model.

Names and defaults are those of transformers' ``BitsAndBytesConfig`` (5.17), but for the layers: the head and the
projector, which the recipe trains, stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from predictor.errors import InputError
from predictor.facts import ModelFacts, modality
from predictor.lora import Names, quiet
from predictor.values import Choice, Flag, FrozenMap, Invalid, Later, Table

if TYPE_CHECKING:
    from predictor.workload import Workload

PINNED_BITSANDBYTES = "0.50.2"
BLOCK_ELEMENTS, NESTED_BLOCK_ELEMENTS = 64, 256
"""Weights that share a maximum, and maxima that share one (bitsandbytes/functional.py, ``quantize_4bit``)."""
CODE_ELEMENTS, NESTED_CODE_ELEMENTS = 16, 256
"""Of the tables of all values (the same file, ``get_4bit_type`` and ``create_dynamic_map``)."""
FEW_ROWS = 512
"""Up to so many, products of 4-bit weights and bf16 may take a kernel that needs no whole ones (bitsandbytes 0.50,
backends/cuda/ops.py, ``_gemm_4bit_use_custom_cuda``); of fp32, ``predictor.workspaces`` knows which."""
SMALL_WEIGHTS = 1 << 22
"""Below so many, in layers that widen, that may hold for more rows too (the same function)."""
SKIPPED = ("model.multi_modal_projector", "model.connector", "model.visual.merger",
           "model.visual.deepstack_merger_list", "lm_head")
"""The projectors of transformers' models, which train beside adapters, and the head."""
_DTYPES = {"bfloat16": "bf16", "float32": "fp32", "torch.bfloat16": "bf16", "torch.float32": "fp32"}
_FP16 = dict.fromkeys(("fp16", "float16", "torch.float16"), "use bf16")


class _Given(Flag):
    """A flag that has to be set."""

    def check(self, value: Any) -> bool:
        if not super().check(value):
            raise Invalid("must be true: leave quantization out for weights in bf16")
        return True


COMPARED = {"engine": ("torch", "ddp", "deepspeed"), "zero_stage": (None, 1, 2), "offload": (None,),
            "mixed_precision": ("none",), "attn_implementation": ("sdpa", "eager", "flash_attention_2"),
            "padding": ("none", "right", "packed"), "use_liger_kernel": (False,),
            "gradient_checkpointing_modules": ((),),
            "gradient_checkpointing_kwargs": (FrozenMap({"use_reentrant": False}), FrozenMap({"use_reentrant": True}))}
"""Values of keys that were compared with runs of 4-bit layers; others are not predicted."""
DEFAULTS = FrozenMap({
    "load_in_4bit": True, "bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": False,
    "bnb_4bit_compute_dtype": "fp32", "llm_int8_skip_modules": SKIPPED, "prepare": "peft"})
KIND = Table({
    "load_in_4bit": _Given(), "load_in_8bit": Later("use load_in_4bit"),
    "bnb_4bit_quant_type": Choice(("fp4", "nf4")), "bnb_4bit_use_double_quant": Flag(),
    "bnb_4bit_compute_dtype": Choice(("bf16", "fp32"), _FP16, _DTYPES),
    "bnb_4bit_quant_storage": Choice(("uint8",), dict.fromkeys(("bfloat16", "float16", "float32"), "use uint8")),
    "llm_int8_skip_modules": Names(pattern=False), "prepare": Choice(("peft", "trl"))}, DEFAULTS)
HELP = ("transformers' BitsAndBytesConfig: load_in_4bit=true, bnb_4bit_quant_type=nf4, bnb_4bit_use_double_quant=true, "
        "bnb_4bit_compute_dtype=bf16 (fp32), llm_int8_skip_modules; prepare=peft: prepare_model_for_kbit_training "
        "makes the other weights fp32; trl: they stay, what trains becomes bf16")


@dataclass(frozen=True)
class Quantized:
    """What of the ``quantization`` key decides which memory a step allocates: the values of 4 bits do not.

    Attributes:
        compute_dtype: ``bf16`` or ``fp32``.
        skip_modules: beginnings or ends of paths of layers that keep their weights.
        prepare: ``peft`` or ``trl``.
        narrowed: whether all other weights are bf16 in the end: DeepSpeed makes them so (0.19.8, runtime/engine.py,
            ``_cast_module_mixed_precision``).
        bitsandbytes: release.
    """

    double_quant: bool
    compute_dtype: str
    skip_modules: tuple[str, ...]
    prepare: str
    narrowed: bool
    bitsandbytes: str

    @property
    def in_fp32(self) -> bool:
        """Whether all but products of 4-bit weights runs in fp32."""
        return self.prepare == "peft" and not self.narrowed


def quantized(workload: Workload) -> Quantized | None:
    """The 4-bit layers of a workload; None if it has none."""
    wanted = workload.quantization
    if wanted is None:
        return None
    return Quantized(wanted["bnb_4bit_use_double_quant"], wanted["bnb_4bit_compute_dtype"],
                     tuple(wanted["llm_int8_skip_modules"]), wanted["prepare"], workload.engine == "deepspeed",
                     workload.versions.get("bitsandbytes", PINNED_BITSANDBYTES))


def check(workload: Workload) -> None:
    """Refuses adapters that were not compared with a run (other keys: :data:`COMPARED`)."""
    if workload.quantization is not None and workload.lora["use_dora"]:
        raise InputError("lora use_dora: not predicted with quantization yet: leave it out, or use peakcast learn")


def check_rows(workload: Workload, facts: ModelFacts) -> None:
    """The same for shapes at which products do not go as they were traced."""
    wanted = quantized(workload)
    if wanted is None or wanted.compute_dtype == "fp32":
        return
    samples = workload.per_device_train_batch_size
    rows = {True: samples * (workload.sequence_length or 0),
            False: sum(facts.image_tokens) or samples * workload.images_per_sample * facts.tokens_per_image}
    least = min((rows[modality(tensor.name) not in ("vision_tower", "projector")] for tensor in facts.parameters
                 if tensor.packed), default=FEW_ROWS + 1)
    if least <= FEW_ROWS:
        raise InputError(f"quantization: layers of 4 bits would see {least} tokens: up to {FEW_ROWS} bitsandbytes may "
                         "take another kernel, which is not predicted: use peakcast learn")


def replace(model, wanted: Quantized) -> None:
    """Put bitsandbytes' layers into a model on meta, in place, their weights quantised.

    Raises:
        InputError: a module to skip that is none, or nothing left to quantise.
    """
    import torch

    quiet()
    from bitsandbytes.nn import Linear4bit
    from transformers import BitsAndBytesConfig
    from transformers.integrations import replace_with_bnb_linear
    from transformers.quantizers.base import _assign_is_quantized
    from transformers.quantizers.quantizers_utils import should_convert_module

    linear = [name for name, layer in model.named_modules() if type(layer) is torch.nn.Linear]
    for pattern in (given for given in wanted.skip_modules if given not in SKIPPED):
        if all(should_convert_module(name, [pattern]) for name in linear):
            raise InputError(f"quantization: llm_int8_skip_modules names {pattern!r}, with which no path of a linear "
                             f"layer begins or ends (for example {linear[0]})")
    compute = {"bf16": torch.bfloat16, "fp32": torch.float32}[wanted.compute_dtype]
    replace_with_bnb_linear(model, list(wanted.skip_modules), BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_compute_dtype=compute, bnb_4bit_use_double_quant=wanted.double_quant))
    layers = [layer for layer in model.modules() if isinstance(layer, Linear4bit)]
    if not layers:
        raise InputError("quantization: llm_int8_skip_modules leaves no layer to quantise")
    for layer in layers:
        small = layer.in_features * layer.out_features < SMALL_WEIGHTS and 2 * layer.in_features < layer.out_features
        if small and wanted.compute_dtype == "bf16":
            raise InputError(f"quantization: a layer from {layer.in_features} to {layer.out_features} is so small that "
                             "bitsandbytes may take another kernel, which is not predicted: use peakcast learn")
        layer.weight = _packed(layer, wanted)
    model.is_loaded_in_4bit = True  # as transformers marks it; peft asks
    _assign_is_quantized(model)  # and flash attention


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
