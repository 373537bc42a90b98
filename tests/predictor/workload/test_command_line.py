"""The command line of a workload, typed, is that workload."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser

import pytest

from predictor import Workload
from predictor.commands import options
from predictor.workload.command_line import command_line

JOB = {"model": "llava-1.5-7b", "sequence_length": 1024, "gpu": "h100-80gb"}
CONFIG = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "overlap_comm": True}}


@pytest.mark.parametrize("keys", [
    {}, {"recipe": "lora", "lora": {"r": 16, "target_modules": ["q_proj", "v_proj"]}},
    {"recipe": "lora", "quantization": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "bf16"}},
    {"deepspeed": CONFIG, "data_parallel_size": 8}, {"zero_stage": 3, "offload": "all", "data_parallel_size": 2},
    {"dtype": "fp32", "mixed_precision": "bf16", "gradient_checkpointing": False}, {"frozen": ["model.vision_tower", "lm_head"]},
    {"engine": "ddp", "ddp": {"bucket_cap_mb": 100}, "data_parallel_size": 4}, {"allocator_conf": "expandable_segments:True,max_split_size_mb:128"},
    {"gradient_checkpointing_kwargs": {"use_reentrant": True}, "max_grad_norm": 0.5},
])
def test_a_typed_command_line_is_the_workload(keys):
    wanted = Workload(**JOB, **keys)
    parser = ArgumentParser()
    options.add_workload(parser)
    typed = options.workload(parser.parse_args(shlex.split(command_line(wanted))[2:]))
    assert typed.resolved() == wanted.resolved()
