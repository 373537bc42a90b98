"""Table of the contradictions between keys of a workload, in the order in which they are checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from predictor.common.errors import InputError
from predictor.common.releases import release
from predictor.common.suggestions import quoted
from predictor.common.value_types import Invalid
from predictor.workload import compared, deepspeed_settings, modes, optimizers
from predictor.workload.deepspeed_keys import REFUSED_IN_STAGE_3
from predictor.workload.deepspeed_releases import (
    AUTOTP_SINCE,
    OFFLOAD_SINCE,
    OTHER_DTYPES_SINCE,
    RECOMPUTES_FROZEN_SINCE,
    SINCE,
    STAGE_0_SINCE,
    STAGE_1_SINCE,
    STAGE_3_MISCOUNTS,
    STAGE_3_SINCE,
)
from predictor.workload.engines import ENGINES
from predictor.workload.key_problem import KeyProblem
from predictor.workload.limits import (
    MOST,
    MOST_IMAGES,
    MOST_TOKENS,
    OLDEST_DEEPSPEED,
    OLDEST_FSDP1,
    OLDEST_FSDP2,
    OLDEST_QUANTIZING,
)
from predictor.workload.workload_draft import Draft

CHECKPOINTING_KEYS = frozenset({"gradient_checkpointing_kwargs", "gradient_checkpointing_modules"})
"""Keys that mean nothing while gradient checkpointing is off."""
KEY_FROM_DETAIL = ""
"""Placeholder for the key that :attr:`Contradiction.detail` returns."""
IN_FILE = "config"
"""Value of :attr:`Contradiction.place`: the message starts with the file name of the user's DeepSpeed config."""


@dataclass(frozen=True)
class Contradiction:
    """One way in which keys contradict each other.

    Attributes:
        keys: the keys that contradict each other. The message is about the first. Keys of a DeepSpeed config are
            dotted.
        detail: returns a detail of the contradiction in a draft; None or false without one. A returned InputError is
            raised as it is.
        message: the message after the first key, as text or as a function of the draft and of that detail.
        place: start of the message instead of the first key: :data:`IN_FILE`, or a key.
    """

    keys: tuple[str, ...]
    detail: Callable[[Draft], Any]
    message: str | Callable[[Draft, Any], str]
    place: str = ""

    def error(self, draft: Draft, detail: Any) -> InputError:
        """The error of a contradiction; ``detail`` is what :attr:`detail` returned."""
        sentence = self.message if isinstance(self.message, str) else self.message(draft, detail)
        if self.place:
            return InputError(f"{draft.config_name if self.place == IN_FILE else self.place}: {sentence}")
        return KeyProblem(detail if self.keys[0] == KEY_FROM_DETAIL else self.keys[0], sentence)


def check(draft: Draft, table: Iterable[Contradiction]) -> None:
    """Rejects a draft by the first contradiction of a table that applies.

    Raises:
        InputError: two keys that contradict each other, or a DeepSpeed config that cannot be read.
    """
    for line in table:
        detail = line.detail(draft)
        if detail is not None and detail is not False:
            raise detail if isinstance(detail, InputError) else line.error(draft, detail)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _first(keys: Iterable[str]) -> str | None:
    return next(iter(keys), None)


def _of_the_other_mode(draft: Draft) -> str | None:
    mode = draft["mode"]
    return _first(key for key, value in draft.user_keys.items()
                  if not modes.has(mode, key) and (mode, key, value) not in modes.ACCEPTED)


def _deepspeed_key(draft: Draft) -> str | None:
    """The user's key that chooses DeepSpeed, or None."""
    return _first(key for key in ("deepspeed", "zero_stage") if key in draft.user_keys)


def _needs_an_engine(draft: Draft) -> bool:
    learned = draft["model"].endswith(".npz")  # a learned formula has its own engine, and checks the workload itself
    return (draft["engine"] != "deepspeed" and draft["data_parallel_size"] > 1
            and not ENGINES[draft["engine"]].several and not learned)


def _differs(theirs: str, ours: str) -> Callable[[Draft], bool]:
    def found(draft: Draft) -> bool:
        value = draft.settings.get(theirs)
        return value not in (None, "auto") and ours in draft.user_keys and draft.user_keys[ours] != value
    return found


