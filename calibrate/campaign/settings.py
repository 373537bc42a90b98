"""Lists the jobs of a campaign that bring the settings beyond LLaVA with AdamW under ZeRO-2, DDP and plain PyTorch.

These are the other engines, recipes, optimizers, precisions, kernels and models. A profile's intervals count for a
setting only if it was measured. So each value of a trait (:mod:`predictor.profile.job_traits`) that these jobs bring is
in a fitted job and in a held-out one, which has another shape and is combined with other settings.

Not among them, so that a profile does not cover it:

- flash-attn, which is built for a real GPU only, and tensor parallelism, whose ranks are no data-parallel ranks;
- the allocator's settings with numbers, each of which is a value of its own;
- models of other architectures, such as mixtures of experts, and so adapters on experts. ``--jobs-from`` takes a list
  with any of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Keys = Mapping[str, Any]
REENTRANT = {"gradient_checkpointing_kwargs": {"use_reentrant": True}}
EXPANDABLE = {"allocator_conf": "expandable_segments:True"}
EVALUATED = {"per_device_eval_batch_size": 4}
ADAPTERS: Keys = {"recipe": "lora", "lora": {"r": 16}}
EVERYWHERE: Keys = {"recipe": "lora", "lora": {"r": 16, "target_modules": "all-linear"}}
IN_BF16: Keys = {"recipe": "lora", "lora": {"r": 32, "autocast_adapter_dtype": False}}
"""Adapters in the dtype of the weights; by default peft makes them fp32."""
LANGUAGE_MODEL = {"gradient_checkpointing_modules": ["*language_model*"]}
TOWER = {"no_grad": ["*vision_tower*"]}
"""Module paths of the vision tower, which LLaVA's own code runs under ``torch.no_grad``."""


def _four_bits(prepare: str) -> dict[str, Any]:
    return {"quantization": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
                             "bnb_4bit_compute_dtype": "bf16", "prepare": prepare}}


EIGHT_BITS = {"quantization": {"load_in_8bit": True}}
AUTOCAST = {"mixed_precision": "bf16", "dtype": "bf16"}
MASTERS = {"mixed_precision": "bf16", "dtype": "fp32"}
HALF = {"mixed_precision": "fp16", "dtype": "fp32"}


ACCELERATE = {"wrap": "accelerate", "param_dtype": "bf16", "reshard_after_forward": True}


def _torch(**keys: Any) -> dict[str, Any]:
    return {"engine": "torch", **keys}


def _zero(stage: int, degree: int, rank: int, **keys: Any) -> dict[str, Any]:
    return {"zero_stage": stage, "data_parallel_size": degree, "rank": rank, **keys}


def _of(engine: str, degree: int, rank: int, **keys: Any) -> dict[str, Any]:
    return {"engine": engine, "data_parallel_size": degree, "rank": rank, **keys}


def _job(model: str, shape: tuple[Any, ...], *settings: Keys) -> Keys:
    """A job's keys.

    Args:
        shape: micro-batch, sequence length, and, for models with images, images of a sample and their size.
    """
    names = ("per_device_train_batch_size", "sequence_length", "images_per_sample", "image_size")
    result = {"model": model, **dict(zip(names, shape))}
    for keys in settings:
        result.update(keys)
    return result


_FITTED: tuple[Keys, ...] = (
    _job("qwen2-vl-2b-2-2", (2, 1024, 1, 448), _zero(1, 8, 0), REENTRANT),
    _job("qwen2.5-vl-3b-2-4", (2, 896, 1, 448), _zero(3, 8, 7), ADAPTERS),
    _job("qwen3-vl-2b-4-4", (4, 768, 1, 448), _torch(optim="paged_adamw_32bit"), ADAPTERS, _four_bits("peft")),
    _job("gemma-3-4b-6-2", (1, 1024, 1), _of("fsdp2", 8, 0, max_grad_norm=0.0)),
    _job("internvl3-2b-2-2", (2, 1024, 1, 448), _zero(2, 8, 7, offload="optimizer")),
    _job("internvl3.5-2b-2-2", (1, 1024, 2, 448), _of("fsdp1", 8, 0), AUTOCAST),
    _job("smolvlm2-2.2b-2-2", (2, 1536, 1, 384), _torch(), EVALUATED),
    _job("smolvlm-500m-2-2", (2, 1536, 1, 512), _of("ddp", 4, 3, recipe="full", optim="adamw_bnb_8bit"), AUTOCAST),
    _job("paligemma-3b-2-2", (4, 768, 1), _torch(optim="adamw_8bit"), ADAPTERS, EXPANDABLE),
    _job("paligemma2-3b-2-2", (2, 768, 1), _zero(3, 8, 0, offload="all")),
    _job("llava-onevision-qwen2-0.5b-2-2", (1, 3072, 1, 384), _torch(optim="sgd"), LANGUAGE_MODEL),
    _job("llava-next-mistral-7b-2-2", (1, 3072, 1, 336), _zero(2, 8, 0, frozen=["*vision_tower*"]), ADAPTERS),
    _job("llava-next-vicuna-7b-2-2", (1, 3072, 1, 336), _torch(optim="paged_adamw_8bit"), EVERYWHERE,
         _four_bits("trl")),
    _job("llama-3.2-1b-2", (4, 1024), _torch(use_liger_kernel=True, padding="packed", optim="adafactor")),
    _job("qwen2.5-1.5b-2", (4, 1024), _torch(loss="trl_sft", dtype="fp32"), IN_BF16),
    _job("qwen2.5-1.5b-2", (2, 1792), _torch(loss="label_smoothing", optim="sgd", neftune_noise_alpha=5), MASTERS),
    _job("qwen3-1.7b-2", (2, 2048), _zero(1, 4, 3, offload="optimizer", recipe="full")),
    _job("mistral-7b-v0.3-2", (2, 1024), _of("fsdp2", 4, 0, fsdp=ACCELERATE)),
    _job("gpt2-2", (8, 1024), _of("ddp", 8, 0, recipe="full"), HALF),
    _job("llama-3.2-11b-vision-4-5", (2, 768, 1, 560), _zero(2, 8, 0), ADAPTERS, EIGHT_BITS),
    _job("pixtral-12b-2-2", (1, 1536, 1, 512), _zero(3, 4, 0, offload="optimizer"), EXPANDABLE),
    _job("llava-1.5-7b-2-2", (4, 1024, 1), _zero(0, 8, 0, optim="lion_8bit"), TOWER, REENTRANT),
    _job("llava-1.5-7b-2-2", (4, 768, 1), _zero(1, 8, 7, dtype="fp16"), TOWER),
    _job("grouped-2-2", (4, 1024, 1), _torch(sdpa_backend="math", frozen=["*vision_tower*"]), MASTERS),
    _job("grouped-2-2", (2, 2048, 1), _torch(param_groups="single"), EVERYWHERE, EXPANDABLE),
)

