"""Makes the key of a workload's formula: everything that decides the list of events, with the shape's regime."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from predictor.common import gpus
from predictor.common.errors import InputError, NotPredicted
from predictor.common.gpus import Gpu
from predictor.common.releases import release, torch_has
from predictor.events.regimes import Amount, Regime, regime_of
from predictor.events.sizes import Shape
from predictor.formula import store
from predictor.model import fsdp, lora, quantization
from predictor.model.equal_pictures import of_one_kind
from predictor.model.model_config import Modality, ModelConfig
from predictor.model.request import Request
from predictor.workload import compared
from predictor.workload.modes import advice_for
from predictor.workload.workload import Workload

PINNED_LIGER = "0.8.5"
"""The release of liger-kernel whose loss ``predictor.trace.liger`` reproduces."""

MASKED_ON_DEMAND = ("llava",)
"""``model_type`` of models that are known to pass attention a mask only where padding or a window needs one. Other
models are traced separately at shapes where a mask would be padded."""

ATTENTION_OF_PARTS = (4, 46, 0)
"""The release of transformers since which ``attn_implementation`` is that of a model's parts too (modeling_utils.py,
_autoset_attn_implementation). Before, LLaVA's vision tower has SDPA beside a language model that has none."""


def formula_key(request: Request) -> store.Key:
    """The key of a request's formula.

    Raises:
        InputError: a key, model or GPU is not supported.
    """
    workload, config, gpu = request.workload, request.config, request.gpu
    assert config is not None  # only learned formulas have none, and they have no key
    workload.check_predicted()
    if config.routes_by_data:
        raise NotPredicted(f"model {config.name}: its experts run one after another, so their allocations depend on "
                           f"the tokens that each gets: {advice_for(workload.mode)}")
    if workload.video_frames and "video_token_id" not in config.document and "video_token_index" not in config.document:
        raise InputError(f"video_frames {workload.video_frames}: {config.name} takes no videos; leave it out")
    compared.check_model_type(workload, config.document["model_type"])
    _check_before_ampere(workload, gpu)
    return store.Key(
        fingerprint=config.fingerprint, recipe=workload.recipe, trainable=workload.trainable, frozen=workload.frozen,
        padding=workload.padding, checkpointing=_checkpointing(workload),
        checkpointing_kwargs=_checkpointing_kwargs(workload), attn_implementation=workload.attn_implementation,
        sdpa_backend=_backend(workload, gpu),
        regime=_regime(request), torch=workload.versions["torch"],
        transformers=workload.versions["transformers"], sharded=workload.zero_stage == 3, lora=lora.adapters(workload),
        liger=PINNED_LIGER if workload.use_liger_kernel else "", wrapped=fsdp.unit_names(workload),
        dtype=workload.dtype, mixed_precision=workload.mixed_precision,
        quantization=quantization.quantized(workload), image_sizes=_image_sizes(request),
        video_frames=workload.video_frames if request.shape.images else None, no_grad=workload.no_grad,
        tensor_parallel=workload.tensor_parallel_size, autotp=workload.autotp,
        loss="" if workload.loss == "model" else workload.loss,
        flat=fsdp.flat_units(workload), noise=workload.neftune_noise_alpha is not None)


def _image_sizes(request: Request) -> tuple[tuple[int, int], ...]:
    """Sizes of pictures that stand for those of the workload; none without pictures, or if the model always takes the
    same size."""
    workload, config = request.workload, request.config
    assert config is not None  # as in formula_key
    if config.image_size or not request.shape.images:
        return ()
    return workload.image_sizes if workload.video_frames else of_one_kind(config, workload.image_sizes)


def _check_before_ampere(workload: Workload, gpu: Gpu) -> None:
    """Rejects what GPUs before compute capability 8.0 do in other ways, which were not compared.

    They have no units for bf16: fused attention does not take it (ATen/native/transformers/cuda/sdp_utils.cpp,
    use_mem_efficient_attention). Flash attention and cuDNN's need 8.0 (use_flash_attention, use_cudnn_attention).

    Raises:
        InputError: the workload has one of these.
    """
    if gpu.compute_capability >= gpus.AMPERE:
        return
    capability = ".".join(map(str, gpu.compute_capability))
    for key, value, instead in (
            ("dtype", workload.dtype == "bf16" and "bf16", "give fp16, or fp32"),
            ("mixed_precision", workload.mixed_precision == "bf16" and "bf16", "give fp16, or leave it out"),
            ("sdpa_backend", workload.sdpa_backend in ("flash", "cudnn") and workload.sdpa_backend, "leave it out"),
            ("attn_implementation", workload.attn_implementation == "flash_attention_2" and "flash_attention_2",
             "give sdpa"),
            ("quantization", workload.quantization and "is not predicted", advice_for(workload.mode)),
            ("use_liger_kernel", workload.use_liger_kernel and "is not predicted", "leave it out")):
        if value:
            raise InputError(f"{key} {value}: gpu {gpu.name} has compute capability {capability}, from 8.0 on it is "
                             f"predicted: {instead}")


