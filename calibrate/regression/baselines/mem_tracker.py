"""The estimate of PyTorch's ``torch.distributed._tools.mem_tracker.MemTracker``, run over one step on fake tensors.

Unchanged (PyTorch 2.11), MemTracker cannot run a LLaVA with frozen parameters, for three reasons. This module works
around each.

- ``_track_module_params_and_buffers`` hooks every parameter, which fails for a frozen one (``Tensor.register_hook``).
  Frozen parameters are registered as already hooked.
- transformers 5.17 compares the number of image tokens with the number of image features
  (``LlavaModel.get_placeholder_mask``). Fake tensors have no values, so the comparison is left out.
- Without a GPU, the backward pass of fake CUDA tensors fails ("hasPrimaryContext"). The tensors are fake CPU tensors
  instead. Kernels are chosen as on a CPU, and sizes are not rounded to 512 bytes.

The first step creates AdamW's moments, so it runs before tracking begins. The second step is like every later one.
"""

from __future__ import annotations

import types
from functools import lru_cache

from calibrate.regression.baselines.baseline import Baseline, Estimate, not_installed
from calibrate.regression.baselines.model_under_test import shape_of, single
from predictor.common.errors import InputError
from predictor.model import models
from predictor.workload.optimizers import OPTIMIZERS
from predictor.workload.workload import Workload

LONGEST_REASON = 160
"""Number of characters of an error message that are kept."""


def estimate(workload: Workload) -> Estimate:
    """MemTracker's peak in bytes of one process that holds all states.

    Raises:
        InputError: the model cannot be found or built.
    """
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        return not_installed(error, "trace")
    return tracked(single(workload))


@lru_cache(maxsize=64)
def tracked(workload: Workload) -> Estimate:
    """The peak of one micro-step and optimizer step. It does not depend on degree, rank or engine."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    from calibrate.job.reference_loop import build_model
    from predictor.trace.inputs import Inputs

    model = build_model(workload)
    inputs = Inputs(models.find(workload.model), model, workload.image_sizes)
    shapes = inputs.batch(shape_of(workload), workload.padding)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            model.tie_weights()
            model.model.get_placeholder_mask = types.MethodType(_mask, model.model)
            optimizer = _optimizer(model, workload)
            batch = _batch(shapes)
            _step(model, optimizer, batch, inputs.options)
            tracker = MemTracker()
            tracker.track_external(model, optimizer, *batch.values())
            for parameter in model.parameters():
                if not parameter.requires_grad:
                    tracker._param_to_grad_hook_handles[parameter] = (_Handle(), _Handle())
            with tracker:
                _step(model, optimizer, batch, inputs.options)
            peak = tracker.get_tracker_snapshot("peak")
    except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        return Estimate(None, f"MemTracker cannot run this model: {type(error).__name__}: {reason}")
    return Estimate(int(peak[torch.device("cpu")]["Total"]))


def _step(model, optimizer, batch: dict, options: dict) -> None:
    """Forward, backward and optimizer step, in the order of the reference loop."""
    loss = model(**batch, **options).loss
    loss.backward()
    del loss
    optimizer.step()
    optimizer.zero_grad()


def _optimizer(model, workload: Workload):
    """Builds the workload's optimizer.

    Raises:
        InputError: it is not one of PyTorch's.
    """
    entry = OPTIMIZERS[workload.optim]
    if not entry.implementation.startswith("torch."):
        raise InputError(f"MemTracker: optim {workload.optim} does not run on fake tensors")
    flags = entry.arguments or {"foreach": True}  # PyTorch's default for CUDA tensors
    return entry.load()([parameter for parameter in model.parameters() if parameter.requires_grad], **flags)


def _batch(shapes: dict) -> dict:
    """Inputs with the shapes and dtypes of the reference loop's."""
    import torch

    return {name: torch.ones(tensor.shape, dtype=tensor.dtype) for name, tensor in shapes.items()}


def _mask(llava, input_ids, inputs_embeds, image_features):
    """``LlavaModel.get_placeholder_mask`` without the comparison."""
    return (input_ids == llava.config.image_token_id).unsqueeze(-1)


class _Handle:
    """Stands for the handle of a hook that was never registered."""

    def remove(self) -> None:
        """Does nothing."""


BASELINE = Baseline(
    name="MemTracker",
    source="torch.distributed._tools.mem_tracker.MemTracker on fake CPU tensors, called; frozen parameters and the "
           "count of image tokens helped over",
    counts="parameters, gradients, AdamW's states, activations and temporaries of one training step, in order",
    does_not_count="ZeRO: it is one process with every state, without fp32 master weights, buckets or partitions; "
                   "CUDA's kernels and workspaces; the allocator",
    estimate=estimate,
    slow=True,
)
