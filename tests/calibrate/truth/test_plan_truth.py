"""The largest batch of a plan survives on an emulated GPU, and one more sample runs out of memory."""

from __future__ import annotations

import pytest

from calibrate.measure.measure import measure
from predictor.plan import plan
from tests.calibrate.small_jobs import model_file, needs_emulator
from tests.predictor.outside import outside_bytes

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

SHARE_BYTES = 150 << 20
"""Of PyTorch."""


def test_the_largest_batch_survives_and_the_next_dies(tmp_path):
    made = plan({"model": model_file(tmp_path), "sequence_length": 64, "gpu": "h100-80gb", "profile": "none", "zero_stage": 2,
                 "data_parallel_size": 2, "offload": "none", "optim": "adamw_torch_fused", "gradient_checkpointing": False,
                 "capacity_bytes": SHARE_BYTES + outside_bytes("zero2", 2)})
    survived = [measure(made.proposed.setting.workload(batch, 1, 64).replace(capacity_bytes=SHARE_BYTES)).job.out_of_memory
                is None for batch in (made.largest.micro_batch, made.largest.micro_batch + 1)]
    assert survived == [True, False]


def test_of_adapters_on_one_gpu_the_plain_loop_survives_as_planned_and_the_next_batch_dies(tmp_path):
    """Frozen weights in bf16 under autocast, which the trainer of an adapter has where no engine decides."""
    made = plan({"model": model_file(tmp_path), "sequence_length": 64, "gpu": "h100-80gb", "profile": "none", "recipe": "lora",
                 "frozen": ["*multi_modal_projector*"], "offload": "none", "optim": "adamw_torch_fused",
                 "gradient_checkpointing": False, "capacity_bytes": SHARE_BYTES + outside_bytes()})
    setting = made.proposed.setting
    survived = [measure(setting.workload(batch, 1, 64).replace(capacity_bytes=SHARE_BYTES)).job.out_of_memory is None
                for batch in (made.proposed.candidate.batch, made.largest.micro_batch, made.largest.micro_batch + 1)]
    assert setting.method == "one GPU, bf16 weights under autocast" and survived == [True, True, False]
