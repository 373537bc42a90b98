"""Job traits: words for the properties of a workload that are compared for equality with a profile's campaign.

A campaign measures jobs with some values of each trait. A job with another value is outside of the calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from predictor.allocator import AllocatorSettings
from predictor.formula.formula import Formula
from predictor.model.request import Request
from predictor.workload.modes import INFERENCE_KEYS

COUNTERS = ("requested", "allocated", "reserved", "device")

LEARNED_TRAITS = {"formula": "learned"}
"""Traits of a job that is predicted by a learned formula. Its other properties are not compared."""


def traits_of(request: Request, formula: Formula) -> dict[str, str]:
    """The traits of a job, by the names in :data:`TRAITS`.

    Args:
        formula: the job's formula. It records which attention kernel ``auto`` resolved to.
    """
    return {name: trait.text(request, formula) for name, trait in TRAITS.items()}


def _model(request: Request, _: Formula) -> str:
    """The model's architecture, the architectures of its parts, and whether its images are videos."""
    assert request.config is not None  # only learned formulas have none, and they have LEARNED_TRAITS
    workload, document = request.workload, request.config.document
    parts = [part["model_type"] for _, part in sorted(document.items())
             if isinstance(part, dict) and "model_type" in part]
    video = ["over video"] if workload.video_frames else []
    return " ".join([document["model_type"], *(["of", " and ".join(map(str, parts))] if parts else []), *video])


def _recipe(request: Request, _: Formula) -> str:
    """The recipe and the options of its adapters. Which modules have adapters is a matter of size, as ``r`` is;
    adapters on parameters run other operators."""
    workload = request.workload
    patterns = ["trainable" if workload.trainable else "", "frozen" if workload.frozen else ""]
    lora = {name: value for name, value in (workload.lora or {}).items() if name != "target_modules"}
    return _joined(workload.recipe, *patterns, _options(lora), "on parameters" if lora.get("target_parameters") else "")


def _engine(request: Request, _: Formula) -> str:
    workload = request.workload
    name = workload.engine if workload.zero_stage is None else f"ZeRO-{workload.zero_stage}"
    offload = f"offload {workload.offload}" if workload.offload else ""
    sharding = "tensor parallel" if workload.tensor_parallel_size > 1 else ""
    ddp = {key: value for key, value in (workload.ddp or {}).items() if key != "find_unused_parameters"}  # has a note
    return _joined(name, sharding, offload, _options(ddp), _options(workload.fsdp), _options(workload.fsdp1))


def _optimizer(request: Request, _: Formula) -> str:
    workload = request.workload
    return _joined(workload.optim, _options(workload.optim_args), "" if workload.max_grad_norm else "max_grad_norm 0",
                   "" if workload.param_groups == "huggingface" else f"param_groups {workload.param_groups}")


def _attention(request: Request, formula: Formula) -> str:
    workload = request.workload
    return _joined(workload.attn_implementation, formula.provenance["key"]["sdpa_backend"])


def _precision(request: Request, _: Formula) -> str:
    workload = request.workload
    mixed = workload.mixed_precision
    return workload.dtype if mixed == "none" else f"{mixed} over {workload.dtype}"


def _checkpointing(request: Request, _: Formula) -> str:
    workload = request.workload
    no_grad = "no_grad" if workload.no_grad else ""
    if not workload.gradient_checkpointing:
        return _joined("off", no_grad)
    modules = "modules" if workload.gradient_checkpointing_modules else ""
    return _joined("on", modules, no_grad, _options(workload.gradient_checkpointing_kwargs))


def _allocator_conf(request: Request, _: Formula) -> str:
    """The settings as given; ``default`` if they change nothing."""
    text = request.workload.allocator_conf or ""
    return "default" if AllocatorSettings.parse(text).same_as_default else text


def _kernels(request: Request, _: Formula) -> str:
    workload = request.workload
    loss = "" if workload.loss == "model" else f"loss {workload.loss}"
    return _joined("Liger's" if workload.use_liger_kernel else "PyTorch's", loss)


