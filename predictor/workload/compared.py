"""Tables of the feature combinations that were compared with a run on a GPU, real or emulated.

Other combinations are rejected. Each line lists the values of other keys that a feature was run with, and the tests or
pages that show the comparison. ``profiles/pages/support.md`` is generated from these lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from predictor.common.errors import NotPredicted
from predictor.common.suggestions import quoted
from predictor.common.value_types import FrozenMap, thaw
from predictor.workload import code_names, optimizers
from predictor.workload.engines import ENGINES, name_of
from predictor.workload.keys import Keys

Values = Mapping[str, Any]
"""Keys of a workload, with their values."""
Seen = dict[str, tuple[Any, ...]]
BF16: Seen = {"dtype": ("bf16",), "mixed_precision": ("none",)}
PLAIN: Seen = BF16 | {
    "quantization": (None,), "offload": (None,), "use_liger_kernel": (False,), "padding": ("none", "right"),
    "attn_implementation": ("sdpa", "eager"), "per_device_eval_batch_size": (None,)}
"""Values that an engine is compared with first. An engine without a line in ``OF_ENGINES`` may have only these."""
LOOP: Seen = {"attn_implementation": ("sdpa", "eager", "flash_attention_2"), "tensor_parallel_size": (1,),
              "use_liger_kernel": (False,), "offload": (None,), "gradient_checkpointing_kwargs.offload": (None, False)}
"""Values that loops other than the reference loop are compared with."""
TRUTH, RECIPES = "tests/calibrate/truth/test_{}_truth.py", "profiles/pages/recipes.md#{}"
MEASURED = "::test_a_measured_job_is_predicted"


@dataclass(frozen=True)
class Line:
    """The combinations that one feature was compared in.

    Attributes:
        has: true for the keys of a workload that uses the feature.
        seen: key -> the values that it may have beside the feature. ``key.inner`` is an entry of a mapping.
        evidence: the comparisons: a test, by its file and name, or a line of a page.
        says: key -> the message for a value that was not compared, where it differs from the usual one. For keys in
            ``contradictions.NOT_COMPARED`` it is the part after the key's name.
    """

    has: Callable[[Values], Any]
    seen: Seen
    evidence: tuple[str, ...]
    says: Mapping[str, str] = field(default_factory=dict)

    def unseen(self, keys: Values) -> Iterator[str]:
        """Yields the keys with a value that was not compared with the feature; absent keys are skipped."""
        recomputes = keys.get("gradient_checkpointing", True)
        for name, seen in self.seen.items() if self.has(keys) else ():
            if name.partition(".")[0] in keys and value(keys, name) not in seen and (
                    recomputes or not name.startswith("gradient_checkpointing")):
                yield name


def value(keys: Values, name: str) -> Any:
    """The value of a key. ``key.inner`` is an entry of a key that holds a mapping; None if there is no mapping."""
    key, _, inner = name.partition(".")
    return (keys[key] or {}).get(inner) if inner else keys[key]


def _engine(name: str) -> Callable[[Values], bool]:
    return lambda k: name_of(k["engine"], k["zero_stage"]) == name


def _autotp(k: Values) -> bool:
    return k["tensor_parallel_size"] > 1 and k["engine"] == "deepspeed"


_ENGINES = TRUTH.format("engines") + "::test_an_engine_holds_what_is_predicted"
OF_ENGINES: dict[str, tuple[Seen, tuple[str, ...], Mapping[str, str]]] = {
    "torch": ({}, (TRUTH.format("precision") + MEASURED, RECIPES.format("optimizers")), {}),
    "ddp": ({}, (_ENGINES, RECIPES.format("DDP")), {}),
    "fsdp1": ({"dtype": ("bf16", "fp32"), "mixed_precision": ("none", "bf16"), "quantization": (None,),
               "offload": (None,), "attn_implementation": ("sdpa", "eager"),
               "per_device_eval_batch_size": (None,), "tensor_parallel_size": (1,), "keep_outputs": ("none",),
               "optim": tuple(optimizers.OF_PYTORCH)},
              (TRUTH.format("fsdp1") + "::test_a_job_needs_what_is_predicted", RECIPES.format("Engines: FSDP1")),
              {"quantization": "is given, which is not predicted with engine fsdp1, nor measured: leave one of them "
                               "out"}),
    "fsdp2": (PLAIN | {"dtype": ("bf16", "fp32"), "use_liger_kernel": (False, True),
                       "padding": ("none", "right", "packed"), "gradient_checkpointing_kwargs.use_reentrant": (False,)},
              (TRUTH.format("fsdp2") + "::test_a_job_needs_what_is_predicted", RECIPES.format("Engines: FSDP2")),
              {"quantization": "is given, which is not predicted with engine fsdp2, nor measured: leave one of them "
                               "out",
               "gradient_checkpointing_kwargs.use_reentrant": "has use_reentrant true, which is not modelled yet with "
                                                              "engine fsdp2: make it false"}),
    "zero0": (BF16, (_ENGINES, RECIPES.format("Engines: DeepSpeed ZeRO stage 0")), {}),
    "zero1": ({}, (_ENGINES, RECIPES.format("ZeRO-1")), {}),
    "zero2": ({}, (TRUTH.format("precision") + MEASURED, TRUTH.format("lora") + MEASURED), {}),
    "zero3": ({}, (TRUTH.format("zero3") + "::test_a_job_needs_what_is_predicted", RECIPES.format("ZeRO-3")), {}),
}
"""Name of an engine -> ``seen``, ``evidence`` and ``says`` of its :class:`Line`."""

FEATURES: dict[str, Line] = {
    "quantization": Line(
        lambda k: k["quantization"] is not None,
        {"engine": ("torch", "ddp", "deepspeed"), "zero_stage": (None, 1, 2), "offload": (None,),
         "mixed_precision": ("none", "bf16"), "attn_implementation": ("sdpa", "eager", "flash_attention_2"),
         "padding": ("none", "right", "packed"), "use_liger_kernel": (False,), "gradient_checkpointing_modules": ((),),
         "gradient_checkpointing_kwargs": (FrozenMap({"use_reentrant": False}), FrozenMap({"use_reentrant": True}))},
        (TRUTH.format("quantization") + MEASURED,
         TRUTH.format("attention") + "::test_transformers_around_flash_attn_is_predicted",
         RECIPES.format("QLoRA under DDP, ZeRO-1 and ZeRO-2"))),
    "a model from code": Line(
        lambda k: code_names.is_code_name(k["model"]),
        {"recipe": ("finetune", "full"), "lora": (None,), "quantization": (None,), "padding": ("none",),
         "image_size": (None,), "use_liger_kernel": (False,), "loss": ("model",), "attn_implementation": ("sdpa",),
         "engine": ("torch", "ddp", "deepspeed"), "offload": (None,), "gradient_checkpointing": (False,),
         "tensor_parallel_size": (1,)},
        (TRUTH.format("code_models") + MEASURED,)),
    "lora target_parameters": Line(
        lambda k: (k["lora"] or {}).get("target_parameters"),
        {"engine": ("torch", "ddp", "deepspeed"), "zero_stage": (None, 1, 2), "quantization": (None,),
         "offload": (None,), "dtype": ("bf16", "fp32"), "mixed_precision": ("none", "bf16"),
         "tensor_parallel_size": (1,)},
        (TRUTH.format("lora") + "::test_adapters_of_experts_are_predicted",)),
    "offload": Line(
        lambda k: k["offload"], BF16,
        (TRUTH.format("offload") + "::test_a_job_needs_what_is_predicted",
         RECIPES.format("Engines: optimizer and parameter offload to CPU"))),
    "gradient_checkpointing_kwargs offload": Line(
        lambda k: k["gradient_checkpointing"] and k["gradient_checkpointing_kwargs"].get("offload"),
        BF16 | {"engine": ("torch", "ddp", "deepspeed"), "use_liger_kernel": (False,)},
        (TRUTH.format("checkpointing") + MEASURED, RECIPES.format("activation offload"))),
    "use_liger_kernel": Line(
        lambda k: k["use_liger_kernel"], BF16 | {"offload": (None,)}, (TRUTH.format("liger") + MEASURED,)),
    "loss trl_sft": Line(
        lambda k: k["loss"] == "trl_sft",
        {"mode": ("training",), "dtype": ("bf16", "fp32"), "mixed_precision": ("none", "bf16"),
         "engine": ("torch", "ddp", "deepspeed"), "zero_stage": (None, 1, 2), "offload": (None,),
         "quantization": (None,), "tensor_parallel_size": (1,), "use_liger_kernel": (False,),
         "gradient_checkpointing_kwargs.offload": (None, False), "keep_outputs": ("none",),
         "zero_grad": ("after_step",)},
        (TRUTH.format("trl") + "::test_a_command_of_trl_needs_what_it_is_read_as",)),
    "loss label_smoothing": Line(
        lambda k: k["loss"] == "label_smoothing",
        {"mode": ("training",), "engine": ("torch", "ddp", "deepspeed"), "zero_stage": (None, 1, 2), "offload": (None,),
         "quantization": (None,), "tensor_parallel_size": (1,), "use_liger_kernel": (False,), "keep_outputs": ("none",),
         "per_device_eval_batch_size": (None,)},
        (TRUTH.format("smoothed_loss") + MEASURED,)),
    "neftune_noise_alpha": Line(
        lambda k: k["neftune_noise_alpha"] is not None,
        {"mode": ("training",), "offload": (None,), "tensor_parallel_size": (1,)},
        (TRUTH.format("noisy_embeddings") + MEASURED,)),
    "flash_attention_2": Line(
        lambda k: k["attn_implementation"] == "flash_attention_2",
        {"dtype": ("bf16", "fp32"), "mixed_precision": ("none", "bf16")},
        (TRUTH.format("attention") + "::test_transformers_around_flash_attn_is_predicted",)),
    "tensor_parallel_size": Line(
        lambda k: k["tensor_parallel_size"] > 1,
        {"engine": ("torch", "ddp", "deepspeed"), "recipe": ("finetune", "pretrain", "full"),
         "mixed_precision": ("none", "bf16"), "optim": ("adamw_torch_fused", "adamw_torch", "adamw_torch_forloop"),
         "attn_implementation": ("sdpa", "eager"), "use_liger_kernel": (False,)},
        (TRUTH.format("tensor_parallel") + "::test_every_moment_needs_what_is_predicted",
         "profiles/pages/tensor_parallel.md#Other settings")),
    "tensor_parallel_size and engine ddp": Line(
        lambda k: k["tensor_parallel_size"] > 1 and k["engine"] == "ddp",
        {"mixed_precision": ("none",), "per_device_eval_batch_size": (None,), "ddp.gradient_as_bucket_view": (False,)},
        (TRUTH.format("tensor_parallel") + "::test_every_moment_needs_what_is_predicted",
         "profiles/pages/tensor_parallel.md#DP x TP 2 x 4"),
        {"ddp.gradient_as_bucket_view": "ddp gradient_as_bucket_view: not predicted with tensor_parallel_size yet: "
                                        "leave one of them out"}),
    "tensor_parallel_size and engine deepspeed": Line(
        _autotp, {"zero_stage": (0, 1, 2), "offload": (None,), "mixed_precision": ("none",)},
        (TRUTH.format("autotp") + "::test_every_moment_needs_what_is_predicted",
         "profiles/pages/tensor_parallel.md#AutoTP, DP x TP 2 x 4")),
    "mode inference": Line(
        lambda k: k["mode"] == "inference", {"attn_implementation": ("sdpa", "eager"), "video_frames": (None,)},
        (TRUTH.format("inference") + MEASURED, "profiles/pages/inference.md#other GPUs and kernels"),
        {"attn_implementation": "is flash_attention_2, which is not predicted with mode inference: use sdpa"}),
    "mode inference and quantization": Line(
        lambda k: k["mode"] == "inference" and k["quantization"] is not None,
        {"dtype": ("bf16", "fp16"), "gpu_memory_utilization": (None,)},
        (TRUTH.format("inference") + MEASURED, "profiles/pages/inference.md#weights of 4 bits")),
    "a conversation": Line(
        lambda k: k["conversation"] is not None, {"cache_implementation": ("dynamic",)},
        (TRUTH.format("inference") + MEASURED, "profiles/pages/inference.md#a conversation"),
        {"cache_implementation": "is {}, which is not predicted for a conversation yet: use dynamic"}),
    "per_device_eval_batch_size": Line(
        lambda k: k["mode"] == "training" and k["per_device_eval_batch_size"] is not None,
        {"use_liger_kernel": (False,)},
        (TRUTH.format("evaluation") + MEASURED, RECIPES.format("evaluation"),
         TRUTH.format("attention") + "::test_transformers_around_flash_attn_is_predicted")),
    "keep_outputs": Line(
        lambda k: k["keep_outputs"] != "none", LOOP | {"ddp.find_unused_parameters": (None, False)},
        (TRUTH.format("loop") + MEASURED, TRUTH.format("loop") + "::test_an_engine_holds_what_is_predicted"),
        {"ddp.find_unused_parameters": "ddp find_unused_parameters: DDP clones the outputs, which is not predicted "
                                       "with keep_outputs: leave one of them out"}),
    "zero_grad": Line(
        lambda k: k["zero_grad"] != "after_step", LOOP | {"engine": ("torch", "ddp", "fsdp2")},
        (TRUTH.format("loop") + MEASURED, TRUTH.format("loop") + "::test_an_engine_holds_what_is_predicted")),
    "sharded parameters": Line(
        lambda k: not getattr(ENGINES.get(name_of(k["engine"], k["zero_stage"])), "whole", True),
        {"per_device_eval_batch_size": (None,)},
        (TRUTH.format("evaluation") + "::test_the_evaluation_of_sharded_parameters_is_refused",),
        {"per_device_eval_batch_size": "is given, but the evaluation of sharded parameters is not modelled: leave it "
                                       "out"}),
} | {
    f"zero_stage {name.removeprefix('zero')}" if entry.chosen_by else f"engine {name}":
        Line(_engine(name), *OF_ENGINES.get(name, (PLAIN, ())))
    for name, entry in ENGINES.items()
} | {
    "quantization and adapters": Line(
        lambda k: k["quantization"] is not None and k["lora"] is not None, {"lora.use_dora": (False,)},
        (TRUTH.format("quantization") + MEASURED, RECIPES.format("adapters")),
        {"lora.use_dora": "lora use_dora: not predicted with quantization yet: leave it out, or use peakcast learn"}),
}
"""Name of a feature in messages -> its line."""
SAMPLES = Line(
    lambda k: True,
    {"mode": ("training",), "per_device_eval_batch_size": (None,), "padding": ("none", "right"),
     "quantization": (None,)},
    ("tests/predictor/answer/test_dataset.py",),
    {"mode": "samples are for training only: leave them out, or leave out mode inference",
     "per_device_eval_batch_size": "per_device_eval_batch_size: the samples are for training only; leave it out"})
"""The line of a dataset's samples, which are not a key of a workload."""
COURSES = Line(
    lambda k: True,
    {"mode": ("training",), "per_device_eval_batch_size": (None,)},
    (TRUTH.format("course") + "::test_every_step_is_simulated", "profiles/pages/course.md"), SAMPLES.says)
