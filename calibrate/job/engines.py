"""Builds the real engine of a measured training job: one function per engine, listed in :data:`ENGINES`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import transformers
from torch.distributed.device_mesh import DeviceMesh

from calibrate.job import single_rank
from predictor.common.releases import release
from predictor.common.value_types import thaw
from predictor.events.model_facts import ModelFacts
from predictor.model import fsdp
from predictor.workload import deepspeed_config, deepspeed_keys, fsdp1_keys, fsdp_keys
from predictor.workload.deepspeed_releases import REPLACES_LINEAR_SINCE
from predictor.workload.optimizers import DTENSOR_FALLBACK, OPTIMIZERS
from predictor.workload.workload import Workload

LEARNING_RATE = 1e-5
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, None: None}


@dataclass(frozen=True)
class Job:
    """A model, and how to train it as rank ``rank``.

    For FSDP2 the model is on the meta device, and ``to_device`` moves what the given modules hold to the device. For
    the other engines it is on the GPU, or with DeepSpeed's AutoTP on the CPU. With tensor parallelism the process has
    joined the ranks of ``mesh`` (:func:`calibrate.job.single_rank.mesh`), and the model is sharded.
    """

    workload: Workload
    rank: int
    model: Any
    facts: ModelFacts
    to_device: Callable[[Iterable[torch.nn.Module]], None]
    mesh: DeviceMesh | None = None


Loop = tuple[Callable[..., Any], Callable[[torch.Tensor], Any], Callable[[], Any]]
"""Forward (the model's arguments; returns an output with ``loss``), backward of a loss, optimizer step."""


def plain(job: Job) -> Loop:
    """Plain PyTorch: clips gradients, takes the optimizer step, sets gradients to None when ``zero_grad`` says."""
    return _plain_loop(job, job.model)


def ddp(job: Job) -> Loop:
    """DistributedDataParallel with PyTorch's defaults, except for the keys of ``ddp``."""
    from torch.nn.parallel import DistributedDataParallel

    settings = job.workload.ddp
    assert settings is not None  # the engine's defaults, at least
    if not job.mesh:
        single_rank.join(job.rank, job.workload.data_parallel_size, backend="nccl")
    return _plain_loop(job, DistributedDataParallel(job.model, device_ids=[torch.cuda.current_device()],
                                                    device_mesh=job.mesh["dp"] if job.mesh else None,
                                                    **{k: v for k, v in settings.items() if v is not None}))


def deepspeed(job: Job) -> Loop:
    """DeepSpeed with the workload's config, and with the client optimizer that ``optim`` names."""
    import deepspeed

    single_rank.join(job.rank, job.workload.world_size, backend="fake")
    os.environ.setdefault("LOCAL_RANK", "0")
    deepspeed.utils.logging.logger.setLevel(logging.ERROR)
    if job.workload.zero_stage == 3 and release(deepspeed.__version__) < REPLACES_LINEAR_SINCE:
        _replace_linear()
    engine, *_ = deepspeed.initialize(model=job.model, optimizer=optimizer(job), config=deepspeed_document(job))
    return engine, engine.backward, engine.step


def _replace_linear() -> None:
    """Replaces PyTorch's linear layer by ZeRO-3's, which saves no view of a gathered weight.

    DeepSpeed 0.19.4 and later do it themselves. Before, ``zero.Init`` does, in which transformers' ``from_pretrained``
    builds the models of a Trainer with ZeRO-3 (runtime/zero/partition_parameters.py).
    """
    from deepspeed.runtime.zero.linear import zero3_linear_wrap

    torch.nn.functional.linear = zero3_linear_wrap


def fsdp2(job: Job) -> Loop:
    """``fully_shard`` on each unit after the unit has moved to the device.

    With ``sync_each_batch`` off, only the last micro-batch reduces gradients, as in accelerate (1.15,
    ``Accelerator.no_sync``).
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    single_rank.join(job.rank, job.workload.data_parallel_size, backend="fake")
    keys = job.workload.fsdp
    assert keys is not None  # the engine's defaults, at least
    if keys["param_dtype"]:
        for parameter in job.model.parameters():
            if parameter.requires_grad:  # as accelerate does (utils/fsdp_utils.py, fsdp2_prepare_model)
                parameter.data = parameter.data.float()
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[keys["param_dtype"]], reduce_dtype=DTYPES[keys["reduce_dtype"]])
    paths = {module: path for path, module in job.model.named_modules()}
    units = fsdp.units(job.model, fsdp.unit_names(job.workload))
    for unit in units:
        job.to_device(fsdp.managed_modules(unit, units))
        fully_shard(unit, mp_policy=policy, reshard_after_forward=fsdp_keys.reshards(keys, paths[unit]))
    call, backward, step = _plain_loop(job, job.model)
    micro_steps = job.workload.gradient_accumulation_steps
    micro_step = 0

    def forward(**batch: torch.Tensor) -> Any:
        nonlocal micro_step
        micro_step += 1
        job.model.set_requires_gradient_sync(keys["sync_each_batch"] or micro_step % micro_steps == 0)
        return call(**batch)

    return forward, backward, step


def fsdp1(job: Job) -> Loop:
    """``FullyShardedDataParallel`` around a model on the CPU, as accelerate wraps it (1.15, ``prepare_model``).

    Under mixed precision, accelerate makes flat parameters that train fp32, whatever dtype they were loaded in.
    """
    from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    workload, keys = job.workload, job.workload.fsdp1
    assert keys is not None  # the engine's defaults, at least
    single_rank.join(job.rank, workload.data_parallel_size, backend="fake")
    dtypes = fsdp1_keys.precision(keys, workload.mixed_precision)
    units = fsdp.units(job.model, fsdp.unit_names(workload))
    prefetch = keys["backward_prefetch"]
    wrapped = FullyShardedDataParallel(
        job.model, sharding_strategy=_strategy(keys), process_group=_groups(job),
        cpu_offload=CPUOffload(offload_params=keys["cpu_offload"]),
        auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls={type(u) for u in units[:-1]}),
        mixed_precision=MixedPrecision(DTYPES[dtypes["param"]], DTYPES[dtypes["reduce"]], DTYPES[dtypes["buffer"]]),
        backward_prefetch=None if prefetch == "NO_PREFETCH" else BackwardPrefetch[prefetch],
        device_id=torch.cuda.current_device(), limit_all_gathers=keys["limit_all_gathers"],
        use_orig_params=keys["use_orig_params"])
    modules: list[Any] = FullyShardedDataParallel.fsdp_modules(wrapped)
    if workload.mixed_precision != "none":
        for module in modules:
            flat = module._flat_param if module._has_params else None
            if flat is not None and flat.dtype != torch.float32 and flat.requires_grad:
                flat.data = flat.data.float()
                module._handle._orig_param_dtype = torch.float32
    call, backward, step = _plain_loop(replace(job, model=wrapped), wrapped, wrapped.clip_grad_norm_)
    micro_step = 0

    def forward(**batch: torch.Tensor) -> Any:
        nonlocal micro_step
        micro_step += 1
        for module in modules:  # as ``no_sync``
            module._sync_gradients = (keys["sync_each_batch"]
                                      or micro_step % workload.gradient_accumulation_steps == 0)
        return call(**batch)

    return forward, backward, step


def _strategy(keys: Mapping[str, Any]) -> Any:
    from torch.distributed.fsdp import ShardingStrategy

    name = keys["sharding_strategy"]
    return ShardingStrategy["_HYBRID_SHARD_ZERO2" if name == fsdp1_keys.HYBRID_GRADIENTS else name]


def _groups(job: Job) -> Any:
    """The process groups of hybrid sharding: among the ranks that share parameters, and among their copies."""
    import torch.distributed as dist

    keys, ranks = job.workload.fsdp1, job.workload.data_parallel_size
    assert keys is not None  # the engine's defaults, at least
    if keys["sharding_strategy"] not in fsdp1_keys.HYBRIDS:
        return None
    degree = fsdp1_keys.sharding_degree(keys, ranks)
    first = job.rank - job.rank % degree
    return (dist.new_group(list(range(first, first + degree)), backend="fake"),
            dist.new_group(list(range(job.rank % degree, ranks, degree)), backend="fake"))


ENGINES: dict[str, Callable[[Job], Loop]] = {
    "torch": plain, "ddp": ddp, "fsdp1": fsdp1, "fsdp2": fsdp2, "deepspeed": deepspeed}
"""``engine`` of a workload -> function that builds it around a :class:`Job`."""


def optimizer(job: Job) -> torch.optim.Optimizer:
    """The optimizer of the workload over the trainable parameters, as Hugging Face's Trainer builds it.

    The entry of ``optim`` in :data:`OPTIMIZERS` gives its class, ``param_groups`` the parameter groups (transformers
    5.17, Trainer.create_optimizer).
    """
    decayed = {parameter.name: parameter.decay for parameter in job.facts.parameters}
    trainable = [(name.replace("_fsdp_wrapped_module.", ""), p) for name, p in job.model.named_parameters()
                 if p.requires_grad]
    if job.workload.param_groups == "single":
        groups = [{"params": [p for _, p in trainable], "weight_decay": job.workload.weight_decay}]
    else:
        groups = [{"params": [p for name, p in trainable if decayed.get(name, True) is has_decay],  # flat ones decay
                   "weight_decay": weight}
                  for has_decay, weight in ((True, job.workload.weight_decay), (False, 0.0))]
    entry = OPTIMIZERS[DTENSOR_FALLBACK if _has_mixed_dtensors(job, [p for _, p in trainable]) else job.workload.optim]
    built = entry.load()([group for group in groups if group["params"]], lr=LEARNING_RATE,
                        **entry.arguments, **job.workload.optim_args)
    if entry.arguments.get("optim_bits") == 8:
        from bitsandbytes.optim.optimizer import GlobalOptimManager

        for module in job.model.modules():
            if isinstance(module, torch.nn.Embedding):
                GlobalOptimManager.get_instance().register_module_override(module, "weight", {"optim_bits": 32})
    return built


def deepspeed_document(job: Job) -> dict:
    """The config for DeepSpeed: the user's, with "auto" values and sizes filled in as Hugging Face does.

    Sections that would replace the optimizer or add a scheduler are left out.
    """
    workload = job.workload
    zero = deepspeed_config.read(workload, job.facts.hidden_size)
    document: dict = thaw(workload.deepspeed) if workload.deepspeed is not None else {}
    precision = document.get(zero.dtype) or document.get("bfloat16") or {}
    for key in ("optimizer", "scheduler", "train_batch_size", "bfloat16", "bf16", "fp16"):
        document.pop(key, None)
    if zero.dtype != "fp32":
        document[zero.dtype] = {key: value for key, value in precision.items() if value != "auto"} | {"enabled": True}
    section = document.get("zero_optimization", {})
    section = section if isinstance(section, dict) else {}  # the first releases wrote true
    section = {f"stage3_{key}" if key in deepspeed_keys.NAMES_WITHOUT_PREFIX else key: value
               for key, value in section.items() if value != "auto"}
    return document | {
        "train_micro_batch_size_per_gpu": workload.per_device_train_batch_size,
        "gradient_accumulation_steps": workload.gradient_accumulation_steps,
        "gradient_clipping": zero.gradient_clipping,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": section | {"stage": zero.stage, "reduce_bucket_size": zero.reduce_bucket_size}
        | (_stage_3_keys(zero) if zero.stage == 3 else {})
        | {name: (section.get(name) or {}) | {"device": "cpu"} for name, on in
           (("offload_optimizer", zero.offload_optimizer), ("offload_param", zero.offload_param)) if on},
    } | ({"tensor_parallel": {"autotp_size": workload.tensor_parallel_size}} if workload.autotp else {})


def _stage_3_keys(zero: deepspeed_config.ZeroConfig) -> dict:
    """Keys of stage 3 that need more than the config: a short form, and values that Hugging Face fills in."""
    return {"overlap_comm": zero.overlap_comm, "stage3_prefetch_bucket_size": zero.prefetch_bucket_size,
            "stage3_param_persistence_threshold": zero.param_persistence_threshold}


def _has_mixed_dtensors(job: Job, parameters: list[torch.nn.Parameter]) -> bool:
    """Whether the trainable parameters are partly DTensors and partly plain tensors."""
    if job.workload.tensor_parallel_size == 1:
        return False
    from transformers.trainer_optimizer import (
        has_mixed_dtensor,  # imports bitsandbytes: calibrate/measure/warm_workers.py
    )

    return has_mixed_dtensor(parameters)


def _plain_loop(job: Job, model: Any, clip: Callable[[float], Any] | None = None) -> Loop:
    """The plain loop around a model or its wrapper, which may clip gradients itself; fp16 autocast scales the loss."""
    torch_optimizer = optimizer(job)
    workload = job.workload
    parameters = [p for group in torch_optimizer.param_groups for p in group["params"]]
    has_mixed_dtensors = _has_mixed_dtensors(job, parameters)
    scaler = torch.amp.grad_scaler.GradScaler("cuda", enabled=workload.mixed_precision == "fp16")
    micro_steps = 0

    def zero_grad(place: str) -> None:
        if workload.zero_grad == place and micro_steps % workload.gradient_accumulation_steps == 0:
            torch_optimizer.zero_grad(set_to_none=True)

    def forward(**batch: torch.Tensor) -> Any:
        zero_grad("before_forward")
        output = model(**batch)
        zero_grad("before_backward")
        return output

    def backward(loss: torch.Tensor) -> None:
        scaler.scale(loss).backward()

    def step() -> None:
        nonlocal micro_steps
        micro_steps += 1
        if micro_steps % workload.gradient_accumulation_steps:
            return
        if workload.max_grad_norm:
            scaler.unscale_(torch_optimizer)
            if clip:
                clip(workload.max_grad_norm)
            elif has_mixed_dtensors:
                # the method uses nothing of the Trainer
                transformers.Trainer._mixed_mesh_grad_norm(None, model, workload.max_grad_norm)  # type: ignore[arg-type]
            else:
                torch.nn.utils.clip_grad_norm_(parameters, workload.max_grad_norm)
        scaler.step(torch_optimizer)
        scaler.update()
        zero_grad("after_step")

    return forward, backward, step