def _differs_message(theirs: str, ours: str) -> Callable[[Draft, Any], str]:
    return lambda draft, _: (f"is {draft.user_keys[ours]}, but {draft.config_name} has {theirs} "
                             f"{draft.settings[theirs]}: leave one of them out")


def _of_another_engine(key: str, engine: str) -> Callable[[Draft], bool]:
    return lambda draft: draft["engine"] != engine and draft[key] is not None


def _disabled_dtype(dtype: str) -> Callable[[Draft], bool]:
    return lambda draft: draft.explicit_keys.get("dtype") == dtype and draft.config.get(f"{dtype}.enabled") is False


def _disabled_dtype_message(dtype: str) -> Callable[[Draft, Any], str]:
    return lambda draft, _: f"is {dtype}, but {draft.config_name} has {dtype}.enabled false: leave one of them out"


def _too_large_batch(key: str) -> Callable[[Draft], bool]:
    return lambda draft: draft.config.get("train_batch_size") not in (None, "auto") and draft[key] > MOST[key]


def _too_large_batch_message(key: str) -> Callable[[Draft, Any], str]:
    return lambda draft, _: (f"train_batch_size {draft.config['train_batch_size']} makes {key} {draft[key]:,}, "
                             "which is too many")


def _newer_option(option: str, since: tuple[int, int, int]) -> Callable[[Draft], bool]:
    return lambda draft: _by_deepspeed(draft) and draft.config.get(option) is not None and draft.release < since


def _newer_option_message(option: str, since: tuple[int, int, int]) -> Callable[[Draft, Any], str]:
    return lambda draft, _: (f"{option} exists since DeepSpeed {_dotted(since)}, and versions.deepspeed is "
                             f"{_dotted(draft.release)}: remove it or change the version")


def _undecided_dtype(draft: Draft) -> bool:
    return (draft["deepspeed"] is not None and "dtype" not in draft.explicit_keys
            and draft.config.get("bf16.enabled") != "auto")


def _batch_sizes(draft: Draft) -> Invalid | None:
    """The error of batch sizes whose product is not DeepSpeed's ``train_batch_size``."""
    total, parts = draft.config.get("train_batch_size"), draft["tensor_parallel_size"]
    if total in (None, "auto"):
        return None
    called = "data_parallel_size" if parts == 1 else "data_parallel_size x tensor_parallel_size"
    try:
        micro, accumulation = (draft.explicit_keys.get(key) for key in deepspeed_settings.BATCH_KEYS)
        deepspeed_settings.batch_sizes(total, micro, accumulation, draft["data_parallel_size"] * parts, called)
    except Invalid as error:
        return error
    return None


def _optimizer_arguments(draft: Draft) -> Invalid | None:
    try:
        optimizers.read(draft["optim"], draft["optim_args"])
    except Invalid as error:
        return error
    return None


def _refused_optimizer(draft: Draft) -> str | None:
    """The reason for which the engine cannot use the optimizer, or None."""
    refused, engine = optimizers.OPTIMIZERS[draft["optim"]].refused_by, draft["engine"]
    return refused.get(engine) or refused.get(f"{engine} {draft['dtype']}")


def _trains_quantized(draft: Draft) -> bool:
    return draft["quantization"] is not None and draft["mode"] == "training"


def _in_fp32(draft: Draft) -> bool:
    """True if attention runs in fp32, because peft prepared the quantized model."""
    return (_trains_quantized(draft) and draft["quantization"]["prepare"] == "peft" and draft["engine"] != "deepspeed"
            and draft["mixed_precision"] == "none")


def _too_high_rank(draft: Draft) -> bool:
    return draft["rank"] != "worst" and draft["rank"] >= draft["data_parallel_size"] * draft["tensor_parallel_size"]


def _ranks(draft: Draft, _: Any) -> str:
    degree, parts = draft["data_parallel_size"], draft["tensor_parallel_size"]
    named = f"data_parallel_size {degree}" + (f" x tensor_parallel_size {parts}" if parts > 1 else "")
    return f"is {draft['rank']}, but {named} has the ranks 0 to {degree * parts - 1}"