def _loop(request: Request, _: Formula) -> str:
    workload = request.workload
    return _joined("" if workload.keep_outputs == "none" else f"keep_outputs {workload.keep_outputs}",
                   "" if workload.zero_grad == "after_step" else f"zero_grad {workload.zero_grad}") or "reference"


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _options(options: Mapping[str, Any] | None) -> str:
    """The options that are true or strings. Numbers do not change a trait."""
    return " ".join(name if value is True else f"{name}={value}" for name, value in (options or {}).items()
                    if value is True or isinstance(value, str))


class Trait(NamedTuple):
    """One property by which jobs are compared.

    Attributes:
        keys: the keys of a workload that decide it.
        text: gives its value for a request and its formula.
        reason: why another value can change the counters.
        counters: the counters of :data:`COUNTERS` that it can change.
        before: the values that profiles cover which are older than the trait.
    """

    keys: tuple[str, ...]
    text: Callable[[Request, Formula], str]
    reason: str
    counters: tuple[str, ...] = COUNTERS
    before: tuple[str, ...] = ()


TRAITS: Mapping[str, Trait] = {
    "formula": Trait(("mode",),
                    lambda request, _: "traced" if request.workload.mode == "training" else "traced generate",
                    "generate and recorded jobs run other operators than a traced training step"),
    "model": Trait(("model", "video_frames"), _model, "its layers decide which tensors there are"),
    "recipe": Trait(("recipe", "trainable", "frozen", "lora"), _recipe,
                   "it decides which tensors have gradients and optimizer states"),
    "quantization": Trait(("quantization",), lambda request, _: _options(request.workload.quantization) or "none",
                         "it decides which tensors the weights are, and each layer copies them", before=("none",)),
    "engine": Trait(("engine", "zero_stage", "ddp", "fsdp", "fsdp1", "offload", "tensor_parallel_size"), _engine,
                   "its buckets, partitions and copies are tensors"),
    "optimizer": Trait(("optim", "optim_args", "max_grad_norm", "param_groups"), _optimizer,
                      "its states and the temporaries of its step are tensors"),
    "attention": Trait(("attn_implementation", "sdpa_backend"), _attention,
                      "each kernel keeps other tensors for backward"),
    "precision": Trait(("dtype", "mixed_precision"), _precision, "it decides which copies and casts there are"),
    "checkpointing": Trait(("gradient_checkpointing", "gradient_checkpointing_kwargs", "gradient_checkpointing_modules",
                           "no_grad"), _checkpointing, "it decides which activations are kept"),
    "padding": Trait(("padding",), lambda request, _: request.workload.padding,
                    "a mask is a tensor, and can make PyTorch take another attention kernel"),
    "kernels": Trait(("use_liger_kernel", "loss"), _kernels,
                    "Liger's kernels keep other tensors for backward"),
    "noise": Trait(("neftune_noise_alpha",),
                  lambda request, _: "none" if request.workload.neftune_noise_alpha is None else "on embeddings",
                  "it is a tensor", before=("none",)),
    "evaluation": Trait(("per_device_eval_batch_size",),
                       lambda request, _: "one" if request.workload.evaluates else "none",
                       "its forward allocates tensors of its own"),
    "accumulation": Trait(("gradient_accumulation_steps",),
                         lambda request, _: "several" if request.workload.gradient_accumulation_steps > 1 else "one",
                         "gradients stay between micro-steps"),
    "loop": Trait(("keep_outputs", "zero_grad"), _loop, "it decides how long outputs and gradients live",
                  before=("reference",)),
    "allocator_conf": Trait(("allocator_conf",), _allocator_conf,
                           "it decides how requests become blocks and segments, and no tensor",
                           ("allocated", "reserved", "device")),
}
"""Name of a trait -> the trait. A value that a profile does not cover widens the intervals of its counters only
(:mod:`predictor.profile.reach`, which has the one exception)."""
KEYS_WITHOUT_TRAIT = (
    "per_device_train_batch_size", "sequence_length", "images_per_sample", "image_size", "data_parallel_size",
    "deepspeed", "weight_decay", "torch_compile", "rank", "gpu", "capacity_bytes", "profile", "versions",
    *INFERENCE_KEYS)
"""Keys that no trait depends on: numbers with a range, and keys that do not change the job. Of ``deepspeed`` the ZeRO
stage is covered by ``zero_stage``; its bucket sizes are numbers."""