_HELD_OUT: tuple[Keys, ...] = (
    _job("qwen2-vl-2b-2-2", (3, 911, 1, "448x672"), _torch(optim="paged_adamw_8bit"), ADAPTERS, _four_bits("peft")),
    _job("qwen2.5-vl-3b-2-4", (1, 1303, 2, "336x672"), _zero(1, 4, 0, offload="optimizer")),
    _job("qwen3-vl-2b-4-4", (3, 645, 1, "640x384"), _of("fsdp2", 4, 3)),
    _job("gemma-3-4b-6-2", (2, 745, 1), _torch(optim="paged_adamw_32bit"), EVERYWHERE, _four_bits("trl")),
    _job("internvl3-2b-2-2", (1, 1845, 2, 448), _zero(3, 4, 3, offload="all")),
    _job("internvl3.5-2b-2-2", (3, 611, 1, 448), _torch(optim="adamw_8bit"), AUTOCAST, LANGUAGE_MODEL),
    _job("smolvlm2-2.2b-2-2", (1, 1701, 1, 512), _zero(3, 4, 0)),
    _job("smolvlm-500m-2-2", (3, 1409, 1, 384), _zero(2, 4, 3), ADAPTERS, EIGHT_BITS),
    _job("paligemma-3b-2-2", (3, 613, 1), _of("fsdp1", 4, 3), AUTOCAST, REENTRANT),
    _job("paligemma2-3b-2-2", (3, 527, 1), _of("ddp", 8, 7, optim="sgd"), EXPANDABLE),
    _job("llava-onevision-qwen2-0.5b-2-2", (1, 3333, 1, 384), _zero(2, 4, 0, offload="optimizer", recipe="full")),
    _job("llava-next-mistral-7b-2-2", (1, 2999, 1, 336), _torch(param_groups="single"), IN_BF16),
    _job("llava-next-vicuna-7b-2-2", (1, 3201, 1, 336), _zero(3, 8, 7, offload="optimizer"), EVERYWHERE),
    _job("llama-3.2-1b-2", (3, 1205), _torch(frozen=["*embed_tokens*"], sdpa_backend="math"), ADAPTERS),
    _job("qwen2.5-1.5b-2", (3, 1111), _torch(use_liger_kernel=True, padding="packed"), ADAPTERS),
    _job("qwen3-1.7b-2", (3, 1453), _torch(loss="trl_sft", optim="adafactor"), MASTERS),
    _job("qwen3-1.7b-2", (2, 1321), _of("ddp", 4, 3, loss="label_smoothing", neftune_noise_alpha=5), ADAPTERS),
    _job("mistral-7b-v0.3-2", (3, 999), _torch(optim="lion_8bit", dtype="fp16")),
    _job("gpt2-2", (5, 1001), _torch(optim="adamw_bnb_8bit", recipe="full"), HALF, EVALUATED),
    _job("llama-3.2-11b-vision-4-5", (1, 901, 1, 560), _zero(1, 8, 0), EXPANDABLE),
    _job("pixtral-12b-2-2", (1, 1801, 1, "512x640"), _of("fsdp2", 8, 7, fsdp=ACCELERATE)),
    _job("llava-1.5-7b-3-3", (3, 907, 1), _zero(0, 4, 3, frozen=["*embed_tokens*"]), TOWER),
    _job("llava-1.5-7b-3-3", (2, 1301, 1), _torch(dtype="fp32", max_grad_norm=0.0), TOWER, REENTRANT),
)
JOBS: Mapping[str, tuple[Keys, ...]] = {"fit": _FITTED, "holdout": _HELD_OUT}
"""Role -> the keys of its jobs."""
