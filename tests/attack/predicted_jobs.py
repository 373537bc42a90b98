"""Jobs and replies whose formulas are shipped, with keys that keep their formula: many are predicted, also at the ends of their ranges."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from predictor.common import gpus
from predictor.workload.optimizers import OPTIMIZERS
from tests.attack import jobs, values
from tests.attack.inputs import Input

DEGREES = (1, 2, 3, 4, 7, 8, 16, 64, 72, 512, 1000, 1024, 4096, 5000, 16_384, 65_536)
ENGINES: tuple[dict[str, object], ...] = (*map(dict, jobs.ENGINES), {"engine": "fsdp2"}, {"engine": "fsdp1"}, {"zero_stage": 0}, {"zero_stage": 3})
ALLOCATORS = (None, "expandable_segments:True", "max_split_size_mb:64", "garbage_collection_threshold:0.7", "roundup_power2_divisions:8",
              "expandable_segments:True,garbage_collection_threshold:0.9")
WORDS = ("--json", "--details")
"""Options that an answer gets soon with. ``--remedies``, ``--minimum-capacity`` and ``--maximum-load`` search, and say how far they are; ``--loops`` simulates
up to eleven loops of ten steps."""
MOST_PICTURES = 20
"""Pictures up to which bounds are kept, of all micro-batches of a step that are simulated, which are at most three. With more large pictures a step of
Qwen2.5-VL has over a million allocations, until it is refused."""
TOO_MANY = 100
"""Large pictures of a micro-batch from which on Qwen2.5-VL is refused."""


@st.composite
def predicted_jobs(draw: st.DrawFn) -> Input:
    """A workload file of a job or of replies, and the command that predicts it."""
    keys = draw(_replies()) if draw(st.integers(0, 4)) == 0 else draw(_trainings())
    words = draw(st.lists(st.sampled_from(WORDS), max_size=2, unique=True)) if not values.seldom(draw, 2) else []
    return Input("command", ("predict", "--workload", "w.json", *words), {"w.json": json.dumps(keys).encode()})


@st.composite
def _replies(draw: st.DrawFn) -> dict[str, object]:
    """Keys of calls of ``generate``."""
    job = draw(st.sampled_from(jobs.replies()))
    keys = {name: value for name, value in job.resolved().items() if name not in job.filled_in}
    keys |= {"gpu": draw(st.sampled_from(sorted(gpus.GPUS))), "max_new_tokens": draw(st.sampled_from((6, 7, 64, 512, 2048, 2500, 3000, 3400, 4096, 4_000_000)))}
    made = {"per_device_eval_batch_size": st.sampled_from((1, 2, 3, 20, 64, 100, 128, 150, 200, 256, 65_536)),
            "sequence_length": st.sampled_from((64, 620, 1024, 2047, 8192, 131_072)), "allocator_conf": st.sampled_from(ALLOCATORS), "images_per_sample": st.sampled_from((0, 1, 2, 8)), "gpu_memory_utilization": st.sampled_from((0.1, 0.9)),
            "dtype": st.sampled_from(("bf16", "fp16", "fp32"))}
    for name in draw(st.lists(st.sampled_from(sorted(made)), max_size=3, unique=True)):
        keys[name] = draw(made[name])
    return keys


@st.composite
def _trainings(draw: st.DrawFn) -> dict[str, object]:
    """Keys of a training job."""
    job = draw(st.sampled_from((*jobs.usual(), *jobs.measured())))
    keys = {name: value for name, value in job.resolved().items() if name not in job.filled_in}
    for name in ("engine", "zero_stage", "deepspeed", "offload", "fsdp", "fsdp1", "ddp", "rank", "capacity_bytes", "profile"):
        if name not in ("fsdp", "fsdp1", "ddp") or draw(st.booleans()):
            keys.pop(name, None)
    keys |= draw(st.sampled_from(ENGINES))
    keys |= {"data_parallel_size": draw(st.sampled_from(DEGREES)), "gpu": draw(st.sampled_from(sorted(gpus.GPUS)))}
    several = draw(st.lists(st.sampled_from(("per_device_train_batch_size", "gradient_accumulation_steps", "optim", "allocator_conf", "max_grad_norm", "rank",
                                             "sequence_length", "images_per_sample", "image_size")), max_size=3, unique=True))
    made = {"per_device_train_batch_size": st.sampled_from((1, 2, 3, 17, 256, 65_536)), "gradient_accumulation_steps": st.sampled_from((1, 2, 5, 512, 65_536)),
            "optim": st.sampled_from(sorted(OPTIMIZERS)), "allocator_conf": st.sampled_from(ALLOCATORS), "max_grad_norm": st.sampled_from((0.0, 1.0)),
            "rank": st.sampled_from(("worst", 0, 1)), "sequence_length": st.sampled_from((64, 1024, 2047, 8192, 131_072)),
            "images_per_sample": st.sampled_from((0, 1, 2, 3, 8, 20, 1000, 4096)), "image_size": st.sampled_from(("28x28", "224x224", "336x336", "768x1024", "1024x1024", "4096x4096"))}
    keys |= {name: draw(made[name]) for name in several}
    if job.model.startswith("qwen2.5-vl") and draw(st.integers(0, 2)) == 0:  # as many pictures as bounds are kept with
        micro_steps = draw(st.sampled_from((1, 2, 3)))
        return keys | {"per_device_train_batch_size": draw(st.integers(1, MOST_PICTURES // micro_steps)), "images_per_sample": 1, "image_size": "768x1024",
                       "gradient_accumulation_steps": micro_steps if micro_steps < 3 else draw(st.integers(3, 999)), "sequence_length": draw(st.sampled_from((8192, 32_768)))}
    pictures = (keys.get("images_per_sample") or 1) * (keys.get("per_device_train_batch_size") or 1)
    if pictures < TOO_MANY and pictures * min(3, keys.get("gradient_accumulation_steps") or 1) > MOST_PICTURES:
        keys |= {"images_per_sample": 1, "gradient_accumulation_steps": 1}
    return keys
