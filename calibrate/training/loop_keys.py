"""What of a workload the loop around the model says: optimizer, precision, engine, ranks, GPU, versions."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from typing import Any

from calibrate.measure.measure import ALLOCATOR_VARIABLES
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.readers import trainer
from predictor.readers.trainer_detection import OF_TRL, TRL
from predictor.readers.training_arguments import NOT_PREDICTED
from predictor.workload import deepspeed_config
from predictor.workload.optimizers import OPTIMIZERS

PACKAGES = ("torch", "transformers", "deepspeed", "peft", "bitsandbytes")
SAID_ELSEWHERE = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
                  "steps_per_print")
"""Of a DeepSpeed config: sizes that are keys of their own, and what may be infinite, for which JSON has no word."""
DEFAULT_CAP_MB = 25
"""``bucket_cap_mb`` of DistributedDataParallel (torch 2.11, nn/parallel/distributed.py)."""


def trainer_keys(args: Any, optimizer: Any, samples: int) -> dict[str, Any]:
    """Keys of a workload, from a Trainer's ``args`` as it resolved them.

    Args:
        args: ``TrainingArguments``.
        optimizer: as callbacks get it.
        samples: of a micro-batch, which the Trainer may have made smaller (``auto_find_batch_size``).

    Raises:
        InputError: something that no key can say.
    """
    if any(TRL.search(kind.__module__) for kind in type(args).__mro__):
        raise InputError(f"the training arguments are {OF_TRL}: use peakcast learn")
    for name, known in NOT_PREDICTED.items():
        found = getattr(args, name, None)
        if known.is_on(found):
            raise InputError(f"{name} {found} of the training arguments is not supported: {known.refusal}")
    if args.n_gpu > 1:
        raise InputError("the Trainer uses nn.DataParallel on several GPUs, which is not predicted: start it with "
                         "torchrun, or set CUDA_VISIBLE_DEVICES")
    if args.fsdp or os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true":
        raise InputError("FSDP is not read off the training arguments: give a Workload with engine fsdp2")
    zero = getattr(args, "hf_deepspeed_config", None)
    keys = {"per_device_train_batch_size": samples, "gradient_accumulation_steps": args.gradient_accumulation_steps,
            "use_liger_kernel": bool(args.use_liger_kernel)}
    if zero is not None:
        return keys | deepspeed_keys(zero.config, optimizer)
    keys["max_grad_norm"] = args.max_grad_norm
    if args.bf16 or args.fp16:
        keys["mixed_precision"] = "bf16" if args.bf16 else "fp16"
    return keys | optimizer_keys(optimizer)


def trainer_ddp_keys(args: Any, checkpoints: bool, adapters: bool) -> dict[str, Any]:
    """``engine`` and ``ddp`` of a Trainer on several GPUs."""
    unused = args.ddp_find_unused_parameters
    unused = trainer.finds_unused(checkpoints, adapters) if unused is None else unused
    return ddp_keys(args.ddp_bucket_cap_mb or DEFAULT_CAP_MB, unused, bool(args.ddp_static_graph), False)


def evaluation_keys(args: Any, keys: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """``per_device_eval_batch_size`` beside these keys, where an evaluation is asked for and predicted; where it is not
    predicted, what is left out."""
    if not trainer.asks_for_evaluation(args.eval_strategy, args.do_eval, args.eval_on_start):
        return {}, ()
    config, size = keys.get("deepspeed"), args.per_device_eval_batch_size
    stage = deepspeed_config.parse(config, "the DeepSpeed config")["zero_optimization.stage"] if config else None
    if trainer.evaluates(keys, stage):
        return {"per_device_eval_batch_size": size}, ()
    return {}, (trainer.evaluation_left_out(size),)


def ddp_keys(bucket_cap_mb: float, unused: bool, static: bool, view: bool) -> dict[str, Any]:
    """``engine`` and ``ddp``; what is not predicted is refused with the keys' own words."""
    switches = {"find_unused_parameters": unused, "static_graph": static}
    return {"engine": "ddp", "ddp": {"bucket_cap_mb": bucket_cap_mb, "gradient_as_bucket_view": view}
            | {name: on for name, on in switches.items() if on}}


def deepspeed_keys(config: Mapping[str, Any], optimizer: Any) -> dict[str, Any]:
    """``deepspeed`` and, where the config leaves it to the loop, the optimizer."""
    document = {key: value for key, value in config.items() if key not in SAID_ELSEWHERE}
    found = {} if (document.get("optimizer") or {}).get("type") else optimizer_keys(optimizer)
    return {"deepspeed": document} | found


def parts(keys: Mapping[str, Any]) -> int:
    """Ranks that share each layer."""
    section = keys.get("deepspeed", {}).get("tensor_parallel") or {}
    return section.get("autotp_size") or 1


def optimizer_keys(optimizer: Any) -> dict[str, Any]:
    """``optim`` and what belongs to it, from the optimizer itself, whatever wraps it.

    Raises:
        InputError: one that is not predicted.
    """
    groups = optimizer.param_groups
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    kind, fits = type(optimizer), []
    for name, entry in OPTIMIZERS.items():
        package, _, class_name = entry.implementation.rpartition(".")
        same = class_name == kind.__name__ and kind.__module__.partition(".")[0] == package.partition(".")[0]
        if same and all(_setting(optimizer, key) == value for key, value in entry.arguments.items()):
            fits.append((len(entry.arguments), name))
    if not fits or optimizer.defaults.get("amsgrad"):
        raise InputError(f"optimizer {kind.__module__}.{kind.__name__} with these settings is not predicted: use "
                         "peakcast learn")
    name = max(fits, key=lambda fit: fit[0])[1]
    arguments = {key: optimizer.defaults[key] for key in OPTIMIZERS[name].reads if key in optimizer.defaults}
    return {"optim": name, "optim_args": arguments, "param_groups": "huggingface" if len(groups) > 1 else "single",
            "weight_decay": max((group.get("weight_decay", 0.0) for group in groups), default=0.0)}


def _setting(optimizer: Any, name: str) -> Any:
    """As its class was given it: bitsandbytes keeps some of them elsewhere."""
    if name in optimizer.defaults:
        return optimizer.defaults[name]
    return getattr(optimizer, name, getattr(getattr(optimizer, "args", None), name, None))


def ranks() -> tuple[int, int]:
    """This process's rank and how many there are."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def autocast() -> str:
    """``mixed_precision``, as autocast is on the GPU at this point of the loop."""
    import torch

    if not torch.is_autocast_enabled("cuda"):
        return "none"
    return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(torch.get_autocast_dtype("cuda"), "none")


def machine_keys(device: int | None) -> dict[str, Any]:
    """GPU, what PyTorch may have of it, allocator settings, versions; None: there is no GPU."""
    import torch

    if device is None:
        return {"versions": versions()}
    properties = torch.cuda.get_device_properties(device)
    share = torch.cuda.get_per_process_memory_fraction(device)
    capacity = int(properties.total_memory * share)
    keys: dict[str, Any] = {"versions": versions()}
    try:
        keys["gpu"] = gpus.find(properties.name).name
    except InputError:
        keys["capacity_bytes"] = capacity
    else:
        if gpus.find(keys["gpu"]).capacity_bytes != capacity:
            keys["capacity_bytes"] = capacity
    settings = next((os.environ[name] for name in ALLOCATOR_VARIABLES if os.environ.get(name)), None)
    return keys | ({"allocator_conf": settings} if settings else {})


def versions() -> dict[str, str]:
    """Releases of what is installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
