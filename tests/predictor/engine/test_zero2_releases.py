"""ZeRO-2 of older DeepSpeed releases: where its buckets begin, and what start-up allocates."""

from __future__ import annotations

import numpy as np
import pytest

from predictor import Workload
from predictor.events.events import MOMENTS, Moment
from predictor.jobs import dispatch

JOB = Workload(model="llava-1.5-7b", sequence_length=1024, per_device_train_batch_size=16, zero_stage=2,
               data_parallel_size=8, rank=0, gpu="a100-80gb", profile="none")


def run(deepspeed: str):
    return dispatch.prepare(JOB.replace(versions={"deepspeed": deepspeed})).run(JOB.capacity, 0)


def first_bucket(run) -> int:
    """The event that allocates the first bucket."""
    events = run.events
    is_bucket = events.buffers.operator[events.buffer] == events.names.index("zero::ipg_bucket")
    return int(np.argmax(is_bucket))


@pytest.mark.parametrize("deepspeed", ["0.14.4", "0.17.1"])
def test_buckets_begin_with_backward_before_0_17_2(deepspeed):
    events, at = (composed := run(deepspeed)).events, first_bucket(composed)
    begin = int(np.argmax(events.moment == MOMENTS.index(Moment.BACKWARD)))
    assert {events.names[events.buffers.operator[buffer]] for buffer in events.buffer[begin:at]} == {"zero::scaled_loss"}


def test_buckets_begin_with_the_first_hook_since_0_17_2():
    events, at = (composed := run("0.17.2")).events, first_bucket(composed)
    assert events.moment[at - 1] == MOMENTS.index(Moment.BACKWARD)


def test_buffers_in_fp32_become_bf16_before_0_19_2():
    resident = {release: int(run(release).live[0:].max()) for release in ("0.19.1", "0.19.2")}
    cast = sum(tensor.bytes // 2 for tensor in dispatch.prepare(JOB).formula.facts.parameters
               if tensor.buffer and tensor.itemsize == 4)
    assert resident["0.19.2"] - resident["0.19.1"] == cast > 0


def test_parameters_that_wait_on_the_host_leave_a_placeholder_of_one_number():
    events = run("0.18.6").events
    assert "zero::placeholder" in events.names and "zero::placeholder" not in run("0.18.7").events.names