def _batch(draft: Draft) -> int:
    return max(draft["per_device_train_batch_size"], draft["per_device_eval_batch_size"] or 1)


def _tokens(draft: Draft) -> int:
    return _batch(draft) * (draft["sequence_length"] or 1)


def _by_deepspeed(draft: Draft) -> bool:
    return draft["engine"] == "deepspeed"


def _not_modelled_in_stage_3(draft: Draft) -> tuple[str, Any] | None:
    """The first option that is on and not modelled in stage 3, with its value."""
    section = draft["deepspeed"]["zero_optimization"] if draft.stage == 3 else {}
    return next(((written, section[written]) for key, harmless in REFUSED_IN_STAGE_3.items()
                 for written in (key, key.removeprefix("stage3_"))
                 if section.get(written, harmless) not in (harmless, None, "auto")), None)


def _other_degree(draft: Draft) -> int | None:
    """The degree in ``tensor_parallel.tp``, if ``autotp_size`` differs from it."""
    degree = draft.config.get("tensor_parallel.tp", {"tp_size": 1})["tp_size"]
    return None if degree in (1, draft.config.get("tensor_parallel.autotp_size")) else degree


def _other_degree_message(draft: Draft, degree: int) -> str:
    size = draft.config.get("tensor_parallel.autotp_size")
    return (f"tensor_parallel.tp.tp_size is {degree}, but tensor_parallel.autotp_size "
            f"{'is not given' if size is None else f'is {size}'}: leave tp out")


def _without_norm(draft: Draft) -> bool:
    return draft["engine"] == "deepspeed" and draft.config.get("zero_optimization.compute_grad_norm") is False


def _too_old_to_quantize(draft: Draft) -> str | None:
    """The package of an older release than those whose quantization was compared; None without quantization."""
    versions = draft["versions"] if draft["quantization"] is not None else {}
    return _first(name for name, oldest in OLDEST_QUANTIZING.items()
                  if name in versions and release(versions[name]) < oldest)


def _recomputes_frozen(draft: Draft) -> bool:
    """Whether ZeRO-3 recomputes frozen weights in checkpoints that compare the shapes of tensors, in an old release."""
    return (_at_stage(draft, 3) and draft.release < RECOMPUTES_FROZEN_SINCE and draft["gradient_checkpointing"]
            and not draft["gradient_checkpointing_kwargs"]["use_reentrant"] and draft["recipe"] in ("lora", "pretrain"))


def _at_stage(draft: Draft, *stages: int) -> bool:
    return _by_deepspeed(draft) and draft["zero_stage"] in stages


def _accumulates(draft: Draft) -> str:
    """The dtype in which DeepSpeed accumulates gradients."""
    return deepspeed_settings.accumulation(draft.settings, draft["dtype"], draft.release)[0]


def _communicates(draft: Draft) -> str:
    """The dtype in which DeepSpeed reduces gradients."""
    return deepspeed_settings.communication(draft.settings, draft["dtype"])


def _uncompared(feature: str, name: str, *others: str) -> Contradiction:
    """The contradiction of one entry in ``compared.FEATURES``. It is checked here because it has its own message."""
    line = compared.FEATURES[feature]
    return Contradiction((name.partition(".")[0], *others), lambda c: name in line.unseen(c.values),
                         lambda c, _: line.says[name].format(quoted(compared.value(c.values, name))))


