"""One forward, loss and backward of a workload's model on meta tensors, as the GPU would allocate it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from predictor.events.events import Moment
from predictor.model.code_models import loss_of
from predictor.model.quantization import row_maxima
from predictor.model.tensor_parallel import local
from predictor.trace import autocast, operators
from predictor.trace.activation_offload import on_host
from predictor.trace.cuda_paths import INSTEAD, RESULTS, as_on_cuda
from predictor.trace.fsdp2_hooks import Wrapped
from predictor.trace.garbage_collection import collected
from predictor.trace.generation import prompt, record
from predictor.trace.host_values import Twins
from predictor.trace.module_tracker import Places
from predictor.trace.recorder import Recorder, Recording, unpacks_itself
from predictor.trace.value_reads import READS, UNKNOWN
from predictor.trace.zero3_hooks import Sharded
from predictor.workload.conversation import Generation

MASKED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
"""Operators that take masks for indices."""


class Tracer(Recorder):
    """The recorder on the meta device: index values are real, and CUDA's own allocations are added."""

    def __init__(self, place) -> None:
        super().__init__(place)
        self.twins = Twins()
        self._made: set[tuple[str, bool]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(map(unpacks_itself, types)):
            return NotImplemented
        kwargs = kwargs or {}
        name = func._schema.name
        if name in READS:
            answer = READS[name](self.twins, args, kwargs)
            if answer is not UNKNOWN:
                self._play(name, args, kwargs, answer)
                return answer
        func, args = self.as_without_mode(func, args)
        name = func._schema.name
        if name in MASKED:
            args = (args[0], self._positions(args[1]), *args[2:])
        out = INSTEAD.get(name, func)(*args, **kwargs)
        if name in RESULTS:
            out = RESULTS[name](args, out)
        self.twins.follow(func, args, kwargs, _tensors(out))
        self._play(name, args, kwargs, out)
        return out

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """As the recorder's; workspaces that it makes will be made again."""
        made = set(self._made)
        with super().unseen():
            yield
        self._made = made

    def _positions(self, indices) -> list[torch.Tensor | None]:
        """Indices with the places of a mask's true values in its stead (ATen/native/IndexingUtils.h, expandTensors)."""
        expanded: list[torch.Tensor | None] = []
        for index in indices:
            if index is None or index.dtype != torch.bool or not index.is_meta:
                expanded.append(index)
                continue
            places = READS["aten::nonzero"](self.twins, (index,), {})
            self._play("aten::nonzero", (index,), {}, places)
            expanded += places.unbind(1)
        return expanded

    def _play(self, name: str, args, kwargs, out) -> None:
        """Record the call as it would go on CUDA."""
        tensors = _tensors(out)

        def results(*first, size=None) -> None:
            for tensor in first or tensors:
                self.watch(tensor, name, size=size)

        def once(function: str) -> None:
            thread = self.moment is Moment.BACKWARD  # autograd's device thread has handles of its own
            if (function, thread) not in self._made:
                self._made.add((function, thread))
                self.allocate((function, ()), name, "workspace")

        play = operators.TABLE.get(name, operators.results_only)
        play(operators.Call(args, kwargs, tensors, lambda size: self.allocate(size, name, "workspace"), self.free,
                            results, once))


def _tensors(out) -> list[torch.Tensor]:
    return [leaf for leaf in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(leaf, torch.Tensor)]


def trace(model, batch: dict[str, torch.Tensor], options: dict[str, bool], *, sdpa_backend: str,
          sharded: bool = False, wrapped: tuple[str, ...] = (), mixed_precision: str = "none") -> Recording:
    """Record one micro-step of the reference loop, on meta tensors.

    Args:
        batch: what the model is fed (``inputs.Inputs.batch``).
        options: what it is called with besides.
        sharded: as under ZeRO-3.
        wrapped: as under FSDP2 (:func:`predictor.workload.fsdp.units`).
    """
    scaler = torch.amp.GradScaler("meta") if mixed_precision == "fp16" else None
    with _on_cuda(model, batch, sdpa_backend, mixed_precision) as (tracer, places, batch):
        hooks = Sharded(model, tracer) if sharded else Wrapped(model, tracer, wrapped) if wrapped else None
        return record_micro_step(model, batch | options, tracer, places, hooks, scaler)


def trace_evaluation(model, batch: dict[str, torch.Tensor], *, sdpa_backend: str,
                     mixed_precision: str = "none") -> Recording:
    """Record an evaluation after the steps, likewise."""
    with _on_cuda(model, batch, sdpa_backend, mixed_precision) as (tracer, places, batch):
        return record_evaluation(model, batch, tracer, places)


def trace_generation(model, batch: dict[str, torch.Tensor], generation: Generation, past: int, *, sdpa_backend: str,
                     mixed_precision: str = "none") -> Recording:
    """Record a call of ``generate``, likewise; ``past`` are the tokens that its cache holds before."""
    with _on_cuda(model, prompt(batch, past), sdpa_backend, mixed_precision) as (tracer, places, batch):
        return record(model, batch, generation, past, tracer, places)


@contextmanager
def _on_cuda(model, batch: dict[str, torch.Tensor], sdpa_backend: str,
             mixed_precision: str) -> Iterator[tuple[Tracer, Places, dict[str, torch.Tensor]]]:
    """While the block runs, meta tensors take CUDA's paths; the batch is given on meta."""
    places = Places(model)
    tracer = Tracer(places)
    batch = on_meta(batch, tracer.twins)
    casts = nullcontext() if mixed_precision == "none" else autocast.on_meta(model)
    with as_on_cuda(sdpa_backend), on_host(tracer), casts:
        yield tracer, places, batch


def record_micro_step(model, batch: dict[str, Any], recorder: Recorder, places: Places,
                      sharded: Sharded | Wrapped | None = None,
                      scaler: torch.amp.GradScaler | None = None) -> Recording:
    """Run forward, loss and backward of the reference loop under a recorder.

    The output object dies before backward, gradients stay: what the recording does not free is an
    input, a gradient (listed in ``gradients``) or stays for good.
    """
    recorder.ignore(map(local, (*model.parameters(), *model.buffers(), *row_maxima(model))))
    recorder.moment = Moment.FORWARD
    recorder.watch_inputs(batch)
    hooks = [parameter.register_post_accumulate_grad_hook(
                lambda p, name=name: recorder.gradient_ready(name, local(p.grad)))
             for name, parameter in model.named_parameters() if parameter.requires_grad]
    try:
        with collected(), places.active(), sharded.active() if sharded else nullcontext(), recorder:
            loss = loss_of(model(**batch))
            if sharded:
                sharded.backward()
            recorder.moment, places.in_backward = Moment.BACKWARD, True
            (scaler.scale(loss) if scaler else loss).backward()
            del loss
            if sharded:
                recorder.recording.owners = sharded.owners()
            return recorder.closed()
    finally:
        for hook in hooks:
            hook.remove()
        for parameter in model.parameters():
            parameter.grad = None


def record_evaluation(model, batch: dict[str, Any], recorder: Recorder, places: Places) -> Recording:
    """Run the forward of the reference loop's evaluation; what the recording does not free is an input."""
    recorder.ignore(map(local, (*model.parameters(), *model.buffers())))
    recorder.moment = Moment.EVALUATION
    recorder.watch_inputs(batch)
    prepare_evaluation(model)
    with collected(), places.active(), recorder, torch.no_grad():
        loss = loss_of(model(**batch))
        del loss
        return recorder.closed()


def prepare_evaluation(model) -> None:
    """Leaves the model as Hugging Face's Trainer evaluates it: ``use_cache`` is false in its outer configuration alone
    (transformers 5.17, trainer.py, ``Trainer.__init__``), so the language model of a multimodal one keeps keys and
    values of every layer until its output dies."""
    model.eval()
    if hasattr(model, "config"):
        model.config.use_cache = False


def on_meta(batch: dict[str, torch.Tensor], twins: Twins) -> dict[str, torch.Tensor]:
    """The same batch on meta; the twins keep the values."""
    moved = {name: torch.empty_like(values, device="meta") for name, values in batch.items()}
    for name, values in batch.items():
        twins.adopt(moved[name], torch.ones(values.shape, dtype=values.dtype) if values.is_meta else values)
    return moved


def ask(function: Callable, batch: dict[str, torch.Tensor]) -> Any:
    """What a function of the model says of a batch, on meta."""
    tracer = Tracer(lambda: ("", False))
    with torch.no_grad(), as_on_cuda("math"), tracer:
        return function(**on_meta(batch, tracer.twins))
