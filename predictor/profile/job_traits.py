"""What kind of job a workload is, in words that are equal or not: a profile's campaign measured some of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from predictor.formula.formula import Formula
from predictor.model.request import Request
from predictor.workload.modes import OF_INFERENCE

LEARNED = {"formula": "learned"}
"""Of a job that answers from its own recording; nothing else of it is compared."""


def kinds(request: Request, formula: Formula) -> dict[str, str]:
    """The kind of a job by each of :data:`KINDS`.

    Args:
        formula: the one that answers for it; it knows which attention kernel ``auto`` is.
    """
    return {name: kind.text(request, formula) for name, kind in KINDS.items()}


def _model(request: Request, _: Formula) -> str:
    """Architecture, with those of its parts, and whether its pictures are videos."""
    workload, document = request.workload, request.config.document
    parts = [part["model_type"] for _, part in sorted(document.items())
             if isinstance(part, dict) and "model_type" in part]
    seen = ["over video"] if workload.video_frames else []
    return " ".join([document["model_type"], *(["of", " and ".join(map(str, parts))] if parts else []), *seen])


def _recipe(request: Request, _: Formula) -> str:
    workload = request.workload
    patterns = ["trainable" if workload.trainable else "", "frozen" if workload.frozen else ""]
    return _joined(workload.recipe, *patterns, _options(workload.lora), _options(workload.quantization))


def _engine(request: Request, _: Formula) -> str:
    workload = request.workload
    name = workload.engine if workload.zero_stage is None else f"ZeRO-{workload.zero_stage}"
    offload = f"offload {workload.offload}" if workload.offload else ""
    parts = "tensor parallel" if workload.tensor_parallel_size > 1 else ""
    ddp = {key: value for key, value in (workload.ddp or {}).items() if key != "find_unused_parameters"}  # has a note
    return _joined(name, parts, offload, _options(ddp), _options(workload.fsdp))


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
    apart = "no_grad" if workload.no_grad else ""
    if not workload.gradient_checkpointing:
        return _joined("off", apart)
    modules = "modules" if workload.gradient_checkpointing_modules else ""
    return _joined("on", modules, apart, _options(workload.gradient_checkpointing_kwargs))


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _options(given: Mapping[str, Any] | None) -> str:
    """Those that are switched on or chosen by name; numbers do not make another kind."""
    return " ".join(name if value is True else f"{name}={value}" for name, value in (given or {}).items()
                    if value is True or isinstance(value, str))


class Kind(NamedTuple):
    """What jobs are told apart by.

    Attributes:
        keys: the workload's, that it is of.
        text: of a request.
        counters: the bytes that it can move, of ``predictor.profile.profile_rules.COUNTERS``; None: all of them.
    """

    keys: tuple[str, ...]
    text: Callable[[Request, Formula], str]
    counters: tuple[str, ...] | None = None


OF_BLOCKS = ("allocated", "reserved", "device")
"""What the allocator makes of requests: whole blocks, with the tails that its settings leave unsplit, in segments."""
KINDS: Mapping[str, Kind] = {
    "formula": Kind(("mode",),
                    lambda request, _: "traced" if request.workload.mode == "training" else "traced generate"),
    "model": Kind(("model", "video_frames"), _model),
    "recipe": Kind(("recipe", "trainable", "frozen", "lora", "quantization"), _recipe),
    "engine": Kind(("engine", "zero_stage", "ddp", "fsdp", "offload", "tensor_parallel_size"), _engine),
    "optimizer": Kind(("optim", "optim_args", "max_grad_norm", "param_groups"), _optimizer),
    "attention": Kind(("attn_implementation", "sdpa_backend"), _attention),
    "precision": Kind(("dtype", "mixed_precision"), _precision),
    "checkpointing": Kind(("gradient_checkpointing", "gradient_checkpointing_kwargs", "gradient_checkpointing_modules",
                           "no_grad"), _checkpointing),
    "padding": Kind(("padding",), lambda request, _: request.workload.padding),
    "kernels": Kind(("use_liger_kernel",),
                    lambda request, _: "Liger's" if request.workload.use_liger_kernel else "PyTorch's"),
    "evaluation": Kind(("per_device_eval_batch_size",),
                       lambda request, _: "one" if request.workload.evaluates else "none"),
    "accumulation": Kind(("gradient_accumulation_steps",),
                         lambda request, _: "several" if request.workload.gradient_accumulation_steps > 1 else "one"),
    "allocator_conf": Kind(("allocator_conf",), lambda request, _: request.workload.allocator_conf or "default",
                           OF_BLOCKS),
}
"""By name."""
OF_NO_KIND = ("per_device_train_batch_size", "sequence_length", "images_per_sample", "image_size", "data_parallel_size",
              "deepspeed", "weight_decay", "torch_compile", "rank", "gpu", "capacity_bytes", "profile", "versions",
              *OF_INFERENCE)
"""Keys that are numbers of a range, or ask another question of the same job. ``deepspeed`` says much in ``zero_stage``;
its buckets are numbers."""
