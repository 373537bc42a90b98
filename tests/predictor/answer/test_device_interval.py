"""The interval of the device peak."""

from __future__ import annotations

from calibrate.campaign import design
from predictor.answer.predict import predict
from predictor.workload.workload import Workload

OVERLAP = {"bf16": {"enabled": True},
           "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 20_000_000}}


def test_the_device_interval_holds_every_order_of_completion_that_the_reserved_one_holds():
    found = predict(Workload(
        model=str(design.MODELS / "llava-1.5-7b-2-2.json"), attn_implementation="eager", per_device_train_batch_size=1,
        sequence_length=3500, images_per_sample=3, gradient_accumulation_steps=2, data_parallel_size=4, rank=3,
        deepspeed=OVERLAP, gpu="h100-80gb", profile="emulated"))
    orders, runtime = found.provenance["completion_orders"], found.provenance["runtime"]
    assert found.reserved.bytes == orders["low_bytes"] < orders["high_bytes"] == found.reserved.high
    assert found.device.low == found.reserved.low + runtime["low_bytes"]
    assert found.device.high == found.reserved.high + runtime["high_bytes"]
