"""Our tables of DeepSpeed's keys and defaults against the installed DeepSpeed itself."""

import pytest

from predictor.workload.deepspeed_keys import known
from predictor.workload.deepspeed_releases import default

deepspeed = pytest.importorskip("deepspeed", reason="needs the extra: pip install peakcast[calibrate]")


def fields_of(model) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()} | set(model.model_fields)


def test_we_know_every_zero_option():
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    assert fields_of(DeepSpeedZeroConfig) <= set(known("zero_optimization"))


def test_we_know_every_precision_option():
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config

    assert fields_of(DeepSpeedBF16Config) <= set(known("bf16"))
    assert fields_of(DeepSpeedFP16Config) <= set(known("fp16"))


def test_our_defaults_are_the_installed_ones():
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    assert deepspeed.__version__ == "0.19.8", "the test extra pins what the defaults are of"
    theirs = DeepSpeedZeroConfig(stage=2)
    for name in ("contiguous_gradients", "overlap_comm", "reduce_scatter", "reduce_bucket_size", "allgather_bucket_size",
                 "round_robin_gradients", "use_multi_rank_bucket_allreduce", "parameter_alignment", "compute_grad_norm"):
        assert default(name, (0, 19, 8)) == getattr(theirs, name), name
    assert default("check_grad_overflow", (0, 19, 8)) == DeepSpeedBF16Config().check_grad_overflow
