"""Reads workload keys from the training loop: optimizer, precision, engine, ranks, GPU, versions."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from typing import Any

from calibrate.measure.measure import ALLOCATOR_VARIABLES
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.readers import trainer
from predictor.readers.configuration import LOOP
from predictor.readers.trainer_detection import TRL
from predictor.readers.training_arguments import NOT_PREDICTED
from predictor.workload import deepspeed_config
from predictor.workload.optimizers import OPTIMIZERS

PACKAGES = ("torch", "transformers", "deepspeed", "peft", "bitsandbytes")
NOT_COPIED = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
              "steps_per_print")
"""Keys of a DeepSpeed config that are not copied: sizes, which are workload keys of their own, and ``steps_per_print``,
which may be infinite, for which JSON has no number."""
DEFAULT_CAP_MB = 25
"""``bucket_cap_mb`` of DistributedDataParallel in MiB (torch 2.11, nn/parallel/distributed.py)."""


def trainer_keys(args: Any, optimizer: Any, samples: int) -> dict[str, Any]:
    """Workload keys from a Trainer's ``args``, as the Trainer resolved them.

    Args:
        args: ``TrainingArguments``.
        optimizer: as callbacks receive it.
        samples: samples in a micro-batch, which the Trainer may have reduced (``auto_find_batch_size``).

    Raises:
        InputError: no key describes a setting.
    """
    if any(TRL.search(base.__module__) for base in type(args).__mro__):
        raise InputError("the training arguments are TRL's, whose loss is not read from a running training: use "
                         "peakcast predict -- COMMAND, or peakcast learn")
    for name, unsupported in NOT_PREDICTED.items():
        value = getattr(args, name, None)
        if unsupported.is_on(value):
            raise InputError(f"{name} {value} of the training arguments is not supported: {unsupported.refusal}")
    if args.n_gpu > 1:
        raise InputError("the Trainer uses nn.DataParallel on several GPUs, which is not predicted: start it with "
                         "torchrun, or set CUDA_VISIBLE_DEVICES")
    if args.fsdp or os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true":
        raise InputError("FSDP is not read from the training arguments: give a Workload with engine fsdp2")
    zero = getattr(args, "hf_deepspeed_config", None)
    keys = {"per_device_train_batch_size": samples, "gradient_accumulation_steps": args.gradient_accumulation_steps,
            "use_liger_kernel": bool(getattr(args, "use_liger_kernel", False)), **LOOP}  # since 4.45
    if args.label_smoothing_factor:
        keys["loss"] = "label_smoothing"
    if args.neftune_noise_alpha is not None:
        keys["neftune_noise_alpha"] = args.neftune_noise_alpha
    if zero is not None:
        return keys | deepspeed_keys(zero.config, optimizer)
    keys["max_grad_norm"] = args.max_grad_norm
    if args.bf16 or args.fp16:
        keys["mixed_precision"] = "bf16" if args.bf16 else "fp16"
    return keys | optimizer_keys(optimizer)


def trainer_ddp_keys(args: Any, checkpoints: bool, adapters: bool) -> dict[str, Any]:
    """``engine`` and ``ddp`` of a Trainer on several GPUs."""
    unused = args.ddp_find_unused_parameters
    unused = trainer.finds_unused_parameters(checkpoints, adapters) if unused is None else unused
    return ddp_keys(args.ddp_bucket_cap_mb or DEFAULT_CAP_MB, unused, bool(args.ddp_static_graph), False)


def evaluation_keys(args: Any, keys: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """``per_device_eval_batch_size`` if an evaluation takes place and is predicted, and notes on an evaluation that is
    not predicted."""
    if not trainer.asks_for_evaluation(args.eval_strategy, args.do_eval, args.eval_on_start):
        return {}, ()
    config, size = keys.get("deepspeed"), args.per_device_eval_batch_size
    stage = deepspeed_config.parse(config, "the DeepSpeed config")["zero_optimization.stage"] if config else None
    if trainer.predicts_evaluation(keys, stage):
        return {"per_device_eval_batch_size": size}, ()
    return {}, (trainer.evaluation_left_out(size),)


def ddp_keys(bucket_cap_mb: float, unused: bool, static: bool, view: bool) -> dict[str, Any]:
    """``engine`` and ``ddp``. The workload's own checks reject combinations that are not predicted."""
    switches = {"find_unused_parameters": unused, "static_graph": static}
    return {"engine": "ddp", "ddp": {"bucket_cap_mb": bucket_cap_mb, "gradient_as_bucket_view": view}
            | {name: on for name, on in switches.items() if on}}


