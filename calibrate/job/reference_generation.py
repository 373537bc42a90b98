"""The reference loop of inference: the real model and transformers' own ``generate`` on this process's CUDA device.

The trace follows the same calls (``predictor.trace.generation``). Each turn of a conversation is one call with the
caller's cache. Prompt and reply of a turn are freed before the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from calibrate.job import quantized, reference_loop, single_rank
from predictor.events.events import Moment
from predictor.jobs import inference_job
from predictor.model import models, parser
from predictor.trace import generation
from predictor.trace.inputs import inputs_of
from predictor.workload.generation import turns
from predictor.workload.workload import Workload


@torch.no_grad()
def run(workload: Workload, enter: Callable[[Moment, int], None],
        built: Callable[[Any], None] | None = None) -> None:
    """Generate a reply to each turn. ``enter(moment, turn)`` is called at each boundary (start-up is turn 0).

    Args:
        workload: a workload with ``mode`` inference.
        enter: called at each boundary.
        built: called with the model before anything is on the device.

    Raises:
        InputError: a turn has no room for its images.
        torch.OutOfMemoryError: as PyTorch raises it.
    """
    config = models.find(workload.model)
    model = inference_job.build(workload)
    inputs = inputs_of(config, model, workload.image_sizes, workload.video_frames, workload.dtype)
    calls = []
    for turn in turns(workload):
        shape = replace(inference_job.shape_of(workload, turn), sequence=turn.tokens)
        facts = parser.describe(model, inputs.tokens_among(1), inputs.image_tokens(shape))
        inference_job.check_room(workload, turn, facts)
        prompt = generation.prompt(reference_loop.on_host(inputs.batch(shape, "none")), turn.past)
        calls.append((prompt, inference_job.generation_of(workload, turn, turn.new_tokens)))
    reference_loop.choose_attention(workload.sdpa_backend)
    if built:
        built(model)
    enter(Moment.INIT, 0)
    if workload.quantization:
        model = quantized.load(workload)
        if built:
            built(model)
    else:
        reference_loop.to_device(model)
    generation.prepare(model)
    cache = generation.new_cache(model) if workload.conversation else None
    for number, (prompt, generation_settings) in enumerate(calls, 1):
        single_rank.settle()
        enter(Moment.PREFILL, number)
        batch = {name: tensor.to("cuda") for name, tensor in prompt.items()}

        def forward_begins(forward: int, number: int = number) -> None:
            if forward == 1:
                enter(Moment.DECODE, number)

        ids = generation.reply(model, batch, generation_settings, cache, forward_begins)
        del ids, batch
    torch.cuda.synchronize()
