"""One forward, loss and backward of a workload's model on meta tensors, as the GPU would allocate it."""

from __future__ import annotations

import gc
from contextlib import nullcontext

import torch

from predictor import autocast, operators
from predictor.cuda_paths import RESULTS, as_on_cuda
from predictor.events import Moment
from predictor.host_copies import on_host
from predictor.parser import image_extent
from predictor.places import Places
from predictor.reads import READS, UNKNOWN
from predictor.recorder import Recorder, Recording
from predictor.sharded import Sharded
from predictor.sizes import Shape
from predictor.twins import Twins
from predictor.wrapped import Wrapped


class Tracer(Recorder):
    """The recorder on the meta device: index values are real, and CUDA's own allocations are added."""

    def __init__(self, place) -> None:
        super().__init__(place)
        self.twins = Twins()
        self._made: set[tuple[str, Moment]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name
        if name in READS:
            answer = READS[name](self.twins, args, kwargs)
            if answer is not UNKNOWN:
                self._play(name, args, kwargs, answer)
                return answer
        func, args = self.as_without_mode(func, args)
        name = func._schema.name
        out = func(*args, **kwargs)
        if name in RESULTS:
            out = RESULTS[name](out)
        self.twins.follow(func, args, kwargs, _tensors(out))
        self._play(name, args, kwargs, out)
        return out

    def _play(self, name: str, args, kwargs, out) -> None:
        """Record the call as it would go on CUDA."""
        tensors = _tensors(out)

        def results(*first, size=None) -> None:
            for tensor in first or tensors:
                self.watch(tensor, name, size=size)

        def once(function: str) -> None:
            if (function, self.moment) not in self._made:  # autograd's device thread has handles of its own
                self._made.add((function, self.moment))
                self.allocate((function, ()), name, "workspace")

        play = operators.TABLE.get(name, operators.results_only)
        play(operators.Call(args, kwargs, tensors, lambda size: self.allocate(size, name, "workspace"), self.free,
                            results, once))


def _tensors(out) -> list[torch.Tensor]:
    return [leaf for leaf in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(leaf, torch.Tensor)]


def trace(model, facts, shape: Shape, *, padding: str, sdpa_backend: str, sharded: bool = False,
          evaluation: bool = False, wrapped: tuple[str, ...] = (), mixed_precision: str = "none") -> Recording:
    """Record one micro-step of the reference loop at a shape, on meta tensors.

    Args:
        sharded: as under ZeRO-3.
        evaluation: its evaluation instead.
        wrapped: as under FSDP2 (:func:`predictor.fsdp.units`).
    """
    places = Places(model)
    tracer = Tracer(places)
    batch = make_batch(model, facts, shape, padding, tracer.twins)
    casts = nullcontext() if mixed_precision == "none" else autocast.on_meta(model)
    scaler = torch.amp.GradScaler("meta") if mixed_precision == "fp16" else None
    with as_on_cuda(sdpa_backend), on_host(tracer), casts:
        if evaluation:
            return record_evaluation(model, batch, tracer, places)
        hooks = Sharded(model, tracer) if sharded else Wrapped(model, tracer, wrapped) if wrapped else None
        return record_micro_step(model, batch, tracer, places, hooks, scaler)


def record_micro_step(model, batch: dict[str, torch.Tensor], recorder: Recorder, places: Places,
                      sharded: Sharded | Wrapped | None = None,
                      scaler: torch.amp.GradScaler | None = None) -> Recording:
    """Run forward, loss and backward of the reference loop under a recorder.

    The output object dies before backward, gradients stay: what the recording does not free is an
    input, a gradient (listed in ``gradients``) or stays for good.
    """
    recorder.ignore([*model.parameters(), *model.buffers()])
    recorder.moment = Moment.FORWARD
    for name, tensor in batch.items():
        recorder.watch(tensor, name, role="input")
    hooks = [parameter.register_post_accumulate_grad_hook(
                lambda p, name=name: recorder.gradient_ready(name, p.grad))
             for name, parameter in model.named_parameters() if parameter.requires_grad]
    gc.collect()
    gc.disable()  # a collection in the middle would move deaths to arbitrary places
    try:
        with places.active(), sharded.active() if sharded else nullcontext(), recorder:
            loss = model(**batch, use_cache=False).loss
            if sharded:
                sharded.backward()
            recorder.moment, places.in_backward = Moment.BACKWARD, True
            (scaler.scale(loss) if scaler else loss).backward()
            del loss
            if sharded:
                recorder.recording.owners = sharded.owners()
            return recorder.closed()
    finally:
        gc.enable()
        for hook in hooks:
            hook.remove()
        for parameter in model.parameters():
            parameter.grad = None


def record_evaluation(model, batch: dict[str, torch.Tensor], recorder: Recorder, places: Places) -> Recording:
    """Run the forward of the reference loop's evaluation; what the recording does not free is an input."""
    recorder.ignore([*model.parameters(), *model.buffers()])
    recorder.moment = Moment.EVALUATION
    for name, tensor in batch.items():
        recorder.watch(tensor, name, role="input")
    model.eval()
    gc.collect()
    gc.disable()
    try:
        with places.active(), recorder, torch.no_grad():
            loss = model(**batch, use_cache=False).loss
            del loss
            return recorder.closed()
    finally:
        gc.enable()


def make_batch(model, facts, shape: Shape, padding: str, twins: Twins) -> dict[str, torch.Tensor]:
    """Inputs of the reference loop: ids and labels int64 [batch, sequence], pixels [images, C, H, W].

    Each sample begins with one text token, then its images, then text; the first samples have what does not divide.
    Packed samples are one row, with position ids that begin anew for each, as transformers' DataCollatorWithFlattening
    makes it.
    """
    images_per_sample, more = divmod(shape.images, shape.batch)
    token = model.config.image_token_id
    ids = torch.full((shape.batch, shape.sequence), 1 if token != 1 else 0)
    ids[:, 1 : 1 + images_per_sample * facts.tokens_per_image] = token
    ids[:more, 1 : 1 + (images_per_sample + 1) * facts.tokens_per_image] = token
    batch = {"input_ids": ids, "labels": torch.where(ids == token, -100, ids)}
    if padding == "right":
        mask = torch.ones_like(ids)
        mask[:, -1] = 0
        batch["attention_mask"] = mask
    if padding == "packed":
        batch["labels"][:, 0] = -100
        batch["position_ids"] = torch.arange(shape.sequence).expand(shape.batch, -1)
        batch = {name: values.reshape(1, -1) for name, values in batch.items()}
    on_meta = {}
    for name, values in batch.items():
        on_meta[name] = torch.empty_like(values, device="meta")
        twins.adopt(on_meta[name], values)
    if shape.images:
        on_meta["pixel_values"] = torch.empty(shape.images, *image_extent(model.config), dtype=model.dtype,
                                              device="meta")
    return on_meta
