"""Traces a model's forward, loss and backward on meta tensors, with the allocations of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.amp.grad_scaler import GradScaler

from predictor.events.events import Moment
from predictor.model.code_models import loss_of
from predictor.model.fsdp import FlatUnits
from predictor.model.quantization import row_maxima
from predictor.model.tensor_parallel import local_part
from predictor.model.transformers_releases import cuda_branches
from predictor.trace import autocast
from predictor.trace.activation_offload import on_host
from predictor.trace.cuda_paths import as_on_cuda
from predictor.trace.fsdp1_hooks import Fsdp1Hooks
from predictor.trace.fsdp2_hooks import Fsdp2Hooks
from predictor.trace.garbage_collection import collection_paused
from predictor.trace.generation import prompt, record
from predictor.trace.host_values import HostValues
from predictor.trace.module_tracker import ModuleTracker
from predictor.trace.recorder import Recorder, Recording
from predictor.trace.tracer import Tracer
from predictor.trace.zero3_hooks import Zero3Hooks
from predictor.workload.generation import Generation


class Loop(NamedTuple):
    """The loop around the model of a traced step.

    Attributes:
        sharded: whether ZeRO-3's hooks run.
        wrapped: names of FSDP's units (:func:`predictor.model.fsdp.units`); empty: without FSDP.
        flat: how FSDP1 flattens the units' parameters; None: the units are FSDP2's.
    """

    sharded: bool = False
    wrapped: tuple[str, ...] = ()
    flat: FlatUnits | None = None


REFERENCE = Loop()


def trace(model, batch: dict[str, torch.Tensor], options: dict[str, bool], *, sdpa_backend: str,
          mixed_precision: str = "none", loop: Loop = REFERENCE) -> Recording:
    """Records one micro-step of the reference loop, on meta tensors.

    Args:
        batch: the model's inputs (``inputs.Inputs.batch``).
        options: further keyword arguments of the model.
        sdpa_backend: preferred kernel of scaled dot-product attention (``cuda_paths.KERNELS``).
        mixed_precision: ``none``, ``bf16`` or ``fp16``.
    """
    scaler = GradScaler("meta") if mixed_precision == "fp16" else None
    with _on_cuda(model, batch, sdpa_backend, mixed_precision) as (tracer, places, batch):
        hooks = _hooks(model, tracer, loop)
        return record_micro_step(model, batch | options, tracer, places, hooks, scaler)


def _hooks(model, tracer: Tracer, loop: Loop) -> Zero3Hooks | Fsdp1Hooks | Fsdp2Hooks | None:
    if loop.sharded:
        return Zero3Hooks(model, tracer)
    if loop.flat:
        return Fsdp1Hooks(model, tracer, loop.wrapped, loop.flat)
    return Fsdp2Hooks(model, tracer, loop.wrapped) if loop.wrapped else None


def trace_evaluation(model, batch: dict[str, torch.Tensor], *, sdpa_backend: str,
                     mixed_precision: str = "none") -> Recording:
    """Records an evaluation after the training steps; arguments are those of :func:`trace`."""
    with _on_cuda(model, batch, sdpa_backend, mixed_precision) as (tracer, places, batch):
        return record_evaluation(model, batch, tracer, places)


def trace_generation(model, batch: dict[str, torch.Tensor], generation: Generation, past: int, *, sdpa_backend: str,
                     mixed_precision: str = "none") -> Recording:
    """Records a call of ``generate``; ``past`` is the number of tokens in its cache before the call."""
    with _on_cuda(model, prompt(batch, past), sdpa_backend, mixed_precision) as (tracer, places, batch):
        return record(model, batch, generation, past, tracer, places)


@contextmanager
def _on_cuda(model, batch: dict[str, torch.Tensor], sdpa_backend: str,
             mixed_precision: str) -> Iterator[tuple[Tracer, ModuleTracker, dict[str, torch.Tensor]]]:
    """Makes meta tensors take CUDA's paths while the block runs; yields a tracer, and the batch on meta."""
    places = ModuleTracker(model)
    tracer = Tracer(places)
    batch = on_meta(batch, tracer.host_values)
    casts = nullcontext() if mixed_precision == "none" else autocast.on_meta(model)
    with as_on_cuda(sdpa_backend), cuda_branches(model), on_host(tracer), casts:
        yield tracer, places, batch


