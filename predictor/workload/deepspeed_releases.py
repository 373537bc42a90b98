"""Differences between DeepSpeed's releases: the defaults of their options, and the first release of an option."""

from __future__ import annotations

import sys
from typing import Any

# Option -> (first release with this default, default), oldest first. Found by running each release.
DEFAULTS: dict[str, tuple[tuple[tuple[int, int, int], Any], ...]] = {
    "gradient_clipping": (((0, 0, 0), 0.0), ((0, 19, 3), 1.0)),
    "check_grad_overflow": (((0, 0, 0), False), ((0, 19, 3), True)),
    "contiguous_gradients": (((0, 0, 0), True),),
    "overlap_comm": (((0, 0, 0), False),),  # DeepSpeed's None means stage 3 only
    "reduce_scatter": (((0, 0, 0), True),),
    "reduce_bucket_size": (((0, 0, 0), 500_000_000),),
    "allgather_bucket_size": (((0, 0, 0), 500_000_000),),
    "round_robin_gradients": (((0, 0, 0), False),),
    "use_multi_rank_bucket_allreduce": (((0, 0, 0), True),),
    "parameter_alignment": (((0, 0, 0), False),),
    "compute_grad_norm": (((0, 0, 0), True),),
    "sub_group_size": (((0, 0, 0), 1_000_000_000),),
    "stage3_prefetch_bucket_size": (((0, 0, 0), 50_000_000),),
    "stage3_param_persistence_threshold": (((0, 0, 0), 100_000),),
    "stage3_model_persistence_threshold": (((0, 0, 0), sys.maxsize),),
    "stage3_max_live_parameters": (((0, 0, 0), 1_000_000_000),),
    "stage3_max_reuse_distance": (((0, 0, 0), 1_000_000_000),),
    "stage3_allgather_sequential": (((0, 0, 0), False),),
    "pin_memory": (((0, 0, 0), False), ((0, 19, 5), True)),  # of offload_optimizer and offload_param
}
# Option -> the first release that has it; earlier releases stop with an error.
SINCE = {
    "bf16.check_grad_overflow": (0, 17, 1),
    "zero_optimization.stage3_allgather_sequential": (0, 18, 5),
    "zero_optimization.parameter_alignment": (0, 19, 7),
    "zero_optimization.compute_grad_norm": (0, 19, 7),
}
OTHER_DTYPES_SINCE = (0, 14, 4)  # the oldest release with which fp16 and fp32 were compared
AUTOTP_SINCE = (0, 19, 8)  # earlier releases shard otherwise
STAGE_0_SINCE = (0, 17, 6)  # the oldest release that was compared
STAGE_1_SINCE = STAGE_3_SINCE = OFFLOAD_SINCE = (0, 14, 4)  # the oldest release that was compared
STAGE_3_MISCOUNTS = (0, 17, 2)  # its buckets are never empty again (stage3.py, IPGBucketZ3.elements)
RECOMPUTES_FROZEN_SINCE = (0, 19, 3)  # ZeRO-3 with checkpoints that compare the shapes of recomputed tensors
REPLACES_LINEAR_SINCE = (0, 19, 4)  # ZeRO-3 with a model that was not built in zero.Init
FP32_ACCUMULATION_SINCE = (0, 19, 8)  # earlier releases accept it in stage 2 and accumulate in bf16


def default(name: str, version: tuple[int, int, int]) -> Any:
    """The default of an option in a DeepSpeed release."""
    return [value for since, value in DEFAULTS[name] if since <= version][-1]
