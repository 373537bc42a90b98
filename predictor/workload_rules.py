"""How the keys of a workload depend on each other: what follows from what, and what contradicts what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from predictor import deepspeed_config, lora
from predictor.engine import optimizer
from predictor.errors import InputError
from predictor.values import FrozenMap, Invalid

OLDEST_DEEPSPEED = (0, 13, 2)  # earlier ones make Adam's states at start-up
DDP_DEFAULTS = {"bucket_cap_mb": None, "gradient_as_bucket_view": False}
MOST_SAMPLES = 65_536
MOST_STEPS = 1 << 20
MOST_TOKENS = 1 << 30  # in one micro batch; keeps every byte count far inside 64 bits
MOST_IMAGES = 1 << 20


class KeyProblem(InputError):
    """An :class:`InputError` that knows which key it is about."""

    def __init__(self, name: str, problem: object) -> None:
        super().__init__(self._sentence(name, problem))
        self.name, self.problem = name, problem

    def told(self, label: Callable[[str], str]) -> str:
        """The message with the key called what the user called it."""
        return self._sentence(label(self.name), self.problem)

    @staticmethod
    def _sentence(name: str, problem: object) -> str:
        # a message about a file's content names the file itself
        return str(problem) if isinstance(problem, InputError) else f"{name} {problem}"


def resolve(values: dict[str, Any], given: dict[str, Any], deepspeed_name: str) -> None:
    """Fills the keys that follow from others, in place, and finds what contradicts what."""
    for name, why in (("model", "name one, such as llava-1.5-7b"),
                      ("sequence_length", "say how many tokens a sample has, image tokens included")):
        if name not in given:
            raise KeyProblem(name, f"is not given: {why}")
    _resolve_lora(values, given)
    _resolve_engine(values, given)
    if values["deepspeed"] is not None:
        _resolve_deepspeed(values, given, deepspeed_name)
    _resolve_optimizer(values)
    _resolve_quantization(values)
    ranks, rank = values["data_parallel_size"], values["rank"]
    if rank != "worst" and rank >= ranks:
        raise KeyProblem("rank", f"is {rank}, but data_parallel_size {ranks} has the ranks 0 to {ranks - 1}")
    if values["attn_implementation"] == "eager" and values["sdpa_backend"] != "auto":
        raise KeyProblem("sdpa_backend", f'is {values["sdpa_backend"]}, which attn_implementation eager does not use')
    batch, length = values["per_device_train_batch_size"], values["sequence_length"]
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
        values["lora"] = lora.DEFAULTS


def _resolve_quantization(values: dict[str, Any]) -> None:
    """Layers of 4 bits belong under adapters."""
    wanted = values["quantization"]
    if wanted is None:
        return
    if values["recipe"] != "lora":
        raise KeyProblem("quantization", f"is given, but recipe is {values['recipe']}: weights of 4 bits do not train; "
                                         "add recipe lora")
    if values["dtype"] != "bf16":
        raise KeyProblem("dtype", f"is {values['dtype']}: with quantization the other weights are loaded in bf16")
    if wanted["prepare"] == "peft" and values["engine"] != "deepspeed" and values["sdpa_backend"] in ("flash", "cudnn"):
        raise KeyProblem("sdpa_backend", f"is {values['sdpa_backend']}, but quantization's prepare peft makes "
                                         "attention run in fp32, which that kernel does not take: leave it out")


def _resolve_engine(values: dict[str, Any], given: dict[str, Any]) -> None:
    if values["engine"] == "ddp":
        values["ddp"] = values["ddp"] or FrozenMap(DDP_DEFAULTS)
        if values["ddp"]["bucket_cap_mb"] == 0:
            raise KeyProblem("ddp", "has bucket_cap_mb 0: give the MiB of a bucket, or leave it out for 25")
    elif values["ddp"] is not None:
        raise KeyProblem("ddp", "is given, but engine is not ddp: add engine ddp")
    asked = next((name for name in ("deepspeed", "zero_stage") if name in given), None)
    values["engine"] = values["engine"] or ("deepspeed" if asked else "torch")
    if values["engine"] in ("torch", "ddp"):
        if asked:
            raise KeyProblem("engine", f"is {values['engine']}, but {asked} is given: leave one of them out")
        if values["data_parallel_size"] > 1 and values["engine"] == "torch":
            raise KeyProblem("data_parallel_size", "above 1 needs an engine: add zero_stage 2 or engine ddp")
    elif not asked:
        raise KeyProblem("engine", "is deepspeed, but neither deepspeed nor zero_stage is given: add zero_stage 2")
    else:
        release = deepspeed_config.release(values["versions"]["deepspeed"])
        if release < OLDEST_DEEPSPEED:
            oldest = ".".join(map(str, OLDEST_DEEPSPEED))
            named = values["versions"]["deepspeed"]
            raise KeyProblem("versions", f"names DeepSpeed {named}: {oldest} or later is predicted")


def _resolve_optimizer(values: dict[str, Any]) -> None:
    """Whether the optimizer takes its arguments, and the engine the optimizer."""
    optim = values["optim"]
    try:
        values["optim_args"] = FrozenMap(optimizer.read(optim, values["optim_args"]))
    except Invalid as error:
        raise KeyProblem("optim_args", error) from None
    why = optimizer.OPTIMIZERS[optim].refused_by.get(values["engine"])
    if why:
        raise KeyProblem("optim", f"is {optim}: {why}")


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
    batch, steps = "per_device_train_batch_size", "gradient_accumulation_steps"
    total = settings.get("train_batch_size")
    if total not in (None, "auto"):
        try:
            sizes = deepspeed_config.batch_sizes(
                total, given.get(batch), given.get(steps), values["data_parallel_size"])
        except Invalid as error:
            raise InputError(f"{name}: {error}") from None
        for ours, size, most in zip((batch, steps), sizes, (MOST_SAMPLES, MOST_STEPS)):
            if size > most:
                raise InputError(f"{name}: train_batch_size {total} makes {ours} {size:,}, which is too many")
            values[ours] = given[ours] = size
