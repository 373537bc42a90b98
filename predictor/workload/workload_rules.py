"""How the keys of a workload depend on each other: what follows from what, and what contradicts what."""

from __future__ import annotations

from typing import Any

from predictor.common.errors import InputError
from predictor.common.suggest import show
from predictor.common.values import FrozenMap, Invalid
from predictor.workload import deepspeed_config, lora_keys, modes, optimizers, quantization_keys
from predictor.workload.engines import ENGINES, name_of
from predictor.workload.key_problem import KeyProblem

OLDEST_DEEPSPEED = (0, 13, 2)  # earlier ones make Adam's states at start-up
OLDEST_FSDP2 = (2, 11, 0)
MOST_SAMPLES = 65_536
MOST_STEPS = 1 << 20
MOST_TOKENS = 1 << 30  # in one micro batch; keeps every byte count far inside 64 bits
MOST_IMAGES = 1 << 20
HOW_CHECKPOINTED = frozenset({"gradient_checkpointing_kwargs", "gradient_checkpointing_modules"})
"""Keys that say nothing where checkpointing is turned off."""


def resolve(values: dict[str, Any], given: dict[str, Any], deepspeed_name: str) -> None:
    """Fills the keys that follow from others, in place, and finds what contradicts what."""
    if "model" not in given:
        raise KeyProblem("model", "is not given: name one, such as llava-1.5-7b")
    modes.resolve(values, given)
    if values["gradient_checkpointing_modules"] and not values["gradient_checkpointing"]:
        raise KeyProblem("gradient_checkpointing_modules", "are named, but gradient_checkpointing is off")
    if not values["gradient_checkpointing"] and any(values["gradient_checkpointing_kwargs"].values()):
        raise KeyProblem("gradient_checkpointing_kwargs", "are given, but gradient_checkpointing is off: leave one of "
                                                          "them out")
    both = [pattern for pattern in values["trainable"] if pattern in values["frozen"]]
    if both:
        raise KeyProblem("frozen", f"names {show(both[0])}, and so does trainable: leave one of them out")
    _resolve_lora(values, given)
    _resolve_engine(values, given)
    if values["deepspeed"] is not None:
        _resolve_deepspeed(values, given, deepspeed_name)
    if values["offload"] and values["zero_stage"] == 0:
        raise KeyProblem("offload", "is given, but zero_stage 0 offloads nothing: leave one of them out")
    if values["offload"] in ("parameters", "all") and values["zero_stage"] != 3:
        raise KeyProblem("offload", f"is {values['offload']}, which needs zero_stage 3")
    _resolve_precision(values, given)
    _resolve_optimizer(values)
    engine = ENGINES.get(name_of(values["engine"], values["zero_stage"]))
    if values["per_device_eval_batch_size"] and engine and not engine.whole:
        raise KeyProblem("per_device_eval_batch_size", "is given, but the evaluation of sharded parameters is not "
                                                       "modelled: leave it out")
    _resolve_quantization(values)
    degree, parts, rank = values["data_parallel_size"], values["tensor_parallel_size"], values["rank"]
    if rank != "worst" and rank >= degree * parts:
        named = f"data_parallel_size {degree}" + (f" x tensor_parallel_size {parts}" if parts > 1 else "")
        raise KeyProblem("rank", f"is {rank}, but {named} has the ranks 0 to {degree * parts - 1}")
    attention, backend = values["attn_implementation"], values["sdpa_backend"]
    if attention != "sdpa" and backend != "auto":
        raise KeyProblem("sdpa_backend", f"is {backend}, which attn_implementation {attention} does not use")
    batch, length = values["per_device_train_batch_size"], values["sequence_length"] or 1
    batch = max(batch, values["per_device_eval_batch_size"] or 1)
    if batch * length > MOST_TOKENS:
        raise KeyProblem("sequence_length", f"x per_device_train_batch_size is {batch * length:,} tokens: "
                                            f"at most {MOST_TOKENS:,} are predicted")
    if batch * (values["images_per_sample"] or 1) > MOST_IMAGES:
        raise KeyProblem("images_per_sample", f"x per_device_train_batch_size is above {MOST_IMAGES:,} images")


