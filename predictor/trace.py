"""One forward, loss and backward of a workload's model on meta tensors, as the GPU would allocate it."""

from __future__ import annotations

import gc

import torch

from predictor import attention, operators
from predictor.events import Moment
from predictor.parser import image_extent
from predictor.places import Places
from predictor.recorder import Recorder, Recording
from predictor.sizes import Shape
from predictor.twins import Twins


class Tracer(Recorder):
    """The recorder on the meta device: index values are real, and CUDA's own allocations are added."""

    def __init__(self, place) -> None:
        super().__init__(place)
        self.twins = Twins()
        self._handles: set[Moment] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name
        read = operators.READS.get(name)
        if read is not None:
            known, value = read(self.twins, args, kwargs)
            if known:
                return value
        out = func(*args, **kwargs)
        results = [leaf for leaf in (out if isinstance(out, (tuple, list)) else (out,))
                   if isinstance(leaf, torch.Tensor)]
        self.twins.follow(func, args, kwargs, results)
        if name in operators.MATRIX_PRODUCTS and self.moment not in self._handles:
            self._handles.add(self.moment)  # autograd's device thread has a cuBLAS handle of its own
            self.allocate(("cublas_workspace", ()), name, "workspace")
        temporaries = operators.TEMPORARIES.get(name, operators.none)(args, kwargs, results)
        rows = [self.allocate(size, name, "workspace") for size in temporaries]
        for result in results:
            self.watch(result, name)
        for row in reversed(rows):
            self.free(row)
        return out


def trace(model, facts, shape: Shape, *, padding: str, sdpa_backend: str) -> Recording:
    """Record one micro-step of the reference loop at a shape, on meta tensors."""
    places = Places(model)
    tracer = Tracer(places)
    batch = make_batch(model, facts, shape, padding, tracer.twins)
    with attention.as_cuda_chooses(sdpa_backend):
        return record_micro_step(model, batch, tracer, places)


def record_micro_step(model, batch: dict[str, torch.Tensor], recorder: Recorder, places: Places) -> Recording:
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
        with places.active(), recorder:
            loss = model(**batch, use_cache=False).loss
            recorder.moment, places.in_backward = Moment.BACKWARD, True
            loss.backward()
            del loss
            return recorder.closed()
    finally:
        gc.enable()
        for hook in hooks:
            hook.remove()
        for parameter in model.parameters():
            parameter.grad = None


def make_batch(model, facts, shape: Shape, padding: str, twins: Twins) -> dict[str, torch.Tensor]:
    """Inputs of the reference loop: ids and labels int64 [batch, sequence], pixels [images, C, H, W].

    Each sample begins with one text token, then its images, then text.
    """
    images_per_sample = shape.images // shape.batch
    token = model.config.image_token_id
    ids = torch.full((shape.batch, shape.sequence), 1)
    ids[:, 1 : 1 + images_per_sample * facts.tokens_per_image] = token
    batch = {"input_ids": ids, "labels": torch.where(ids == token, -100, ids)}
    if padding == "right":
        mask = torch.ones_like(ids)
        mask[:, -1] = 0
        batch["attention_mask"] = mask
    on_meta = {}
    for name, values in batch.items():
        on_meta[name] = torch.empty_like(values, device="meta")
        twins.adopt(on_meta[name], values)
    if shape.images:
        on_meta["pixel_values"] = torch.empty(shape.images, *image_extent(model.config), dtype=model.dtype, device="meta")
    return on_meta