NOT_COMPARED = {
    "a conversation": _uncompared("a conversation", "cache_implementation", "conversation"),
    "mode inference": _uncompared("mode inference", "attn_implementation", "mode"),
    "engine fsdp1": _uncompared("engine fsdp1", "quantization", "engine"),
    "engine fsdp2": _uncompared("engine fsdp2", "quantization", "engine"),
    "engine fsdp2 with reentrant checkpoints": _uncompared(
        "engine fsdp2", "gradient_checkpointing_kwargs.use_reentrant", "engine"),
    "sharded parameters": _uncompared("sharded parameters", "per_device_eval_batch_size", "engine"),
}
"""Combinations that were only not compared (``predictor.workload.compared``), but are checked at a place of the table
below."""
IN_A_DEEPSPEED_CONFIG = (
    Contradiction(("deepspeed",), lambda c: c.unreadable, "cannot be read", IN_FILE),
    Contradiction(("bf16.enabled", "fp16.enabled"),
                  lambda c: c.config.get("bf16.enabled") is True and c.config.get("fp16.enabled") is True,
                  "bf16.enabled and fp16.enabled are both true: keep one", IN_FILE),
    Contradiction(("zero_optimization.stage",), lambda c: c["deepspeed"] is not None and c.stage is None,
                  "zero_optimization.stage is not given", IN_FILE),
    Contradiction(("zero_optimization.offload_param", "zero_optimization.stage"),
                  lambda c: deepspeed_settings.offloads(c.config, "param") and c.stage != 3,
                  "zero_optimization.offload_param needs stage 3: remove it", IN_FILE),
    Contradiction(("tensor_parallel.tp", "tensor_parallel.autotp_size"), _other_degree, _other_degree_message, IN_FILE),
    Contradiction(("optimizer", "zero_optimization.stage"),
                  lambda c: c.stage == 0 and c.config.get("optimizer") == "adamw_torch_fused",
                  "the optimizer section makes DeepSpeed's FusedAdam, which is not supported yet in stage 0: leave the "
                  "section out, or add torch_adam true to its params", IN_FILE),
    Contradiction((*REFUSED_IN_STAGE_3, "zero_optimization.stage"), _not_modelled_in_stage_3,
                  lambda c, option: f"zero_optimization.{option[0]} {quoted(option[1])} is not supported in stage 3: "
                                   "its effect on memory is not modelled yet", IN_FILE),
    Contradiction(("managed_gradient_accumulation", "zero_optimization.stage"),
                  lambda c: c.stage == 1 and c["deepspeed"].get("managed_gradient_accumulation") is False,
                  "managed_gradient_accumulation false is not supported in stage 1: gradients would be reduced in "
                  "step()", IN_FILE),
)
"""Contradictions within a DeepSpeed config."""

