"""Buffers of the measured model have the values with which transformers makes them."""

from __future__ import annotations

import torch

from calibrate.campaign import design
from calibrate.job import reference_loop
from predictor.jobs.dispatch import resolve


def test_a_sub_models_buffers_get_its_own_values():
    """LLaVA's own class does not know the position ids of its CLIP, which index a table."""
    model = reference_loop.build_model(resolve(design.workload(
        {"model": "llava-1.5-7b-2-2", "sequence_length": 1024}, gpu="h200")).workload)
    reference_loop.to_device(model, device="cpu")
    ids = [buffer for name, buffer in model.named_buffers() if name.endswith("embeddings.position_ids")]
    assert [torch.equal(each, torch.arange(577)[None]) for each in ids] == [True]