def check_pictures(workload: Workload, config: ModelConfig) -> None:
    """Checks that the model takes images of the workload's sizes.

    Raises:
        InputError: it takes no images, or only images of another size.
    """
    setting = f"image_size {workload.image_size}"
    if workload.image_size not in (None, config.image_size) and (config.image_size or "image" not in config.kind.value):
        takes = f"the vision tower of {config.name} takes {config.image_size} only" if config.image_size else \
            f"{config.name} takes no images"
        raise InputError(f"{setting}: {takes}; leave it out")
    if len(workload.image_sizes) > 1 and (workload.video_frames or config.kind is Modality.IMAGE):
        media = "videos" if workload.video_frames else "pictures"
        raise InputError(f"{setting}: {media} of one batch have one size: give one")


def regimes_at(request: Request, shapes: Iterable[Shape]) -> list[Regime]:
    """The regime of each shape. Shapes of one regime share a formula."""
    packed, known, found = request.workload.padding == "packed", dict[tuple, Regime](), []
    for shape in shapes:
        alike = Amount.of(shape.batch), Amount.of(shape.images), shape.sequence, shape.batch * packed
        if alike not in known:
            known[alike] = _regime(request.at(shape))
        found.append(known[alike])
    return found


def _checkpointing(workload: Workload) -> str:
    if not workload.gradient_checkpointing:
        return "off"
    return "reentrant" if workload.gradient_checkpointing_kwargs["use_reentrant"] else "on"


def _checkpointing_kwargs(workload: Workload) -> tuple[tuple[str, Any], ...]:
    """The options whose value differs from the default of transformers, in a fixed order."""
    if not workload.gradient_checkpointing:
        return ()
    options = {**workload.gradient_checkpointing_kwargs, "modules": workload.gradient_checkpointing_modules}
    defaults = {"every_n_layers": 1, "offload": False, "modules": ()}
    return tuple((name, options[name]) for name, value in defaults.items() if options.get(name, value) != value)


def _backend(workload: Workload, gpu: Gpu) -> str:
    """The kernel of SDPA. ``auto`` depends on the GPU (ATen/native/transformers/cuda/sdp_utils.cpp, priority_order)."""
    if workload.attn_implementation != "sdpa" and release(workload.versions["transformers"]) >= ATTENTION_OF_PARTS:
        return ""
    if workload.sdpa_backend != "auto":
        return workload.sdpa_backend
    packed = quantization.quantized(workload)
    wide = packed and packed.in_fp32 and workload.mixed_precision == "none"  # autocast narrows what attention gets
    if workload.computes_in == "fp32" or wide or gpu.compute_capability < gpus.AMPERE:
        return "efficient"
    cudnn_first = torch_has("cudnn_attention_first", workload.versions["torch"])
    return "cudnn" if cudnn_first and gpu.compute_capability[0] in (9, 10) else "flash"


def _regime(request: Request) -> Regime:
    workload, config, shape = request.workload, request.config, request.shape
    assert config is not None  # only learned formulas have none, and they have no key
    windows, row = config.windows, shape
    if workload.padding == "packed":
        row = replace(shape, sequence=shape.batch * shape.sequence)
        if any(row.sequence >= window for window in windows):
            raise NotPredicted(f"padding packed: a row of {row.sequence} tokens reaches {config.name}'s sliding "
                               "window, which is not predicted: use padding none, or peakcast learn")
    masked = workload.padding != "none" or any(shape.sequence >= window for window in windows)
    padded = masked and _backend(workload, request.gpu) in ("flash", "efficient")
    padded = padded and workload.attn_implementation == "sdpa"  # else it may be the kernel of a part without masks
    return regime_of(row, pads_masks=padded or config.document["model_type"] not in MASKED_ON_DEMAND, windows=windows)