def _resolve_lora(values: dict[str, Any], given: dict[str, Any]) -> None:
    """Adapters belong to the recipe of that name; either of the two names the other."""
    if values["lora"] is not None:
        if given.get("recipe", "lora") != "lora":
            raise KeyProblem("lora", f"is given, but recipe is {given['recipe']}: leave one of them out")
        values["recipe"] = "lora"
    elif values["recipe"] == "lora":
        if "lora" in given:
            raise KeyProblem("lora", "is switched off, but recipe is lora: leave one of them out")
        values["lora"] = lora_keys.DEFAULTS


def _resolve_quantization(values: dict[str, Any]) -> None:
    """In training, layers of 4 or 8 bits belong under adapters."""
    wanted = values["quantization"]
    if wanted is None:
        return
    if values["mode"] == "inference":
        if "prepare" in wanted:
            raise KeyProblem("quantization", "has prepare, which is of training, but mode is inference: leave it out")
        return
    wanted = values["quantization"] = FrozenMap({
        **wanted, "prepare": wanted.get("prepare", "peft"),
        "llm_int8_skip_modules": wanted["llm_int8_skip_modules"] or quantization_keys.SKIPPED})
    if values["recipe"] != "lora":
        raise KeyProblem("quantization", f"is given, but recipe is {values['recipe']}: weights of 4 or 8 bits do not "
                                         "train; add recipe lora")
    if values["mixed_precision"] == "fp16":
        raise KeyProblem("mixed_precision", "is fp16: with quantization the other weights are bf16: leave it out")
    if values["dtype"] != "bf16":
        raise KeyProblem("dtype", f"is {values['dtype']}: with quantization the other weights are loaded in bf16")
    if wanted["prepare"] == "peft" and values["engine"] != "deepspeed" and values["sdpa_backend"] in ("flash", "cudnn"):
        raise KeyProblem("sdpa_backend", f"is {values['sdpa_backend']}, but quantization's prepare peft makes "
                                         "attention run in fp32, which that kernel does not take: leave it out")


def _resolve_engine(values: dict[str, Any], given: dict[str, Any]) -> None:
    for name, entry in ENGINES.items():
        for key, defaults in entry.settings.items():
            if values["engine"] == name:
                values[key] = values[key] or FrozenMap(defaults)
            elif values[key] is not None:
                raise KeyProblem(key, f"is given, but engine is not {name}: add engine {name}")
    if values["ddp"] and values["ddp"]["bucket_cap_mb"] == 0:
        raise KeyProblem("ddp", "has bucket_cap_mb 0: give the MiB of a bucket, or leave it out for 25")
    if values["fsdp"]:
        _check_fsdp2(values)
    asked = next((name for name in ("deepspeed", "zero_stage") if name in given), None)
    if values["offload"] is not None and not asked:
        raise KeyProblem("offload", "is DeepSpeed's: add zero_stage")
    values["engine"] = values["engine"] or ("deepspeed" if asked else "torch")
    if values["engine"] != "deepspeed":
        if asked:
            raise KeyProblem("engine", f"is {values['engine']}, but {asked} is given: leave one of them out")
        learned = values["model"].endswith(".npz")  # which holds its engine: it says itself what it refuses
        if values["data_parallel_size"] > 1 and not ENGINES[values["engine"]].several and not learned:
            raise KeyProblem("data_parallel_size", "above 1 needs an engine: add zero_stage 2 or engine ddp")
    elif not asked:
        raise KeyProblem("engine", "is deepspeed, but neither deepspeed nor zero_stage is given: add zero_stage 2")
    else:
        release = deepspeed_config.release(values["versions"]["deepspeed"])
        if release < OLDEST_DEEPSPEED:
            oldest = ".".join(map(str, OLDEST_DEEPSPEED))
            named = values["versions"]["deepspeed"]
            raise KeyProblem("versions", f"names DeepSpeed {named}: {oldest} or later is predicted")


def _check_fsdp2(values: dict[str, Any]) -> None:
    if values["quantization"]:
        raise KeyProblem("quantization", "is given, which is not predicted with engine fsdp2, nor measured: leave one "
                                         "of them out")
    if values["gradient_checkpointing"] and values["gradient_checkpointing_kwargs"]["use_reentrant"]:
        raise KeyProblem("gradient_checkpointing_kwargs",
                         "has use_reentrant true, which is not modelled yet with engine fsdp2: make it false")
    if deepspeed_config.release(values["versions"]["torch"]) < OLDEST_FSDP2:
        oldest, named = ".".join(map(str, OLDEST_FSDP2[:2])), values["versions"]["torch"]
        raise KeyProblem("versions", f"names torch {named}: FSDP2 is predicted for {oldest} and later")


