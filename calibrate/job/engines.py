"""What trains the model in a measured job: one function an engine, all in :data:`ENGINES`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch.distributed.device_mesh import DeviceMesh

from calibrate.job import single_rank
from predictor.common.value_types import thaw
from predictor.events.model_facts import ModelFacts
from predictor.model import fsdp
from predictor.workload import deepspeed_config, deepspeed_keys, fsdp_keys
from predictor.workload.optimizers import LOOP, OPTIMIZERS
from predictor.workload.workload import Workload

LEARNING_RATE = 1e-5


@dataclass(frozen=True)
class Job:
    """A model on the device and how it is trained, as rank ``rank``.

    For FSDP2 it is on meta; ``to_device`` brings what some modules have to the device. With tensor parallelism the
    process has joined the ranks of ``mesh`` (``alone.mesh``), and the model is sharded.
    """

    workload: Workload
    rank: int
    model: Any
    facts: ModelFacts
    to_device: Callable[[Iterable[torch.nn.Module]], None]
    mesh: DeviceMesh | None = None


Loop = tuple[Callable[..., Any], Callable[[torch.Tensor], Any], Callable[[], Any]]
"""Forward (arguments as the model's, an output with ``loss``), backward of a loss, optimizer step."""


def plain(job: Job) -> Loop:
    """PyTorch on one GPU; gradients are clipped, the step is taken, gradients become None."""
    return _around(job, job.model)


def ddp(job: Job) -> Loop:
    """DistributedDataParallel, with PyTorch's defaults but for the keys of ``ddp``."""
    from torch.nn.parallel import DistributedDataParallel

    if not job.mesh:
        single_rank.join(job.rank, job.workload.data_parallel_size, backend="nccl")
    return _around(job, DistributedDataParallel(job.model, device_ids=[torch.cuda.current_device()],
                                                device_mesh=job.mesh["dp"] if job.mesh else None,
                                                **{k: v for k, v in job.workload.ddp.items() if v is not None}))


def deepspeed(job: Job) -> Loop:
    """DeepSpeed with the workload's config; the optimizer is ours, as ``optim`` says."""
    import deepspeed

    single_rank.join(job.rank, job.workload.world_size, backend="fake")
    os.environ.setdefault("LOCAL_RANK", "0")
    deepspeed.utils.logging.logger.setLevel(logging.ERROR)
    engine, *_ = deepspeed.initialize(model=job.model, optimizer=optimizer(job), config=deepspeed_document(job))
    return engine, engine.backward, engine.step


def fsdp2(job: Job) -> Loop:
    """``fully_shard`` of each unit, which so comes to the device; with ``sync_each_batch`` off, only the last micro
    batch reduces gradients, as accelerate has it (1.15, ``Accelerator.no_sync``)."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    single_rank.join(job.rank, job.workload.data_parallel_size, backend="fake")
    keys, dtypes = job.workload.fsdp, {"bf16": torch.bfloat16, "fp32": torch.float32, None: None}
    if keys["param_dtype"]:
        for parameter in job.model.parameters():
            if parameter.requires_grad:  # as accelerate does (utils/fsdp_utils.py, fsdp2_prepare_model)
                parameter.data = parameter.data.float()
    policy = MixedPrecisionPolicy(param_dtype=dtypes[keys["param_dtype"]], reduce_dtype=dtypes[keys["reduce_dtype"]])
    paths = {module: path for path, module in job.model.named_modules()}
    units = fsdp.units(job.model, fsdp.wrapped(job.workload))
    for unit in units:
        job.to_device(fsdp.managed(unit, units))
        fully_shard(unit, mp_policy=policy, reshard_after_forward=fsdp_keys.reshards(keys, paths[unit]))
    _, backward, step = _around(job, job.model)
    micro_steps = job.workload.gradient_accumulation_steps
    done = 0

    def forward(**batch: torch.Tensor) -> Any:
        nonlocal done
        done += 1
        job.model.set_requires_gradient_sync(keys["sync_each_batch"] or done % micro_steps == 0)
        return job.model(**batch)

    return forward, backward, step


ENGINES: dict[str, Callable[[Job], Loop]] = {"torch": plain, "ddp": ddp, "fsdp2": fsdp2, "deepspeed": deepspeed}
"""``engine`` of a workload -> what builds it around a model that lies on the device."""


def optimizer(job: Job) -> torch.optim.Optimizer:
    """The line of ``optim`` in :data:`OPTIMIZERS` over the trainable parameters, as Hugging Face's Trainer builds it
    (transformers 5.17, Trainer.create_optimizer), in the groups that ``param_groups`` says."""
    decayed = {parameter.name: parameter.decay for parameter in job.facts.parameters}
    named = [(name, p) for name, p in job.model.named_parameters() if p.requires_grad]
    if job.workload.param_groups == "single":
        groups = [{"params": [p for _, p in named], "weight_decay": job.workload.weight_decay}]
    else:
        groups = [{"params": [p for name, p in named if decayed[name] is wanted], "weight_decay": weight}
                  for wanted, weight in ((True, job.workload.weight_decay), (False, 0.0))]
    entry = OPTIMIZERS[LOOP if _mixed(job, [p for _, p in named]) else job.workload.optim]
    made = entry.load()([group for group in groups if group["params"]], lr=LEARNING_RATE,
                        **entry.arguments, **job.workload.optim_args)
    if entry.arguments.get("optim_bits") == 8:
        from bitsandbytes.optim import GlobalOptimManager

        for module in job.model.modules():
            if isinstance(module, torch.nn.Embedding):
                GlobalOptimManager.get_instance().register_module_override(module, "weight", {"optim_bits": 32})
    return made


def deepspeed_document(job: Job) -> dict:
    """The config to hand to DeepSpeed: the user's, with "auto" and the sizes filled in as Hugging Face does.

    Sections that would replace the optimizer or schedule it are left out.
    """
    workload = job.workload
    zero = deepspeed_config.read(workload, job.facts.hidden_size)
    document = thaw(workload.deepspeed) if workload.deepspeed is not None else {}
    precision = document.get(zero.dtype) or document.get("bfloat16") or {}
    for key in ("optimizer", "scheduler", "train_batch_size", "bfloat16", "bf16", "fp16"):
        document.pop(key, None)
    if zero.dtype != "fp32":
        document[zero.dtype] = {key: value for key, value in precision.items() if value != "auto"} | {"enabled": True}
    section = document.get("zero_optimization", {})
    section = section if isinstance(section, dict) else {}  # true: the form of the first releases
    section = {f"stage3_{key}" if key in deepspeed_keys.PLAIN_NAMES else key: value
               for key, value in section.items() if value != "auto"}
    return document | {
        "train_micro_batch_size_per_gpu": workload.per_device_train_batch_size,
        "gradient_accumulation_steps": workload.gradient_accumulation_steps,
        "gradient_clipping": zero.gradient_clipping,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": section | {"stage": zero.stage, "reduce_bucket_size": zero.reduce_bucket_size}
        | (_of_stage_3(zero) if zero.stage == 3 else {})
        | {name: (section.get(name) or {}) | {"device": "cpu"} for name, on in
           (("offload_optimizer", zero.offload_optimizer), ("offload_param", zero.offload_param)) if on},
    } | ({"tensor_parallel": {"autotp_size": workload.tensor_parallel_size}} if workload.autotp else {})


def _of_stage_3(zero: deepspeed_config.ZeroConfig) -> dict:
    """Keys whose values do not follow from the config alone: a short form, and what Hugging Face fills in."""
    return {"overlap_comm": zero.overlap_comm, "stage3_prefetch_bucket_size": zero.prefetch_bucket_size,
            "stage3_param_persistence_threshold": zero.param_persistence_threshold}


def _mixed(job: Job, parameters: list[torch.nn.Parameter]) -> bool:
    """Whether DTensors train beside plain tensors."""
    if job.workload.tensor_parallel_size == 1:
        return False
    from transformers.trainer_optimizer import (
        has_mixed_dtensor,  # imports bitsandbytes: calibrate/measure/warm_workers.py
    )

    return has_mixed_dtensor(parameters)


def _around(job: Job, model: Any) -> Loop:
    """The plain loop around a model, wrapped or not; fp16 by autocast has its loss scaled."""
    made = optimizer(job)
    workload = job.workload
    parameters = [p for group in made.param_groups for p in group["params"]]
    mixed = _mixed(job, parameters)
    scaler = torch.amp.GradScaler("cuda", enabled=workload.mixed_precision == "fp16")
    micro_steps = 0

    def backward(loss: torch.Tensor) -> None:
        scaler.scale(loss).backward()

    def step() -> None:
        nonlocal micro_steps
        micro_steps += 1
        if micro_steps % workload.gradient_accumulation_steps:
            return
        if workload.max_grad_norm:
            scaler.unscale_(made)
            if mixed:  # which uses nothing of the Trainer's own
                transformers.Trainer._mixed_mesh_grad_norm(None, model, workload.max_grad_norm)
            else:
                torch.nn.utils.clip_grad_norm_(parameters, workload.max_grad_norm)
        scaler.step(made)
        scaler.update()
        made.zero_grad(set_to_none=True)

    return model, backward, step