CONTRADICTIONS = (
    Contradiction(("model",), lambda c: "model" not in c.user_keys, "is not given: name one, such as llava-1.5-7b"),
    Contradiction((KEY_FROM_DETAIL, "mode"), _of_the_other_mode,
                  lambda c, key: "belongs to inference, but mode is training: leave it out, or add mode inference"
                  if c["mode"] == "training" else "belongs to training, but mode is inference: "
                  + ("give per_device_eval_batch_size" if key == "per_device_train_batch_size" else "leave it out")),
    # inference
    Contradiction((KEY_FROM_DETAIL, "conversation"),
                  lambda c: _first(key for key in modes.ANSWERED_BY_TURNS if key in c.user_keys)
                  if c["conversation"] is not None else None,
                  "is given, but so is conversation, whose turns give it: leave one of them out"),
    NOT_COMPARED["a conversation"],
    Contradiction(("max_cache_len", "cache_implementation"),
                  lambda c: c["max_cache_len"] is not None and c["cache_implementation"] != "static",
                  "is given, but only a static cache has a fixed length: add cache_implementation static"),
    NOT_COMPARED["mode inference"],
    Contradiction(("block_size", "gpu_memory_utilization"),
                  lambda c: c["block_size"] is not None and c["gpu_memory_utilization"] is None,
                  "is a setting of paged serving: add gpu_memory_utilization"),
    Contradiction(("gpu_memory_utilization",),
                  lambda c: c["gpu_memory_utilization"] is not None and not 0 < c["gpu_memory_utilization"] <= 1,
                  lambda c, _: f"is {c['gpu_memory_utilization']:g}: it must be above 0 and at most 1"),
    # trained parameters, and activation checkpointing
    Contradiction(("gradient_checkpointing_modules", "gradient_checkpointing"),
                  lambda c: bool(c["gradient_checkpointing_modules"]) and not c["gradient_checkpointing"],
                  "are named, but gradient_checkpointing is off"),
    Contradiction(("gradient_checkpointing_kwargs", "gradient_checkpointing"),
                  lambda c: not c["gradient_checkpointing"] and any(c["gradient_checkpointing_kwargs"].values()),
                  "are given, but gradient_checkpointing is off: leave one of them out"),
    Contradiction(("frozen", "trainable"),
                  lambda c: _first(pattern for pattern in c["trainable"] if pattern in c["frozen"]),
                  lambda c, both: f"names {quoted(both)}, and so does trainable: leave one of them out"),
    Contradiction(("lora", "recipe"),
                  lambda c: c.user_keys.get("lora") is not None and c.user_keys.get("recipe", "lora") != "lora",
                  lambda c, _: f"is given, but recipe is {c.user_keys['recipe']}: leave one of them out"),
    Contradiction(("lora", "recipe"), lambda c: c.user_keys.get("lora", ()) is None and c["recipe"] == "lora",
                  "is switched off, but recipe is lora: leave one of them out"),
    # the engine
    *(Contradiction((key, "engine"), _of_another_engine(key, name),
                    f"is given, but engine is not {name}: add engine {name}")
      for name, entry in ENGINES.items() for key in entry.settings),
    Contradiction(("ddp",), lambda c: bool(c["ddp"]) and c["ddp"]["bucket_cap_mb"] == 0,
                  "has bucket_cap_mb 0: give the MiB of a bucket, or leave it out for 25"),
    NOT_COMPARED["engine fsdp1"],
    NOT_COMPARED["engine fsdp2"],
    NOT_COMPARED["engine fsdp2 with reentrant checkpoints"],
    Contradiction(("versions", "engine"),
                  lambda c: bool(c["fsdp1"]) and release(c["versions"]["torch"]) < OLDEST_FSDP1,
                  lambda c, _: f"names torch {c['versions']['torch']}: FSDP1 is predicted for "
                               f"{_dotted(OLDEST_FSDP1[:2])} and later"),
    Contradiction(("versions", "engine"), lambda c: bool(c["fsdp"]) and release(c["versions"]["torch"]) < OLDEST_FSDP2,
                  lambda c, _: f"names torch {c['versions']['torch']}: FSDP2 is predicted for "
                               f"{_dotted(OLDEST_FSDP2[:2])} and later"),
    Contradiction(("versions", "quantization"), _too_old_to_quantize,
                  lambda c, name: f"names {name} {c['versions'][name]}: quantization is predicted for "
                                  f"{_dotted(OLDEST_QUANTIZING[name][:2])} and later"),
    Contradiction(("offload", "zero_stage", "deepspeed"),
                  lambda c: c["offload"] is not None and _deepspeed_key(c) is None,
                  "is a setting of DeepSpeed: add zero_stage"),
    Contradiction(("engine", "zero_stage", "deepspeed"),
                  lambda c: _deepspeed_key(c) if c["engine"] != "deepspeed" else None,
                  lambda c, key: f"is {c['engine']}, but {key} is given: leave one of them out"),
    Contradiction(("data_parallel_size", "engine"), _needs_an_engine,
                  "above 1 needs an engine: add zero_stage 2 or engine ddp"),
    Contradiction(("engine", "zero_stage", "deepspeed"), lambda c: _by_deepspeed(c) and _deepspeed_key(c) is None,
                  "is deepspeed, but neither deepspeed nor zero_stage is given: add zero_stage 2"),
    Contradiction(("versions", "engine"), lambda c: _by_deepspeed(c) and c.release < OLDEST_DEEPSPEED,
                  lambda c, _: f"names DeepSpeed {c['versions']['deepspeed']}: {_dotted(OLDEST_DEEPSPEED)} or later is "
                               "predicted"),
    # a DeepSpeed config, by itself and with the other keys
    *IN_A_DEEPSPEED_CONFIG,
    *(Contradiction((ours, theirs), _differs(theirs, ours), _differs_message(theirs, ours))
      for theirs, ours in deepspeed_settings.SAME_AS.items()),
    Contradiction(("fp16.enabled", "dtype"), lambda c: _undecided_dtype(c) and c.config.get("fp16.enabled") == "auto",
                  'fp16.enabled is "auto", and nothing says what it becomes: give dtype fp16 or fp32', IN_FILE),
    Contradiction(("bf16.enabled", "dtype"), _undecided_dtype,
                  'bf16.enabled is not true: add "bf16": {"enabled": true}, or give dtype fp16 or fp32', IN_FILE),
    *(Contradiction(("dtype", f"{dtype}.enabled"), _disabled_dtype(dtype), _disabled_dtype_message(dtype))
      for dtype in ("bf16", "fp16")),
    Contradiction(("train_batch_size", *deepspeed_settings.BATCH_KEYS), _batch_sizes, lambda c, error: str(error),
                  IN_FILE),
    *(Contradiction(("train_batch_size", key), _too_large_batch(key), _too_large_batch_message(key), IN_FILE)
      for key in deepspeed_settings.BATCH_KEYS),
    Contradiction(("offload", "zero_stage"), lambda c: bool(c["offload"]) and c["zero_stage"] == 0,
                  "is given, but zero_stage 0 offloads nothing: leave one of them out"),
    Contradiction(("offload", "zero_stage"), lambda c: c["offload"] in ("parameters", "all") and c["zero_stage"] != 3,
                  lambda c, _: f"is {c['offload']}, which needs zero_stage 3"),
    # precision: loss scaling does not take fp16 gradients; DeepSpeed's weights have the dtype that it computes in
    Contradiction(("mixed_precision", "engine"), lambda c: c["mixed_precision"] != "none" and _by_deepspeed(c),
                  lambda c, _: f"is {c['mixed_precision']}, but DeepSpeed trains without autocast: leave it out and "
                               f"give dtype {c['mixed_precision']}"),
    Contradiction(("dtype", "mixed_precision"),
                  lambda c: c["mixed_precision"] != "none" and c["dtype"] != "fp32"
                  and (c["dtype"], c["mixed_precision"]) != ("bf16", "bf16"),
                  lambda c, _: f"is {c['dtype']}, but mixed_precision {c['mixed_precision']} needs fp32 weights: "
                               "leave one of them out"),
    Contradiction(("dtype", "attn_implementation"),
                  lambda c: (c["dtype"], c["mixed_precision"], c["attn_implementation"]) == (
                      "fp32", "none", "flash_attention_2"),
                  "is fp32, but flash_attention_2 takes only fp16 and bf16: make it bf16, or use sdpa"),
    Contradiction(("sdpa_backend", "dtype"),
                  lambda c: c["mixed_precision"] == "none" and c["dtype"] == "fp32"
                  and c["sdpa_backend"] in ("flash", "cudnn"),
                  lambda c, _: f"is {c['sdpa_backend']}, whose kernels do not support fp32: leave it out, or use "
                               "efficient or math"),
    # the optimizer
    Contradiction(("optim_args", "optim"), _optimizer_arguments, lambda c, error: str(error)),
    Contradiction(("optim", "offload"),
                  lambda c: c.offloads_states and bool(optimizers.OPTIMIZERS[c["optim"]].arguments.get("is_paged")),
                  lambda c, _: f"is {c['optim']}, but offloaded optimizer states cannot be paged: use an optimizer "
                               "that is not paged"),
    Contradiction(("zero_grad", "engine"), lambda c: c["zero_grad"] != "after_step" and _by_deepspeed(c),
                  lambda c, _: f"is {c['zero_grad']}, but DeepSpeed frees gradients itself, in step(): leave it out"),
    Contradiction(("optim", "engine", "dtype"), _refused_optimizer, lambda c, why: f"is {c['optim']}: {why}"),
    NOT_COMPARED["sharded parameters"],
    # layers of 4 or 8 bits
    Contradiction(("quantization", "mode"),
                  lambda c: c["mode"] == "inference" and "prepare" in (c["quantization"] or ()),
                  "has prepare, which belongs to training, but mode is inference: leave it out"),
    Contradiction(("quantization", "recipe"), lambda c: _trains_quantized(c) and c["recipe"] != "lora",
                  lambda c, _: f"is given, but recipe is {c['recipe']}: weights of 4 or 8 bits do not train; add "
                               "recipe lora"),
    Contradiction(("mixed_precision", "quantization"),
                  lambda c: _trains_quantized(c) and c["mixed_precision"] == "fp16",
                  "is fp16: with quantization the other weights are bf16: leave it out"),
    Contradiction(("dtype", "quantization"), lambda c: _trains_quantized(c) and c["dtype"] != "bf16",
                  lambda c, _: f"is {c['dtype']}: with quantization the other weights are loaded in bf16"),
    Contradiction(("sdpa_backend", "quantization"), lambda c: _in_fp32(c) and c["sdpa_backend"] in ("flash", "cudnn"),
                  lambda c, _: f"is {c['sdpa_backend']}, but quantization's prepare peft makes attention run in fp32, "
                               "which that kernel does not support: leave it out"),
    # sizes
    Contradiction(("rank", "data_parallel_size", "tensor_parallel_size"), _too_high_rank, _ranks),
    Contradiction(("sdpa_backend", "attn_implementation"),
                  lambda c: c["attn_implementation"] != "sdpa" and c["sdpa_backend"] != "auto",
                  lambda c, _: f"is {c['sdpa_backend']}, which attn_implementation {c['attn_implementation']} does not "
                               "use"),
    Contradiction(("sequence_length", "per_device_train_batch_size"), lambda c: _tokens(c) > MOST_TOKENS,
                  lambda c, _: f"x per_device_train_batch_size is {_tokens(c):,} tokens: at most {MOST_TOKENS:,} are "
                               "predicted"),
    Contradiction(("images_per_sample", "per_device_train_batch_size"),
                  lambda c: _batch(c) * (c["images_per_sample"] or 1) > MOST_IMAGES,
                  f"x per_device_train_batch_size is above {MOST_IMAGES:,} images"),
    # settings at which a release of DeepSpeed stops
    *(Contradiction((option, "versions"), _newer_option(option, since), _newer_option_message(option, since), IN_FILE)
      for option, since in SINCE.items()),
    Contradiction(("versions", "zero_stage", "gradient_checkpointing_kwargs"), _recomputes_frozen,
                  lambda c, _: f"ZeRO stage 3 of DeepSpeed {_dotted(c.release)} stops with a CheckpointError where "
                               f"frozen weights are recomputed (recipe {c['recipe']}): give "
                               "gradient_checkpointing_kwargs use_reentrant true, or use DeepSpeed "
                               f"{_dotted(RECOMPUTES_FROZEN_SINCE)} or later",
                  "versions"),
    Contradiction(("zero_optimization.compute_grad_norm", "zero_optimization.stage"),
                  lambda c: _without_norm(c) and c.stage not in (1, 2),
                  "zero_optimization.compute_grad_norm false needs stage 1 or 2: leave it out", IN_FILE),
    Contradiction(("zero_optimization.compute_grad_norm", "gradient_clipping"),
                  lambda c: _without_norm(c) and bool(c.clipping),
                  lambda c, _: "zero_optimization.compute_grad_norm false needs gradient_clipping 0, not "
                               f"{c.clipping:g}", IN_FILE),
    Contradiction(("dtype", "versions"),
                  lambda c: _by_deepspeed(c) and c["dtype"] != "bf16" and c.release < OTHER_DTYPES_SINCE,
                  lambda c, _: f"dtype {c['dtype']} is predicted for DeepSpeed {_dotted(OTHER_DTYPES_SINCE)} and later",
                  "versions"),
    Contradiction(("data_types.param_dtype", "dtype"),
                  lambda c: _by_deepspeed(c) and c.config.get("data_types.param_dtype", c["dtype"]) != c["dtype"],
                  lambda c, _: f"data_types.param_dtype is {c.config['data_types.param_dtype']}, but dtype is "
                               f"{c['dtype']}: leave it out", IN_FILE),
    Contradiction(("zero_optimization.compute_grad_norm", "offload"), lambda c: _without_norm(c) and c.offloads_states,
                  "zero_optimization.compute_grad_norm false does not go with offload_optimizer: leave it out",
                  IN_FILE),
    Contradiction(("tensor_parallel_size", "versions"),
                  lambda c: _by_deepspeed(c) and c["tensor_parallel_size"] > 1 and c.release < AUTOTP_SINCE,
                  f"tensor_parallel_size with DeepSpeed (AutoTP) is predicted for DeepSpeed {_dotted(AUTOTP_SINCE)} "
                  "and later", "versions"),
)
CONTRADICTING = tuple(line for line in CONTRADICTIONS if line not in NOT_COMPARED.values())
"""The real contradictions, which no further comparison could lift."""