def _resolve_precision(values: dict[str, Any], given: dict[str, Any]) -> None:
    """Autocast goes over fp32 weights, or over bf16 ones in bf16 (loss scaling takes no fp16 gradients); DeepSpeed has
    weights of the dtype that it computes in."""
    mixed = values["mixed_precision"]
    if mixed != "none":
        if values["engine"] == "deepspeed":
            raise KeyProblem("mixed_precision", f"is {mixed}, but DeepSpeed trains without autocast: leave it out and "
                                                f"give dtype {mixed}")
        narrow = values["quantization"] and mixed == "bf16"
        values["dtype"] = given.get("dtype", "bf16" if narrow else "fp32")
        if values["dtype"] != "fp32" and (values["dtype"], mixed) != ("bf16", "bf16"):
            raise KeyProblem("dtype", f"is {given['dtype']}, but mixed_precision {mixed} goes over fp32 weights: leave "
                                      "one of them out")
    elif values["dtype"] == "fp32" and values["sdpa_backend"] in ("flash", "cudnn"):
        raise KeyProblem("sdpa_backend", f"is {values['sdpa_backend']}, whose kernels take no fp32: leave it out, or "
                                         "use efficient or math")


def _resolve_optimizer(values: dict[str, Any]) -> None:
    """Whether the optimizer takes its arguments, and the engine the optimizer."""
    optim = values["optim"]
    try:
        values["optim_args"] = FrozenMap(optimizers.read(optim, values["optim_args"]))
    except Invalid as error:
        raise KeyProblem("optim_args", error) from None
    if values["offload"] in ("optimizer", "all") and optimizers.OPTIMIZERS[optim].arguments.get("is_paged"):
        raise KeyProblem("optim", f"is {optim}, but what is offloaded is not paged: use one that is not")
    refused, engine = optimizers.OPTIMIZERS[optim].refused_by, values["engine"]
    why = refused.get(engine) or refused.get(f"{engine} {values['dtype']}")
    if why:
        raise KeyProblem("optim", f"is {optim}: {why}")


def _resolve_weights(settings: dict[str, Any], given: dict[str, Any], name: str) -> None:
    """Where neither section settles the dtype, ours does, as Hugging Face fills it in."""
    dtype = given.get("dtype")
    if dtype is None and settings.get("bf16.enabled") != "auto":
        if settings.get("fp16.enabled") == "auto":
            raise InputError(f'{name}: fp16.enabled is "auto", and nothing says what it becomes: give dtype fp16 or '
                             "fp32")
        raise InputError(f'{name}: bf16.enabled is not true: add "bf16": {{"enabled": true}}, or give dtype fp16 or '
                         "fp32")
    if settings.get(f"{dtype}.enabled") is False:
        raise KeyProblem("dtype", f"is {dtype}, but {name} has {dtype}.enabled false: leave one of them out")


def _resolve_deepspeed(values: dict[str, Any], given: dict[str, Any], name: str) -> None:
    """The JSON's values where it has some, ours where it says "auto" or nothing; both and different is an error."""
    settings = deepspeed_config.parse(values["deepspeed"], name)
    for theirs, ours in deepspeed_config.SAME_AS.items():
        value = settings.get(theirs)
        if value in (None, "auto"):
            continue
        if ours in given and given[ours] != value:
            raise KeyProblem(ours, f'is {given[ours]}, but {name} has {theirs} {value}: leave one of them out')
        values[ours] = given[ours] = value
    _resolve_weights(settings, given, name)
    batch, steps = "per_device_train_batch_size", "gradient_accumulation_steps"
    total, parts = settings.get("train_batch_size"), values["tensor_parallel_size"]
    if total not in (None, "auto"):
        called = "data_parallel_size" if parts == 1 else "data_parallel_size x tensor_parallel_size"
        try:
            sizes = deepspeed_config.batch_sizes(
                total, given.get(batch), given.get(steps), values["data_parallel_size"] * parts, called)
        except Invalid as error:
            raise InputError(f"{name}: {error}") from None
        for ours, size, most in zip((batch, steps), sizes, (MOST_SAMPLES, MOST_STEPS)):
            if size > most:
                raise InputError(f"{name}: train_batch_size {total} makes {ours} {size:,}, which is too many")
            values[ours] = given[ours] = size
