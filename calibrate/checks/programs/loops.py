"""Training loops as people write them, on batches that are all alike; what PyTorch's allocator reserved at most.

The first argument is a JSON file: ``workload`` (its keys) and ``loop``, one of :data:`LOOPS`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from calibrate.probes import device_query

STEPS = 12
Tensors = Mapping[str, Any]


def trained(task: Mapping[str, Any]) -> dict[str, Any]:
    """Trains :data:`STEPS` steps in a loop, and returns the peaks."""
    from calibrate.checks.programs import counters
    from calibrate.emulator import host_values
    from calibrate.job import reference_loop
    from predictor.model.request import Request
    from predictor.trace.inputs import inputs_of
    from predictor.workload.workload import Workload

    host_values.install()
    workload = Workload.from_mapping(task["workload"])
    request = Request.of(workload)
    assert request.config is not None  # a workload with a model
    model = reference_loop.build_model(workload)
    made = inputs_of(request.config, model, workload.image_sizes, workload.video_frames, workload.dtype)
    batch = made.batch(request.shape, workload.padding)
    reference_loop.choose_attention(workload.sdpa_backend)
    model = reference_loop.placed(model, workload, None)
    LOOPS[task["loop"]](model, reference_loop.on_host(batch), made.options)
    return counters.about() | counters.counted()


def trainer(model: Any, batch: Tensors, options: Tensors) -> None:
    """Hugging Face's Trainer, which logs each step."""
    import torch
    from transformers import Trainer, TrainingArguments

    model.config.use_cache = False
    model.config.get_text_config().use_cache = False  # the calls of the other loops say so
    size = next(iter(batch.values())).shape[0]
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            output_dir=directory, per_device_train_batch_size=size, max_steps=STEPS, report_to="none",
            save_strategy="no", logging_steps=1, optim="adamw_torch_fused", remove_unused_columns=False,
            dataloader_pin_memory=False)
        samples = torch.utils.data.TensorDataset(torch.zeros(STEPS * size, 1))
        Trainer(model=model, args=arguments, train_dataset=samples, data_collator=lambda _: dict(batch)).train()


def script(model: Any, batch: Tensors, options: Tensors, *, ahead: bool = False, keeps_losses: bool = False) -> None:
    """A plain script: each step brings its batch, and the output lives until the next one replaces it.

    Args:
        ahead: move the next batch to the GPU before the step of the last one.
        keeps_losses: collect the losses as tensors, and print their mean in the end.
    """
    import torch

    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5, fused=True)
    losses = []

    def moved() -> Iterator[dict[str, Any]]:
        for _ in range(STEPS):
            yield {name: tensor.to("cuda") for name, tensor in batch.items()}
        yield {}

    batches = moved()
    following = next(batches)
    for _ in range(STEPS):
        inputs = following
        if ahead:
            following = next(batches)
        outputs = model(**inputs, **options)
        loss = outputs.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach() if keeps_losses else loss.item())
        if not ahead:
            following = next(batches)
    print(sum(map(float, losses)) / STEPS, file=sys.stderr)


LOOPS: Mapping[str, Callable[[Any, Tensors, Tensors], None]] = {
    "Hugging Face's Trainer": trainer, "a script": script,
    "a script, the next batch loaded ahead": partial(script, ahead=True),
    "a script that keeps its losses": partial(script, keeps_losses=True)}


if __name__ == "__main__":
    device_query.print_answer(partial(trained, json.loads(Path(sys.argv[1]).read_text())))