def deepspeed_keys(config: Mapping[str, Any], optimizer: Any) -> dict[str, Any]:
    """``deepspeed`` and, if the config does not set it, the optimizer."""
    document = {key: value for key, value in config.items() if key not in NOT_COPIED}
    from_loop = {} if (document.get("optimizer") or {}).get("type") else optimizer_keys(optimizer)
    return {"deepspeed": document} | from_loop


def tensor_parallel_ranks(keys: Mapping[str, Any]) -> int:
    """Number of ranks that share each layer (tensor parallelism)."""
    section = keys.get("deepspeed", {}).get("tensor_parallel") or {}
    return section.get("autotp_size") or 1


def optimizer_keys(optimizer: Any) -> dict[str, Any]:
    """``optim`` and its settings, from the innermost optimizer under any wrappers.

    Raises:
        InputError: the optimizer or its settings are not predicted.
    """
    if optimizer is None:
        raise InputError(f"transformers {versions()['transformers']} does not tell callbacks its optimizer: give "
                         "PeakcastCallback(Workload(…))")
    groups = optimizer.param_groups
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    optimizer_class, matches = type(optimizer), []
    library = optimizer_class.__module__.partition(".")[0]
    for name, entry in OPTIMIZERS.items():
        package, _, class_name = entry.implementation.rpartition(".")
        same = class_name == optimizer_class.__name__ and library == package.partition(".")[0]
        if same and all(_setting(optimizer, key) == value for key, value in entry.arguments.items()):
            matches.append((len(entry.arguments), name))
    if not matches or optimizer.defaults.get("amsgrad"):
        raise InputError(f"optimizer {optimizer_class.__module__}.{optimizer_class.__name__} with these settings is "
                         "not predicted: use peakcast learn")
    name = max(matches, key=lambda match: match[0])[1]
    arguments = {key: optimizer.defaults[key] for key in OPTIMIZERS[name].reads if key in optimizer.defaults}
    return {"optim": name, "optim_args": arguments, "param_groups": "huggingface" if len(groups) > 1 else "single",
            "weight_decay": max((group.get("weight_decay", 0.0) for group in groups), default=0.0)}


def _setting(optimizer: Any, name: str) -> Any:
    """A constructor argument of the optimizer. bitsandbytes keeps some of them outside ``defaults``."""
    if name in optimizer.defaults:
        return optimizer.defaults[name]
    return getattr(optimizer, name, getattr(getattr(optimizer, "args", None), name, None))


def ranks() -> tuple[int, int]:
    """This process's rank and the world size."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def autocast() -> str:
    """``mixed_precision``, read from the state of autocast on the GPU at this point of the loop."""
    import torch

    if not torch.is_autocast_enabled("cuda"):
        return "none"
    return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(torch.get_autocast_dtype("cuda"), "none")


def memory_share(device: int) -> float:
    """The share of the GPU that PyTorch may use. PyTorch 2.4 does not tell it: then all is assumed."""
    import torch

    tell = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    return tell(device) if tell else 1.0


def machine_keys(device: int | None) -> dict[str, Any]:
    """GPU, memory that PyTorch may use, allocator settings, versions. ``device`` None: there is no GPU."""
    import torch

    if device is None:
        return {"versions": versions()}
    properties = torch.cuda.get_device_properties(device)
    share = memory_share(device)
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
    """Installed releases of :data:`PACKAGES`."""
    releases = {}
    for package in PACKAGES:
        try:
            releases[package] = importlib.metadata.version(package).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return releases