"""The line of a whole training over a dataset's samples."""
DATASETS = {"samples": SAMPLES, "a whole training": COURSES}
"""What a prediction does with a dataset -> its line."""
MODEL_TYPES: dict[str, Line] = {
    "use_liger_kernel": Line(
        lambda k: k["use_liger_kernel"], {"model_type": ("llava", "llama", "qwen2", "qwen3", "mistral", "gemma2")},
        (TRUTH.format("liger") + "::test_a_measured_language_model_is_predicted",)),
    "padding packed": Line(
        lambda k: k["padding"] == "packed",
        {"model_type": ("llava", "llama", "qwen2", "qwen3", "mistral", "qwen2_audio")},
        (TRUTH.format("attention") + "::test_a_packed_job_is_predicted", RECIPES.format("Attention: packed batches"))),
}
"""Feature whose code path depends on the architecture -> the ``model_type`` values that it was compared with."""


def goes_with(feature: str, keys: Values) -> bool:
    """True if a feature was compared with these values of a workload's keys; absent keys are ignored."""
    return all(value(keys, name) in seen for name, seen in FEATURES[feature].seen.items()
               if name.partition(".")[0] in keys)


def check(workload: Keys) -> None:
    """Rejects a workload with a combination that was not compared.

    Raises:
        InputError: a key and a feature that were not compared together; the message names both.
    """
    keys = vars(workload)
    for feature, line in FEATURES.items():
        for name in line.unseen(keys):
            plain = thaw(value(keys, name))
            setting = name if len(str(plain)) > 80 else f"{name} {quoted(plain, 80)}"
            raise NotPredicted(line.says.get(name) or f"{setting}: not predicted with {feature} yet: leave one of them "
                               "out, or use peakcast learn")


def check_model_type(workload: Keys, model_type: str) -> None:
    """Rejects a feature that was not compared in an architecture.

    Raises:
        InputError: a feature of :data:`MODEL_TYPES` that was not compared with this ``model_type``.
    """
    keys = {**vars(workload), "model_type": model_type}
    for feature, line in MODEL_TYPES.items():
        for _ in line.unseen(keys):
            raise NotPredicted(f"{feature}: not predicted for model_type {model_type} yet: leave it out, or use "
                               "peakcast learn")
