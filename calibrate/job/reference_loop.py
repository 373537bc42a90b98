"""The reference loop of training: the real model and engine, three steps, on this process's CUDA device.

The trace follows the same loop. The batch is made once and stays on the device from the first forward on. The output
object is freed before backward, unless ``keep_outputs`` says otherwise. Gradients are set to None after the optimizer
step, or when ``zero_grad`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from calibrate.job import quantized, single_rank, trl_loss
from calibrate.job.engines import ENGINES, Job
from predictor.events.events import Moment
from predictor.jobs import training_job
from predictor.model import code_models, lora, parser, quantization, tensor_parallel
from predictor.model.request import Request, shape_of
from predictor.trace import autocast, liger, noisy_embeddings, smoothed_loss, trace
from predictor.trace.inputs import inputs_of
from predictor.workload.workload import Workload

STEPS = 3
WEIGHT_SCALE = 0.02
"""Standard deviation of the weights. Any finite values do, because only sizes are measured."""


def run(workload: Workload, rank: int, enter: Callable[[Moment, int], None],
        built: Callable[[Any], None] | None = None) -> None:
    """Train three steps. ``enter(moment, step)`` is called at each boundary (start-up is step 0).

    Args:
        workload: its ``rank`` is ignored.
        rank: rank of this process among ``world_size``.
        enter: called at each boundary.
        built: called with the model before anything is on the device.

    Raises:
        InputError: the sequence has no room for its images.
        torch.OutOfMemoryError: as PyTorch raises it.
    """
    model = build_model(workload)
    mesh = single_rank.mesh(workload, rank) if workload.tensor_parallel_size > 1 and not workload.autotp else None
    if mesh:
        tensor_parallel.shard(model, mesh["tp"])
    request = Request.of(workload)
    assert request.config is not None  # a workload with a model
    shape = request.shape
    config = code_models.at_shape(request.config, shape)
    inputs = inputs_of(config, model, workload.image_sizes, workload.video_frames, workload.dtype)
    facts = parser.describe(model, inputs.tokens_among(min(shape.images, 1)), inputs.image_tokens(shape))
    training_job.check_room(request, facts)
    batch = host_batch(inputs, workload)
    choose_attention(workload.sdpa_backend)
    if built:
        built(model)
    enter(Moment.INIT, 0)
    model = placed(model, workload, built)
    forward, backward, step = ENGINES[workload.engine](
        Job(workload, rank, model, facts, partial(to_device, model), mesh))
    for number in range(1, STEPS + 1):
        for micro_step in range(workload.gradient_accumulation_steps):
            single_rank.settle()
            enter(Moment.FORWARD, number)
            if number == 1 and micro_step == 0:
                batch = {name: tensor.to("cuda") for name, tensor in batch.items()}
            output = forward(**batch, **inputs.options)
            loss = code_models.loss_of(output)
            if workload.keep_outputs == "none":
                del output
            enter(Moment.BACKWARD, number)
            backward(loss)
            if workload.keep_outputs == "backward":
                del output
            if workload.keep_outputs != "next_forward":
                del loss
            enter(Moment.OPTIMIZER_STEP, number)
            step()
    if workload.per_device_eval_batch_size:
        enter(Moment.EVALUATION, STEPS)
        evaluation_workload = workload.replace(per_device_train_batch_size=workload.per_device_eval_batch_size)
        evaluation_batch = host_batch(inputs, evaluation_workload)  # the training batch stays on the device
        evaluate(model, forward if workload.engine == "deepspeed" else model, evaluation_batch)
    torch.cuda.synchronize()


def placed(model, workload: Workload, built: Callable[[Any], None] | None):
    """The model where its engine expects it: on the GPU, on the CPU, on meta, or loaded again in quantised form."""
    if workload.quantization:
        model = quantized.load_to_train(workload)
        if workload.mixed_precision != "none":
            autocast.prepare(model, workload.mixed_precision, "cuda")
        model = checkpointed(model, workload)
        if built:
            built(model)
    elif workload.autotp or workload.engine == "fsdp1":  # they move each part from the CPU to the GPU themselves
        to_device(model, device="cpu")
    elif training_job.loads_by_device_map(workload):
        trl_loss.warm_up(model)
        to_device(model, first=trl_loss.loading_order)
    elif workload.engine != "fsdp2":  # FSDP2 moves and shards one unit after another
        to_device(model)
    return model


@torch.no_grad()
def evaluate(model, forward: Callable[..., Any], batch: dict[str, torch.Tensor]) -> None:
    """Runs one evaluation batch. Hugging Face's Trainer wraps the model for it only with DeepSpeed."""
    trace.prepare_evaluation(model)
    batch = {name: tensor.to("cuda") for name, tensor in batch.items()}
    loss = code_models.loss_of(forward(**batch))
    del loss


def build_model(workload: Workload):
    """The workload's model on the meta device, ready to train."""
    request = Request.of(workload)
    assert request.config is not None  # a workload with a model
    config = code_models.at_shape(request.config, request.shape)
    model = parser.build(config, attn_implementation=workload.attn_implementation,
                         recipe=workload.recipe, patterns=parser.Patterns(workload.trainable, workload.frozen),
                         lora=lora.adapters(workload), dtype=workload.dtype,
                         quantization=quantization.quantized(workload))
    if workload.use_liger_kernel:
        liger.apply(model)
    if workload.loss == "trl_sft":
        trl_loss.add_head(model, workload)
    if workload.mixed_precision != "none":
        autocast.prepare(model, workload.mixed_precision, "cuda")
    if workload.loss == "trl_sft":
        trl_loss.add_trainer(model)
    elif workload.loss == "label_smoothing":
        smoothed_loss.apply(model)
    return checkpointed(model, workload)