NOT_PREDICTED = (
    Contradiction(("dtype", "fsdp"), lambda c: bool(c["fsdp"]) and c["fsdp"]["param_dtype"] and c["dtype"] == "fp32",
                  "is fp32, which is not predicted with fsdp param_dtype yet: give dtype bf16 (what trains is kept in "
                  "fp32 all the same), or use engine fsdp1"),
    # ZeRO stage 0
    Contradiction(("versions", "zero_stage"), lambda c: _at_stage(c, 0) and c.release < STAGE_0_SINCE,
                  f"ZeRO stage 0 is predicted for DeepSpeed {_dotted(STAGE_0_SINCE)} and later", "versions"),
    Contradiction(("data_types.grad_accum_dtype", "zero_stage"),
                  lambda c: _at_stage(c, 0) and _accumulates(c) != c["dtype"],
                  lambda c, _: f"data_types.grad_accum_dtype {_accumulates(c)} is not modelled in ZeRO stage 0: leave "
                               "it out", "deepspeed"),
    Contradiction(("communication_data_type", "zero_stage"),
                  lambda c: _at_stage(c, 0) and _communicates(c) != c["dtype"],
                  lambda c, _: f"communication_data_type {_communicates(c)} is not modelled in ZeRO stage 0: leave it "
                               "out", "deepspeed"),
    # ZeRO stages 1 and 2
    Contradiction(("data_types.grad_accum_dtype", "zero_stage"),
                  lambda c: _at_stage(c, 1, 2) and _accumulates(c) != c["dtype"],
                  lambda c, _: f"data_types.grad_accum_dtype {_accumulates(c)} is not modelled yet: leave it out or "
                               f"set {c['dtype']}", "deepspeed"),
    Contradiction(("versions", "zero_stage"), lambda c: _at_stage(c, 1) and c.release < STAGE_1_SINCE,
                  f"ZeRO stage 1 is predicted for DeepSpeed {_dotted(STAGE_1_SINCE)} and later", "versions"),
    Contradiction(("versions", "offload", "zero_stage"),
                  lambda c: _at_stage(c, 1, 2) and c.offloads_states and c.release < OFFLOAD_SINCE,
                  f"offload is predicted for DeepSpeed {_dotted(OFFLOAD_SINCE)} and later", "versions"),
    Contradiction(("zero_optimization.parameter_alignment", "zero_stage"),
                  lambda c: _at_stage(c, 1, 2) and bool(c.settings.get("zero_optimization.parameter_alignment")),
                  "zero_optimization.parameter_alignment is not modelled yet: leave it out", "deepspeed"),
    # ZeRO stage 3
    Contradiction(("versions", "zero_stage"), lambda c: _at_stage(c, 3) and c.release < STAGE_3_SINCE,
                  lambda c, _: f"ZeRO stage 3 is predicted for DeepSpeed {_dotted(STAGE_3_SINCE)} and later, not "
                               f"{_dotted(c.release)}", "versions"),
    Contradiction(("versions", "zero_stage"), lambda c: _at_stage(c, 3) and c.release == STAGE_3_MISCOUNTS,
                  f"ZeRO stage 3 of DeepSpeed {_dotted(STAGE_3_MISCOUNTS)} miscounts its bucket, which is not "
                  "predicted: use another release", "versions"),
    Contradiction(("data_types.grad_accum_dtype", "zero_stage"),
                  lambda c: _at_stage(c, 3) and _accumulates(c) != c["dtype"],
                  lambda c, _: f"data_types.grad_accum_dtype {_accumulates(c)} is not modelled yet in ZeRO stage 3: "
                               f"leave it out or set {c['dtype']}", "deepspeed"),
    Contradiction(("communication_data_type", "zero_stage"),
                  lambda c: _at_stage(c, 3) and _communicates(c) != c["dtype"],
                  lambda c, _: f"communication_data_type other than {c['dtype']} is not modelled yet in ZeRO stage 3: "
                               "leave it out", "deepspeed"),
)
"""Settings of a workload that can be measured and not predicted yet. They are checked before a prediction
(:meth:`predictor.workload.workload.Workload.check_predicted`), so that a workload may have them."""