def record_micro_step(model, batch: dict[str, Any], recorder: Recorder, places: ModuleTracker,
                      engine_hooks: Zero3Hooks | Fsdp1Hooks | Fsdp2Hooks | None = None,
                      scaler: GradScaler | None = None) -> Recording:
    """Runs forward, loss and backward of the reference loop under a recorder.

    The model's output is freed before backward, and gradients are kept. Buffers that the recording does not free are
    inputs, gradients (listed in ``gradients``) or workspaces that are never freed. ``outputs`` lists what another loop
    keeps with the output: its tensors, also those that only backward frees here, and all that dies with it or with the
    loss.
    """
    recorder.ignore(map(local_part, (*model.parameters(), *model.buffers(), *row_maxima(model))))
    recorder.moment = Moment.FORWARD
    recorder.watch_inputs(batch)
    hooks = [parameter.register_post_accumulate_grad_hook(
                lambda p, name=name: recorder.gradient_ready(name, local_part(p.grad)))
             for name, parameter in model.named_parameters() if parameter.requires_grad]
    try:
        with collection_paused(), places.active(), engine_hooks.active() if engine_hooks else nullcontext(), recorder:
            output = model(**batch)
            loss = loss_of(output)
            held, forwarded = recorder.rows_in(output), len(recorder.recording.events)
            del output
            held += recorder.freed_since(forwarded)
            if engine_hooks:
                engine_hooks.backward()
            recorder.moment, places.in_backward = Moment.BACKWARD, True
            (scaler.scale(loss) if scaler else loss).backward()
            returned = len(recorder.recording.events)
            del loss
            last = recorder.freed_since(returned)  # with the loss, which the loop drops after the output
            died = {*recorder.freed_since(0)}.difference(last)  # the model itself may keep a tensor of its output
            recorder.recording.outputs = [row for row in dict.fromkeys(held) if row in died] + last
            if engine_hooks:
                recorder.recording.owners = engine_hooks.owners()
            return recorder.closed()
    finally:
        for hook in hooks:
            hook.remove()
        for parameter in model.parameters():
            parameter.grad = None


def record_evaluation(model, batch: dict[str, Any], recorder: Recorder, places: ModuleTracker) -> Recording:
    """Runs the forward of the reference loop's evaluation under a recorder; only inputs are not freed."""
    recorder.ignore(map(local_part, (*model.parameters(), *model.buffers())))
    recorder.moment = Moment.EVALUATION
    recorder.watch_inputs(batch)
    prepare_evaluation(model)
    with collection_paused(), places.active(), recorder, torch.no_grad():
        loss = loss_of(model(**batch))
        del loss
        return recorder.closed()


def prepare_evaluation(model) -> None:
    """Puts a model into the state in which Hugging Face's Trainer evaluates it.

    The Trainer sets ``use_cache`` to false only in the outer configuration (transformers 5.17, trainer.py,
    ``Trainer.__init__``). The language model of a multimodal model therefore keeps keys and values of every layer until
    its output is freed.
    """
    model.eval()
    if hasattr(model, "config"):
        model.config.use_cache = False


def on_meta(batch: dict[str, torch.Tensor], host_values: HostValues) -> dict[str, torch.Tensor]:
    """The same batch on meta; ``host_values`` receives its values."""
    moved = {name: torch.empty_like(values, device="meta") for name, values in batch.items()}
    for name, values in batch.items():
        host_values.adopt(moved[name], torch.ones(values.shape, dtype=values.dtype) if values.is_meta else values)
    return moved


class _Unrecorded(Tracer):
    """Gives integers their real values, and records nothing, which takes less time."""

    def _play(self, name: str, args, kwargs, tensors: list[torch.Tensor]) -> None:
        pass


def call_on_meta(function: Callable, batch: dict[str, torch.Tensor]) -> Any:
    """Calls a function of the model with a batch on meta, and returns its result."""
    tracer = _Unrecorded(lambda: ("", False))
    with torch.no_grad(), as_on_cuda("math"), tracer:
        return function(**on_meta(batch, tracer.host_values))