def checkpointed(model, workload: Workload):
    """The same model with the workload's activation checkpointing, no-grad modules and noise set up."""
    if workload.gradient_checkpointing:
        parser.checkpoint(model, **workload.gradient_checkpointing_kwargs,
                          modules=workload.gradient_checkpointing_modules)
    parser.without_grad(model, workload.no_grad)
    if workload.neftune_noise_alpha is not None:
        noisy_embeddings.apply(model)
    return model


def choose_attention(backend: str) -> None:
    """Enable only one fused attention kernel, as ``sdpa_backend`` says.

    With ``flash``, the memory-efficient kernel stays enabled, because flash does not support a mask.
    """
    if backend == "auto":
        return
    kernels = torch.backends.cuda
    for name, enable in (("cudnn", kernels.enable_cudnn_sdp), ("flash", kernels.enable_flash_sdp),
                         ("efficient", kernels.enable_mem_efficient_sdp)):
        enable(name == backend or (backend == "flash" and name == "efficient"))


@torch.no_grad()
def to_device(model, modules: Iterable[torch.nn.Module] | None = None, device: str = "cuda",
              first: Callable[[Any], Iterable[torch.Tensor]] = lambda model: ()) -> None:
    """Allocate a meta model's storage on the device: one allocation per tensor, in the order of ``model.to(device)``.

    With ``modules``, only their own tensors are allocated. Weights become small random numbers, written in place; on
    the CPU they are zeros, which take memory only when they are written. The tensors that ``first`` returns come before
    the others. Buffers get their true values, because they
    index tables (position ids), and wrong ones would make a real kernel read out of bounds.
    """
    if not hasattr(model, "_init_weights"):
        code_to_device(model)
        return
    chosen = list(model.modules() if modules is None else modules)
    owners = dict(_owners(model, model))
    for module in chosen:
        _true_buffers(owners[module], module)
    owned = [(module, name, parameter) for module in chosen for name, parameter in module._parameters.items()
             if parameter is not None]
    moved: dict[int, torch.Tensor] = {}  # tied weights are one tensor

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in moved:
            moved[id(tensor)] = _real_tensor(tensor, device) if tensor.is_meta else tensor.to(device)
        return moved[id(tensor)]

    for tensor in first(model):
        move(tensor)
    for module in (model,) if modules is None else chosen:
        module._apply(move, recurse=modules is None)
    tied: dict[torch.Tensor, torch.nn.Parameter] = {}  # tied parameters stay one object, as with model.to
    for module, name, before in owned:
        module._parameters[name] = tied.setdefault(before, module._parameters[name])
    if device == "cpu":
        return
    for parameter in (parameter for module in chosen for parameter in module.parameters(recurse=False)):
        tensor_parallel.local_part(parameter).normal_(std=WEIGHT_SCALE)


def _owners(module: torch.nn.Module, owner: Any) -> Iterator[tuple[torch.nn.Module, Any]]:
    """Each module with the innermost transformers model around it, which knows how to initialise it.

    A LLaVA does not know the position ids of its CLIP (transformers 5.17, modeling_utils.py, ``initialize_weights``).
    """
    owner = module if isinstance(module, PreTrainedModel) else owner
    yield module, owner
    for child in module.children():
        yield from _owners(child, owner)


def _true_buffers(model, module: torch.nn.Module) -> None:
    """Put a module's own buffers on the CPU, with the values that the model initialises."""
    buffers = {name: buffer for name, buffer in module._buffers.items() if buffer is not None}
    module._buffers.update({name: torch.empty_like(buffer, device="cpu") for name, buffer in buffers.items()})
    if buffers:
        if not hasattr(model.config, "initializer_range"):  # read by Qwen2.5-VL of 4.49, whose vision tower has none
            model.config.initializer_range = WEIGHT_SCALE
        model._init_weights(module)


def _real_tensor(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """The real tensor for a meta tensor on a device."""
    if device == "cpu":  # numpy uses calloc, which leaves the pages untouched; torch.zeros writes them
        return torch.from_numpy(np.zeros(tensor.nbytes, np.uint8)).view(tensor.dtype).view(tensor.shape)
    return tensor_parallel.empty_like(tensor, device)


@torch.no_grad()
def code_to_device(model) -> None:
    """The counterpart of :func:`to_device` for a model outside transformers.

    Tensors with values keep them (``code_models.build``). Other parameters become small random numbers. Other buffers,
    and tensors that are plain attributes of a module, become ones.
    """
    on_meta = {name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta}
    code_models.replace_tensors(model, lambda tensor: torch.empty_like(tensor, device="cuda") if tensor.is_meta
                                else tensor.to("cuda"))
    for name, parameter in model.named_parameters():
        if name in on_meta:
            parameter.normal_(std=WEIGHT_SCALE)
    for name, buffer in model.named_buffers():
        if name in on_meta:
            buffer.fill_(1)
    for module in model.modules():
        attributes = {name: tensor for name, tensor in vars(module).items()
                      if isinstance(tensor, torch.Tensor) and tensor.is_meta}
        vars(module).update({name: torch.ones_like(tensor, device="cuda") for name, tensor in attributes.items()})


def host_batch(inputs: Any, workload: Workload) -> dict[str, torch.Tensor]:
    """The micro-batch of the trace on the CPU: its true integers, and ones for pixels."""
    loss = "" if workload.loss == "model" else workload.loss
    return on_host(inputs.batch(shape_of(workload), workload.padding, loss))


def on_host(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The batch with ones in place of meta tensors."""
    return {name: torch.ones(tensor.shape, dtype=tensor.dtype) if tensor.is_meta else tensor
            for name, tensor in batch.items()}
