"""Combinations that were never compared with a run are rejected."""

from __future__ import annotations

import pytest

from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.formula.formula_key import formula_key
from predictor.jobs import dispatch
from predictor.model.request import Request, shape_of
from predictor.workload.workload import Workload

EVALUATION = {"per_device_eval_batch_size": 8}
QUANTIZED = {"recipe": "lora", "quantization": {"load_in_4bit": True}}


@pytest.mark.parametrize(("keys", "message"), [
    ({"zero_stage": 2, "offload": "optimizer", "dtype": "fp16"}, 'dtype "fp16": not predicted with offload yet'),
    ({"zero_stage": 0, "dtype": "fp32"}, 'dtype "fp32": not predicted with zero_stage 0 yet'),
    (EVALUATION | {"use_liger_kernel": True}, "use_liger_kernel True: not predicted with per_device_eval_batch_size yet"),
    ({"use_liger_kernel": True, "dtype": "fp16"}, 'dtype "fp16": not predicted with use_liger_kernel yet'),
    ({"attn_implementation": "flash_attention_2", "mixed_precision": "fp16"},
     'mixed_precision "fp16": not predicted with flash_attention_2 yet'),
    ({"gradient_checkpointing_kwargs": {"offload": True}, "engine": "fsdp2", "data_parallel_size": 2},
     'engine "fsdp2": not predicted with gradient_checkpointing_kwargs offload yet'),
    ({"keep_outputs": "backward", "use_liger_kernel": True}, "use_liger_kernel True: not predicted with keep_outputs yet"),
    ({"zero_grad": "before_backward", "tensor_parallel_size": 2},
     "tensor_parallel_size 2: not predicted with zero_grad yet"),
    (QUANTIZED | {"use_liger_kernel": True}, "use_liger_kernel True: not predicted with quantization yet"),
    (QUANTIZED | {"gradient_checkpointing_kwargs": {"offload": True}},
     "gradient_checkpointing_kwargs {'use_reentrant': False, 'offload': True}: not predicted with quantization yet"),
])
def test_two_keys_that_were_not_run_together_are_refused(keys, message):
    asked = Workload(model="llava-1.5-7b", sequence_length=1024, **keys)
    with pytest.raises(InputError) as caught:
        dispatch.prepare(asked)
    assert str(caught.value) == f"{message}: leave one of them out, or use peakcast learn"


def test_settings_of_checkpointing_are_refused_without_it():
    with pytest.raises(InputError, match="gradient_checkpointing_kwargs are given, but gradient_checkpointing is off"):
        Workload(model="llava-1.5-7b", sequence_length=1024, gradient_checkpointing=False,
                 gradient_checkpointing_kwargs={"offload": True}, **QUANTIZED)


def test_outputs_that_ddp_clones_are_refused_where_the_loop_keeps_them():
    asked = Workload(model="llava-1.5-7b", sequence_length=1024, keep_outputs="backward", engine="ddp", data_parallel_size=2,
                     ddp={"find_unused_parameters": True})
    with pytest.raises(InputError, match="ddp find_unused_parameters: DDP clones the outputs, which is not predicted with"):
        dispatch.prepare(asked)


def test_deepspeed_frees_gradients_itself():
    with pytest.raises(InputError, match="zero_grad is before_backward, but DeepSpeed frees gradients itself, in step()"):
        Workload(model="llava-1.5-7b", sequence_length=1024, zero_stage=2, zero_grad="before_backward")


def test_layers_of_4_bits_are_predicted_without_checkpointing():
    asked = Workload(model="llava-1.5-7b", sequence_length=1024, gradient_checkpointing=False, **QUANTIZED)
    key = formula_key(Request.of(asked, shape_of(asked.replace(images_per_sample=1))).on(gpus.find("h100-80gb")))
    assert key.checkpointing == "off" and key.checkpointing_kwargs == ()
