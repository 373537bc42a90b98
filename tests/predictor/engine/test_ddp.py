"""DistributedDataParallel's buckets and live memory, as closed forms of the parameters."""

from __future__ import annotations

import json

import pytest

from predictor.engine.ddp import MIB, assign, limits
from predictor.events.events import MOMENTS, EventType, Moment
from predictor.events.model_facts import Parameter
from predictor.jobs import dispatch
from predictor.workload.workload import Workload
from tests.predictor.small import small_config


def tensors(*mebibytes: float, itemsize: int = 2) -> list[Parameter]:
    return [Parameter(str(number), (int(size * MIB) // itemsize,), itemsize, True)
            for number, size in enumerate(mebibytes)]


def sizes(buckets: list[list[Parameter]]) -> list[float]:
    return [sum(tensor.bytes for tensor in bucket) / MIB for bucket in buckets]


def test_the_first_bucket_is_full_at_one_mebibyte_and_the_others_at_25():
    default = limits({"bucket_cap_mb": None})
    assert sizes(assign(tensors(0.5, 0.5, 20, 6, 24, 0.5), default)) == [1, 26, 24.5]


def test_a_limit_that_is_given_holds_for_the_first_bucket_too():
    assert sizes(assign(tensors(0.5, 0.5, 20, 6), limits({"bucket_cap_mb": 21}))) == [21, 6]


def test_tensors_of_two_dtypes_never_share_a_bucket():
    mixed = [one for pair in zip(tensors(2, 2), tensors(3, 3, itemsize=4)) for one in pair]
    assert sizes(assign(mixed, [1 << 40])) == [4, 6]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(small_config()))

    def run(**keys):
        job = dispatch.prepare(Workload(model=str(tmp_path), sequence_length=16, engine="ddp", profile="none",
                                        gpu="h100-80gb", data_parallel_size=4, **keys))
        return job.setup.facts.parameters, job.run(None, 0)
    return run


def buckets(run, step: int) -> int:
    """Bytes of buckets that a step begins with."""
    events = run.events
    named = events.buffers.operator[events.buffer] == events.names.index("ddp::bucket")
    before = named & (events.step < step)
    return int((run.row_bytes[events.buffers.size[events.buffer]] * events.sign)[before].sum())


@pytest.mark.parametrize("keys", [{}, {"ddp": {"gradient_as_bucket_view": True}}, {"gradient_accumulation_steps": 2}],
                         ids=str)
def test_buckets_hold_every_gradient_once_in_every_step(run, keys):
    parameters, made = run(**keys)
    gradients = sum(p.bytes for p in parameters if p.trainable)
    assert [buckets(made, step) for step in (1, 2, 3)] == [gradients] * 3


def test_gradients_are_held_beside_their_buckets_unless_they_are_views(run):
    def after_backward(view: bool) -> int:
        _, made = run(ddp={"gradient_as_bucket_view": view})
        return int(made.live[(made.events.step == 3) & (made.events.moment == MOMENTS.index(Moment.BACKWARD))][-1])

    parameters, _ = run()
    assert after_backward(False) - after_backward(True) == sum(p.bytes for p in parameters if p.trainable)


def test_ranks_tell_each_other_their_parameters_at_start_up(run):
    parameters, made = run()
    trained = [p for p in parameters if p.trainable]
    events = made.events
    said = (events.buffers.operator[events.buffer] == events.names.index("ddp::verify_params")) & (events.kind > 0)
    assert made.row_bytes[events.buffers.size[events.buffer[said]]].tolist() == [
        *[8] * (1 + 4), 8 * 4, 16 * sum(len(p.shape) for p in trained)]


def test_no_block_is_used_on_two_streams(run):
    _, made = run()
    assert not (made.events.kind >= EventType.RECORD_STREAM).any()
