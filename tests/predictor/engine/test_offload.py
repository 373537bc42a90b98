"""Offloading: GPU and host memory as closed forms, and rejected settings."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from predictor.common.errors import InputError
from predictor.engine.host_memory import Host
from predictor.events.events import MOMENTS, EventType, Moment
from predictor.events.model_facts import Parameter
from predictor.jobs import dispatch, training_job
from predictor.workload.workload import Workload
from tests.predictor.small import small_config

DEGREE, BUCKET = 2, 1_000
CONFIG = {"bf16": {"enabled": True}}


def job(directory, stage: int, offload: str, **changes) -> training_job.Job:
    (directory / "config.json").write_text(json.dumps(small_config()))
    sections = {"offload_optimizer": offload in ("optimizer", "all"), "offload_param": offload in ("parameters", "all")}
    zero = {"stage": stage, "reduce_bucket_size": BUCKET, "overlap_comm": False} | {
        name: {"device": "cpu"} for name, on in sections.items() if on}
    return dispatch.prepare(Workload(**{
        "model": str(directory), "sequence_length": 16, "deepspeed": CONFIG | {"zero_optimization": zero},
        "data_parallel_size": DEGREE, "profile": "none", "gpu": "h100-80gb"} | changes))


def weights(job: training_job.Job) -> list[Parameter]:
    return [tensor for tensor in job.formula.facts.parameters if not tensor.buffer]


def after_start_up(job: training_job.Job) -> int:
    """Bytes on the first rank's GPU, without the model's buffers."""
    run = job.run(None, 0)
    return int(run.live[run.events.step == 0][-1]) - sum(t.bytes for t in job.formula.facts.parameters if t.buffer)


def flat(numels: list[int]) -> int:
    """Elements with ZeRO-2's padding."""
    return -(-sum(numels) // (2 * DEGREE)) * 2 * DEGREE


def by_group(job: training_job.Job) -> list[list[int]]:
    return [[t.numel for t in weights(job) if t.trainable and t.decay is decay] for decay in (True, False)]


@pytest.mark.parametrize("stage", [1, 2])
def test_all_weights_and_a_buffer_for_one_gradient_stay_on_the_gpu(tmp_path, stage):
    asked = job(tmp_path, stage, "optimizer")
    frozen = sum(t.numel for t in weights(asked) if not t.trainable)
    largest = max(t.numel for t in weights(asked) if t.trainable)
    assert after_start_up(asked) == 2 * (sum(map(flat, by_group(asked))) + frozen + largest)


def test_with_parameters_offloaded_too_only_the_bucket_stays(tmp_path):
    assert after_start_up(job(tmp_path, 3, "all")) == 2 * BUCKET


@pytest.mark.parametrize("stage, offload", [(1, "optimizer"), (2, "optimizer"), (3, "optimizer"), (3, "all")])
def test_the_optimizer_steps_without_the_gpu(tmp_path, stage, offload):
    events = job(tmp_path, stage, offload).run(None, 0).events
    rows = (events.moment == MOMENTS.index(Moment.OPTIMIZER_STEP)) & (events.kind == EventType.ALLOCATE)
    made = {events.names[name] for name in events.buffers.operator[events.buffer[rows]]}
    assert made <= ({"zero::all_gather", "zero::partition_from_host"} if stage == 3 else {"zero::group_grad_norm"})


def test_a_rank_copies_its_part_of_a_gradient_in_fp64_and_then_in_fp32(tmp_path):
    asked = job(tmp_path, 2, "optimizer", recipe="pretrain")
    parts = {}
    for rank in range(DEGREE):
        run = asked.run(None, rank)
        events, names = run.events, run.events.names
        for name in ("zero::get_grad_norm", "zero::copy_to_host"):
            rows = (events.buffers.operator[events.buffer] == names.index(name)) & (events.step == 2) & (events.kind > 0)
            parts[name, rank] = run.row_bytes[events.buffers.size[events.buffer[rows]]].tolist()
    norms = parts["zero::get_grad_norm", 0] + parts["zero::get_grad_norm", 1]
    copies = parts["zero::copy_to_host", 0] + parts["zero::copy_to_host", 1]
    elements = sum(map(sum, by_group(asked)))
    assert sum(copies) == 4 * elements
    assert sum(norms) == 8 * (elements + len(copies))  # and the norm itself


def test_pinned_memory_comes_in_powers_of_two():
    host = Host()
    for size in (4096, 4097):
        host.hold("pinned", size, pinned=True)
        host.hold("pageable", size, pinned=False)
    assert host.held == {"pinned": 4096 + 8192, "pageable": 4096 + 4097}


def test_the_user_is_told_what_it_takes_of_the_hosts_memory(tmp_path):
    asked = job(tmp_path, 2, "optimizer", recipe="pretrain")
    sizes = [flat(numels) // DEGREE for numels in by_group(asked)]
    assert asked.notes()[-1].startswith("the host's memory: offloading takes ")

    def up(size: int) -> int:
        return 2 ** int(np.ceil(np.log2(size)))

    held = training_job.engine_of(asked.formula, asked.setup).host().held
    assert held["fp32 weights"] == sum(up(4 * size) for size in sizes)
    assert held["bf16 weights"] == sum(up(2 * size) for size in sizes)
    assert held["gradients"] == held["fp32 weights"] + up(2 * 64 * 64)  # the largest weight of the projector
    assert held["optimizer states"] == sum(8 * size + 4 for size in sizes)


@pytest.mark.parametrize("section, message", [
    ({"offload_optimizer": {"device": "nvme"}}, 'offload_optimizer device "nvme" is not supported yet: use cpu'),
    ({"offload_param": {"device": "nvme"}}, 'offload_param device "nvme" is not supported yet: use cpu'),
    ({"offload_optimizer": {"device": "cpu", "ratio": 0.5}}, "offload_optimizer ratio 0.5 is not supported yet"),
    ({"offload_optimizer": {"device": "cpu", "super_offload": True}}, "offload_optimizer super_offload is not supported"),
    ({"offload_optimizer": {"device": "cpu", "pinned": True}}, 'offload_optimizer has no key "pinned"'),
    ({"cpu_offload": True}, 'cpu_offload is not supported: write "offload_optimizer"'),
    ({"stage": 2, "offload_param": {"device": "cpu"}}, "offload_param needs stage 3"),
    ({"stage": 2, "offload_optimizer": {"device": "cpu"}, "compute_grad_norm": False}, "compute_grad_norm false"),
])
def test_what_is_not_modelled_is_named(section, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Workload(model="m", sequence_length=8, max_grad_norm=0,
                 deepspeed=CONFIG | {"zero_optimization": {"stage": 3} | section})


@pytest.mark.parametrize("keys, message", [
    ({"offload": "optimizer"}, "offload is a setting of DeepSpeed: add zero_stage"),
    ({"offload": "all", "zero_stage": 2}, "offload is all, which needs zero_stage 3"),
    ({"offload": "nvme", "zero_stage": 3}, 'offload must be one of optimizer, parameters, all, not "nvme"'),
    ({"offload": "optimizer", "zero_stage": 2, "optim": "paged_adamw_8bit"}, "optim is paged_adamw_8bit, but offloaded"),
    ({"offload": "parameters", "deepspeed": CONFIG | {"zero_optimization": {
        "stage": 3, "offload_optimizer": {"device": "cpu"}}}}, "offload is parameters, but deepspeed has offload opt"),
])
def test_contradictions_are_named(keys, message):
    with pytest.raises(InputError, match=message):
        Workload(model="m", sequence_length=8, **keys)


def test_earlier_releases_are_named(tmp_path):
    with pytest.raises(InputError, match="offload is predicted for DeepSpeed 0.14.4 and later"):
        job(tmp_path, 2, "optimizer", versions={"deepspeed": "0.14.3"}).judge()


def test_the_short_form_is_the_config(tmp_path):
    short = Workload(model="m", sequence_length=8, zero_stage=3, offload="all")
    long = Workload(model="m", sequence_length=8, deepspeed=CONFIG | {"zero_optimization": {
        "stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}})
    assert short.offload == long.offload == "all"
