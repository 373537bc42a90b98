"""Jobs whose formulas are shipped, with keys that keep their formula: many of them are predicted, also at the ends of their ranges."""

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
WORDS = ("--json", "--details", "--loops")
"""Options that an answer gets soon with. ``--remedies``, ``--minimum-capacity`` and ``--maximum-load`` search, and say how far they are."""


@st.composite
def predicted_jobs(draw: st.DrawFn) -> Input:
    """A workload file of a job, and the command that predicts it."""
    job = draw(st.sampled_from((*jobs.usual(), *jobs.measured())))
    keys = {name: value for name, value in job.resolved().items() if name not in job.filled_in}
    for name in ("engine", "zero_stage", "deepspeed", "offload", "fsdp", "fsdp1", "ddp", "rank", "capacity_bytes", "profile"):
        if name not in ("fsdp", "fsdp1", "ddp") or draw(st.booleans()):
            keys.pop(name, None)
    keys |= draw(st.sampled_from(ENGINES))
    keys |= {"data_parallel_size": draw(st.sampled_from(DEGREES)), "gpu": draw(st.sampled_from(sorted(gpus.GPUS)))}
    several = draw(st.lists(st.sampled_from(("per_device_train_batch_size", "gradient_accumulation_steps", "optim", "allocator_conf", "max_grad_norm", "rank",
                                             "sequence_length")), max_size=3, unique=True))
    made = {"per_device_train_batch_size": st.sampled_from((1, 2, 3, 17, 256, 65_536)), "gradient_accumulation_steps": st.sampled_from((1, 2, 5, 512, 65_536)),
            "optim": st.sampled_from(sorted(OPTIMIZERS)), "allocator_conf": st.sampled_from(ALLOCATORS), "max_grad_norm": st.sampled_from((0.0, 1.0)),
            "rank": st.sampled_from(("worst", 0, 1)), "sequence_length": st.sampled_from((64, 1024, 2047, 8192, 131_072))}
    keys |= {name: draw(made[name]) for name in several}
    words = draw(st.lists(st.sampled_from(WORDS), max_size=2, unique=True)) if not values.seldom(draw, 2) else []
    return Input("command", ("predict", "--workload", "w.json", *words), {"w.json": json.dumps(keys).encode()})
