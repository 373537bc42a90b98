"""The reference loop of inference: real model, transformers' own ``generate``, on whatever CUDA device the process has.

The trace follows the same calls (``predictor.trace.generation``). Of a conversation each turn is one call with the
caller's cache; prompt and reply of a turn are dropped before the next.
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
from predictor.workload.conversation import turns
from predictor.workload.workload import Workload


@torch.no_grad()
def run(workload: Workload, enter: Callable[[Moment, int], None],
        built: Callable[[Any], None] | None = None) -> None:
    """Generate a reply to each turn; ``enter(moment, turn)`` is called at each boundary (start-up is turn 0).

    Args:
        workload: with ``mode`` inference.
        enter: told of each boundary.
        built: told of the model before anything is on the device.

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
    for number, (prompt, wanted) in enumerate(calls, 1):
        single_rank.settle()
        enter(Moment.PREFILL, number)
        batch = {name: tensor.to("cuda") for name, tensor in prompt.items()}

        def begun(forward: int, number: int = number) -> None:
            if forward == 1:
                enter(Moment.DECODE, number)

        ids = generation.reply(model, batch, wanted, cache, begun)
        del ids, batch
    torch.cuda.synchronize()
