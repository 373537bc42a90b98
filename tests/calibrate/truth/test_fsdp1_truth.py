"""FSDP1 on the emulated H100 against its prediction: a tiny model, PyTorch's own ``FullyShardedDataParallel``."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.campaign.design import MODELS
from predictor.workload.workload import Workload
from tests.calibrate.small_jobs import check_predicted, needs_emulator, workload

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]
BASE = {"engine": "fsdp1", "gpu": "h100-80gb", "profile": "none", "per_device_train_batch_size": 1,
        "data_parallel_size": 4, "rank": 0}
JOBS = {
    "accelerate": {"mixed_precision": "bf16", "dtype": "bf16", "gradient_accumulation_steps": 2},
    "uneven": {"data_parallel_size": 7, "rank": 6, "optim": "adamw_torch"},
    "unreached": {"recipe": "full", "gradient_checkpointing": False, "attn_implementation": "eager"},
    "adapters": {"recipe": "lora", "mixed_precision": "bf16"},
    "synchronises": {"gradient_accumulation_steps": 2, "fsdp1": {"sync_each_batch": True, "backward_prefetch": "BACKWARD_POST"}},
    "keeps": {"fsdp1": {"sharding_strategy": "SHARD_GRAD_OP"}},
    "offloads": {"fsdp1": {"cpu_offload": True}},
    "offloads and casts": {"fsdp1": {"cpu_offload": True, "backward_prefetch": "NO_PREFETCH"}, "mixed_precision": "bf16"},
    "flat": {"recipe": "full", "dtype": "fp32", "data_parallel_size": 6,
             "fsdp1": {"use_orig_params": False, "param_dtype": "bf16", "reduce_dtype": "fp32"}},
    "hybrid": {"fsdp1": {"sharding_strategy": "HYBRID_SHARD", "sharding_group_size": 2}, "mixed_precision": "bf16"},
    "packed, reentrant, Liger": {"padding": "packed", "use_liger_kernel": True,
                                 "gradient_checkpointing_kwargs": {"use_reentrant": True}},
}


@pytest.mark.parametrize("changes", JOBS.values(), ids=JOBS)
def test_a_job_needs_what_is_predicted(tmp_path: Path, changes):
    check_predicted(workload(tmp_path, **BASE | changes), "immediate")


def test_a_job_whose_events_complete_at_synchronisations_needs_what_is_predicted(tmp_path: Path):
    check_predicted(workload(tmp_path, **BASE, mixed_precision="bf16"), "synchronization")


def test_the_two_gradients_of_tied_embeddings_are_added_on_the_stream_of_the_gathers():
    """Tied embeddings of full width: each gradient fills a segment of its own."""
    tied = {"model": str(MODELS / "llama-3.2-1b-2.json"), "per_device_train_batch_size": 3, "sequence_length": 613,
            "mixed_precision": "bf16", "dtype": "bf16"}
    check_predicted(Workload.from_mapping(BASE | tied), "immediate")
