"""Traces a model's forward, loss and backward on meta tensors, with the allocations of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.amp.grad_scaler import GradScaler

from predictor.events.events import Moment
from predictor.model.code_models import loss_of
from predictor.model.quantization import row_maxima
from predictor.model.tensor_parallel import local_part
from predictor.trace import autocast, operators
from predictor.trace.activation_offload import on_host
from predictor.trace.cuda_paths import REPLACEMENTS, RESULTS, as_on_cuda
from predictor.trace.fsdp2_hooks import Fsdp2Hooks
from predictor.trace.garbage_collection import collection_paused
from predictor.trace.generation import prompt, record
from predictor.trace.host_values import HostValues
from predictor.trace.known_results import KnownResults
from predictor.trace.module_tracker import ModuleTracker
from predictor.trace.recorder import Recorder, Recording, has_own_dispatch
from predictor.trace.value_reads import READS, UNKNOWN
from predictor.trace.zero3_hooks import Zero3Hooks
from predictor.workload.generation import Generation

MASKED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
"""Operators that accept boolean masks as indices."""


class Tracer(Recorder):
    """A recorder for the meta device: integers have real values, and CUDA's temporaries and workspaces are added."""

    def __init__(self, place) -> None:
        super().__init__(place)
        self.host_values = HostValues()
        self._known = KnownResults()
        self._lasting_workspaces: set[tuple[str, bool]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(map(has_own_dispatch, types)):
            return NotImplemented
        kwargs = kwargs or {}
        name = func._schema.name
        if name in READS:
            answer = READS[name](self.host_values, args, kwargs)
            if answer is not UNKNOWN:
                self._play(name, args, kwargs, answer)
                return answer
        func, args = self.as_without_mode(func, args)
        name = func._schema.name
        if name in MASKED:
            args = (args[0], self._positions(args[1]), *args[2:])
        out = REPLACEMENTS[name](*args, **kwargs) if name in REPLACEMENTS else self._known.call(func, args, kwargs)
        if name in RESULTS:
            out = RESULTS[name](args, out)
        self.host_values.follow(func, args, kwargs, _tensors(out))
        self._play(name, args, kwargs, out)
        return out

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """As :meth:`Recorder.unseen`; workspaces that the block allocates are allocated again later."""
        workspaces = set(self._lasting_workspaces)
        with super().unseen():
            yield
        self._lasting_workspaces = workspaces

    def _positions(self, indices) -> list[torch.Tensor | None]:
        """Indices, with each mask replaced by the positions of its true values (ATen/native/IndexingUtils.h,
        expandTensors)."""
        expanded: list[torch.Tensor | None] = []
        for index in indices:
            if index is None or index.dtype != torch.bool or not index.is_meta:
                expanded.append(index)
                continue
            places = READS["aten::nonzero"](self.host_values, (index,), {})
            self._play("aten::nonzero", (index,), {}, places)
            expanded += places.unbind(1)
        return expanded

    def _play(self, name: str, args, kwargs, out) -> None:
        """Records the allocations and frees of an operator call on CUDA."""
        tensors = _tensors(out)

        def results(*first, size=None) -> None:
            for tensor in first or tensors:
                self.watch(tensor, name, size=size)

        def once(function: str) -> None:
            thread = self.moment is Moment.BACKWARD  # autograd's device thread has its own library handles
            if (function, thread) not in self._lasting_workspaces:
                self._lasting_workspaces.add((function, thread))
                self.allocate((function, ()), name, "workspace")

        play = operators.TABLE.get(name, operators.results_only)
        play(operators.Call(args, kwargs, tensors, lambda size: self.allocate(size, name, "workspace"), self.free,
                            results, once))


def _tensors(out) -> list[torch.Tensor]:
    return [leaf for leaf in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(leaf, torch.Tensor)]


class Loop(NamedTuple):
    """The loop around the model of a traced step.

    Attributes:
        sharded: whether ZeRO-3's hooks run.
        wrapped: names of FSDP2's units (:func:`predictor.model.fsdp.units`); empty: without FSDP2.
        keeps_outputs: whether the model's output lives through backward.
    """

    sharded: bool = False
    wrapped: tuple[str, ...] = ()
    keeps_outputs: bool = False


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
        hooks = Zero3Hooks(model, tracer) if loop.sharded else \
            Fsdp2Hooks(model, tracer, loop.wrapped) if loop.wrapped else None
        return record_micro_step(model, batch | options, tracer, places, hooks, scaler,
                                 keeps_outputs=loop.keeps_outputs)


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
    with as_on_cuda(sdpa_backend), on_host(tracer), casts:
        yield tracer, places, batch


def record_micro_step(model, batch: dict[str, Any], recorder: Recorder, places: ModuleTracker,
                      engine_hooks: Zero3Hooks | Fsdp2Hooks | None = None,
                      scaler: GradScaler | None = None, *, keeps_outputs: bool = False) -> Recording:
    """Runs forward, loss and backward of the reference loop under a recorder.

    The model's output is freed before backward, unless the loop keeps it, and gradients are kept. Buffers that the
    recording does not free are inputs, gradients (listed in ``gradients``), what the kept output holds (listed in
    ``outputs``) or workspaces that are never freed.
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
            if not keeps_outputs:
                del output
            if engine_hooks:
                engine_hooks.backward()
            recorder.moment, places.in_backward = Moment.BACKWARD, True
            (scaler.scale(loss) if scaler else loss).backward()
            returned = len(recorder.recording.events)
            if keeps_outputs:
                del output
            del loss
            if keeps_outputs:
                recorder.frees_as_outputs(returned)
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


def call_on_meta(function: Callable, batch: dict[str, torch.Tensor]) -> Any:
    """Calls a function of the model with a batch on meta, and returns its result."""
    tracer = Tracer(lambda: ("", False))
    with torch.no_grad(), as_on_cuda("math"), tracer:
        return function(**on_meta(batch, tracer.host_values))
