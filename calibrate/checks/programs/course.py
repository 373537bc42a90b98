"""A course of the reference loop: each micro-step has its own batch, and the counters are read after every step.

The first argument is a JSON file: ``workload`` (its keys), ``rank``, ``limit_bytes`` (what PyTorch may reserve on a
real GPU, or null; an emulated one has no more), ``empty_cache_steps`` (or null), ``held`` (how many batches are on the
GPU when a micro-step brings its own), and ``steps``, each a list of micro-batches with
``tokens`` (of each sample), ``images`` (of all), ``padding`` and ``pictures`` (sizes). ``evaluation``, if there is one,
has such batches, too, with which the model is evaluated after ``every`` steps.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrate.probes import device_query
from predictor.events.sizes import Shape

if TYPE_CHECKING:
    from predictor.trace.inputs import Inputs

NOW = ("requested_bytes.all.current", "allocated_bytes.all.current", "reserved_bytes.all.current", "num_alloc_retries")
"""The last columns of the rows; the first are the peaks of :mod:`calibrate.job.peaks`. Together they are the first of
:data:`predictor.course.simulate.COLUMNS`."""


def trained(task: Mapping[str, Any]) -> dict[str, Any]:
    """Trains, and returns the counters after start-up and after each step, up to an out-of-memory error."""
    import torch

    from calibrate.checks.programs import counters
    from calibrate.emulator import host_values, is_emulated
    from calibrate.job.job import limit_memory
    from calibrate.job.peaks import Counters

    host_values.install()
    torch.cuda.set_device(0)
    limit_memory(None if is_emulated() else task["limit_bytes"])
    peaks = Counters(0)
    refused: list[int] = []
    attach = torch._C._cuda_attach_out_of_memory_observer  # type: ignore[attr-defined]  # torch's stub lacks it
    attach(lambda _device, tried, _total, _free: refused.append(tried))
    rows: list[list[int]] = []
    at = [0, 0]
    error = None

    def note() -> None:
        highest, stats = peaks.take(), torch.cuda.memory_stats()
        rows.append([*highest.values(), *(stats[name] for name in NOW)])

    try:
        _train(task, note, at)
    except torch.OutOfMemoryError:
        note()
        error = {"step": at[0], "micro_step": at[1], "tried_to_allocate_bytes": refused[-1]}
    return counters.about() | {"rows": rows, "out_of_memory": error}


def _train(task: Mapping[str, Any], note: Callable[[], None], at: list[int]) -> None:
    import torch

    from calibrate.job import reference_loop, single_rank
    from calibrate.job.engines import ENGINES, Job
    from predictor.model import code_models, parser
    from predictor.model.request import Request
    from predictor.trace.inputs import inputs_of
    from predictor.workload.workload import Workload

    workload = Workload.from_mapping(task["workload"])
    model = reference_loop.build_model(workload)
    config = Request.of(workload).config
    assert config is not None  # a workload with a model

    @cache
    def inputs(sizes: tuple[tuple[int, int], ...]) -> Any:
        return inputs_of(config, model, sizes or workload.image_sizes, workload.video_frames, workload.dtype)

    def on_host(entry: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """The options and the tensors of a batch, which are made while the model is on meta."""
        one = inputs(tuple(map(tuple, entry["pictures"])))
        return one.options, (_packed if entry["padding"] == "packed" else _padded)(one, entry)

    first = inputs(())
    facts = parser.describe(model, first.tokens_among(1), first.image_tokens(Request.of(workload).shape))
    batches = [list(map(on_host, micro_steps)) for micro_steps in task["steps"]]
    evaluation = task.get("evaluation") or {"every": 1, "batches": []}
    evaluated = [tensors for _, tensors in map(on_host, evaluation["batches"])]
    reference_loop.choose_attention(workload.sdpa_backend)
    model = reference_loop.placed(model, workload, None)
    forward, backward, step = ENGINES[workload.engine](
        Job(workload, task["rank"], model, facts, partial(reference_loop.to_device, model)))
    note()
    every, held = task["empty_cache_steps"], deque[dict[str, Any]]()
    for number, micro_steps in enumerate(batches):
        for index, (options, tensors) in enumerate(micro_steps):
            at[:] = number + 1, index + 1
            single_rank.settle()
            held.append({name: tensor.to("cuda") for name, tensor in reference_loop.on_host(tensors).items()})
            if len(held) > task.get("held", 1):
                held.popleft()
            batch = held[-1]
            output = forward(**batch, **options)
            loss = code_models.loss_of(output)
            if workload.keep_outputs == "none":
                del output
            if every and number % every == 0:  # transformers 5.17, trainer.py, training_step
                torch.cuda.empty_cache()
            backward(loss)
            if workload.keep_outputs == "backward":
                del output
            if workload.keep_outputs != "next_forward":
                del loss
            step()
        due = (number + 1) % evaluation["every"] == 0
        _evaluate(model, forward if workload.engine == "deepspeed" else model, evaluated if due else [])
        note()


def _padded(inputs: Inputs, entry: Mapping[str, Any]) -> dict[str, Any]:
    """A batch whose samples are padded to the longest."""
    tokens = entry["tokens"]
    return inputs.batch(Shape(len(tokens), max(tokens), entry["images"]), entry["padding"])


def _packed(inputs: Inputs, entry: Mapping[str, Any]) -> dict[str, Any]:
    """A batch of one row with the samples one after the other, each with its own images."""
    import torch

    samples = [inputs.batch(Shape(1, length, images), "packed")
               for length, images in zip(entry["tokens"], entry["each"])]
    return {name: torch.cat([sample[name] for sample in samples if name in sample],
                            dim=0 if name == "pixel_values" else 1)
            for name in dict.fromkeys(name for sample in samples for name in sample)}


def _evaluate(model: Any, forward: Callable[..., Any], batches: Sequence[dict[str, Any]]) -> None:
    """Evaluates as Hugging Face's Trainer does: a batch is freed when the next one is on the GPU.

    It does not turn off the cache of keys and values as the training's calls do
    (:func:`predictor.trace.trace.prepare_evaluation`).
    """
    import torch

    from calibrate.job import reference_loop
    from predictor.model import code_models
    from predictor.trace import trace

    trace.prepare_evaluation(model)
    with torch.no_grad():
        for tensors in batches:
            batch = {name: tensor.to("cuda") for name, tensor in reference_loop.on_host(tensors).items()}
            loss = code_models.loss_of(forward(**batch))
            del loss
    model.train()


if __name__ == "__main__":
    device_query.print_answer(partial(trained, json.loads(Path(sys.argv[1]).read_text())))
