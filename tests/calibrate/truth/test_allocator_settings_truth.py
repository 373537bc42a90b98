"""What allocator settings change, in jobs of the real libraries on the emulated H100."""

from __future__ import annotations

import json

import pytest

from calibrate.measure.measure import measure
from predictor.jobs import dispatch
from predictor.profile.reach import FREE_MEMORY
from predictor.workload.workload import Workload
from tests.calibrate.small_jobs import needs_emulator, workload
from tests.predictor.small import small_config

pytestmark = needs_emulator
SETTINGS = ("expandable_segments:True", "roundup_power2_divisions:2", "max_split_size_mb:20")


@pytest.mark.parametrize("engine", [{"engine": "torch"}, {"zero_stage": 2, "data_parallel_size": 2, "rank": 1}], ids=str)
def test_allocator_settings_change_blocks_and_segments_but_no_request(tmp_path, engine):
    plain = workload(tmp_path, gpu="h100-80gb", profile="none", **engine)
    default, *others = (measure(plain.replace(allocator_conf=conf)).job.moments for conf in (None, *SETTINGS))
    for moments in others:
        assert [one.requested_bytes for one in moments] == [one.requested_bytes for one in default]
    for counter in ("allocated_bytes", "reserved_bytes"):
        assert any([getattr(one, counter) for one in moments] != [getattr(one, counter) for one in default]
                   for moments in others), counter


@pytest.mark.parametrize("capacity_bytes, same", [(80 << 30, True), (530 << 20, False)])
def test_zero_2_requests_other_bytes_where_settings_decide_whether_parameters_flatten_on_the_gpu(
        tmp_path, capacity_bytes, same):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small_config(hidden_size=1088, intermediate_size=3136, num_hidden_layers=8,
                                            num_attention_heads=8, num_key_value_heads=8)))
    peaks = []
    for conf in (None, "roundup_power2_divisions:2"):
        asked = Workload(model=str(path), sequence_length=64, per_device_train_batch_size=1, zero_stage=2, recipe="full",
                         data_parallel_size=64, rank=1, gpu="h100-80gb", capacity_bytes=capacity_bytes,
                         allocator_conf=conf)
        job = dispatch.prepare(asked)
        peaks.append(measure(asked).peak("requested_bytes").bytes)
        assert peaks[-1] == job.run(capacity_bytes).peak
    assert (peaks[0] == peaks[1]) == same
    assert (FREE_MEMORY in job.profile.outside.values()) != same
