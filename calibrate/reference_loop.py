"""The reference loop: real model, real engine, three steps, on whatever CUDA device the process has.

The trace follows the same loop. The batch is made once and lives on; the output object dies before
backward; gradients are set to None after the step.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from predictor import models, parser
from predictor.deepspeed_config import read
from predictor.events import Moment
from predictor.sizes import Shape
from predictor.trace import make_batch
from predictor.workload import Workload

STEPS = 3
OPTIMIZER_FLAGS = {
    "adamw_torch_fused": {"fused": True},
    "adamw_torch": {},
    "adamw_torch_forloop": {"foreach": False},
}


def build_model(workload: Workload):
    """The workload's model on the meta device, ready to train."""
    model = parser.build(models.find(workload.model), attn_implementation=workload.attn_implementation,
                         recipe=workload.recipe, trainable=workload.trainable, frozen=workload.frozen)
    if workload.gradient_checkpointing:
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs=dict(workload.gradient_checkpointing_kwargs))
    return model


def run(workload: Workload, rank: int, enter: Callable[[Moment, int], None]) -> None:
    """Train three steps; ``enter(moment, step)`` is called at each boundary.

    Raises:
        torch.OutOfMemoryError: as PyTorch raises it.
    """
    model = build_model(workload)
    facts = parser.describe(model)
    batch = _host_batch(model, facts, workload)
    choose_attention(workload.sdpa_backend)
    enter(Moment.INIT, 0)
    _materialize(model)
    forward, backward, step = (_deepspeed if workload.engine == "deepspeed" else _plain)(workload, rank, model, facts)
    for number in range(1, STEPS + 1):
        for _ in range(workload.gradient_accumulation_steps):
            enter(Moment.FORWARD, number)
            if number == 1 and next(iter(batch.values())).device.type == "cpu":
                batch = {name: tensor.to("cuda") for name, tensor in batch.items()}
            loss = forward(**batch, use_cache=False).loss
            enter(Moment.BACKWARD, number)
            backward(loss)
            del loss
            enter(Moment.OPTIMIZER_STEP, number)
            step()
    torch.cuda.synchronize()


def choose_attention(backend: str) -> None:
    """Leave PyTorch only one fused kernel, as ``sdpa_backend`` says."""
    if backend == "auto":
        return
    for name, enable in (("cudnn", torch.backends.cuda.enable_cudnn_sdp), ("flash", torch.backends.cuda.enable_flash_sdp),
                         ("efficient", torch.backends.cuda.enable_mem_efficient_sdp)):
        enable(name == backend or (backend == "flash" and name == "efficient"))


def _materialize(model) -> None:
    """Uninitialised storage on the device, one allocation a tensor, as ``model.to(device)`` makes them."""
    model.to_empty(device="cuda")
    model.tie_weights()


def _host_batch(model, facts, workload: Workload) -> dict[str, torch.Tensor]:
    images = workload.per_device_train_batch_size * workload.images_per_sample
    shape = Shape(workload.per_device_train_batch_size, workload.sequence_length, images)

    class Host:
        """Takes the values that :func:`make_batch` gives to twins."""

        values: dict[int, torch.Tensor] = {}

        def adopt(self, tensor, values) -> None:
            self.values[id(tensor)] = values

    host = Host()
    on_meta = make_batch(model, facts, shape, workload.padding, host)
    return {name: host.values.get(id(tensor), torch.zeros(tensor.shape, dtype=tensor.dtype))
            for name, tensor in on_meta.items()}


def _groups(workload: Workload, model, facts) -> list[dict]:
    decay = {p.name: p.decay for p in facts.parameters}
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if workload.param_groups == "single":
        return [{"params": [p for _, p in named]}]
    split = [{"params": [p for name, p in named if decay[name] is wanted], "weight_decay": weight}
             for wanted, weight in ((True, 0.01), (False, 0.0))]
    return [group for group in split if group["params"]]


def _plain(workload: Workload, rank: int, model, facts):
    optimizer = torch.optim.AdamW(_groups(workload, model, facts), lr=1e-5, **OPTIMIZER_FLAGS[workload.optim])
    micro_steps = 0

    def step() -> None:
        nonlocal micro_steps
        micro_steps += 1
        if micro_steps % workload.gradient_accumulation_steps:
            return
        if workload.max_grad_norm:
            torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]],
                                           workload.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return model, torch.Tensor.backward, step


def _deepspeed(workload: Workload, rank: int, model, facts):
    import logging

    import deepspeed
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(workload.data_parallel_size)}
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=workload.data_parallel_size)
    deepspeed.utils.logging.logger.setLevel(logging.ERROR)
    optimizer = torch.optim.AdamW(_groups(workload, model, facts), lr=1e-5, **OPTIMIZER_FLAGS[workload.optim])
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=_config(workload, facts))
    return engine, engine.backward, engine.step


def _config(workload: Workload, facts) -> dict:
    zero = read(workload, facts.hidden_size)
    return {
        "train_micro_batch_size_per_gpu": workload.per_device_train_batch_size,
        "gradient_accumulation_steps": workload.gradient_accumulation_steps,
        "gradient_clipping": zero.gradient_clipping,
        "bf16": {"enabled": True, "check_grad_overflow": zero.check_grad_overflow},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": zero.stage, "contiguous_gradients": zero.contiguous_gradients, "overlap_comm": zero.overlap_comm,
            "reduce_scatter": zero.reduce_scatter, "reduce_bucket_size": zero.reduce_bucket_size,
            "allgather_bucket_size": zero.allgather_bucket_size, "round_robin_gradients": zero.round_robin_gradients,
            "use_multi_rank_bucket_allreduce": zero.use_multi_rank_bucket_allreduce,
        },
    }
