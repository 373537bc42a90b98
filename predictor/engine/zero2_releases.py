"""What releases of DeepSpeed do differently in ZeRO-1 and ZeRO-2 (runtime/zero/stage_1_and_2.py)."""

from __future__ import annotations

from predictor.workload.deepspeed_config import ZeroConfig

SWITCHES = {
    "drops_mean_loss": (0, 16, 5),
    "narrows_on_host": (0, 17, 0),
    "buckets_at_first_hook": (0, 17, 2),
    "logs_no_losses": (0, 18, 3),
    "flatten_on_gpu": (0, 18, 7),
    "record_stream": (0, 19, 0),
    "buffers_keep_dtype": (0, 19, 2),
    "overflow_check_by_extrema": (0, 19, 6),
    "waits_for_copies": (0, 19, 8),
}
"""Behaviour -> the first release that has it.

- ``drops_mean_loss``: a loss that is added to the step's sum dies at once, not at the end of backward.
- ``narrows_on_host``: with the optimizer on the host, updated weights are converted there. Before, they come to the GPU
  in fp32 (``step``).
- ``buckets_at_first_hook``: buckets are allocated at the first gradient's hook, and ZeRO-1 keeps them over a step's
  micro-steps. Before, they are allocated where each backward begins (``backward``).
- ``logs_no_losses``: the sum of a step's losses does not stay until its end, as if to be logged (``engine.losses``).
- ``flatten_on_gpu``: groups are flattened on the GPU where memory suffices.
- ``record_stream``: tensors that another stream uses are recorded on it.
- ``buffers_keep_dtype``: the model's buffers are not cast to the dtype of its weights.
- ``overflow_check_by_extrema``: gradients are checked for overflow without copies of them (``_has_inf_or_nan``).
- ``waits_for_copies``: the host waits for gradients on their way to it before it sends accumulated ones back
  (``_wait_for_offload_copies``).
"""


def has(zero: ZeroConfig, behaviour: str) -> bool:
    """Whether the settings' release of DeepSpeed has a behaviour of :data:`SWITCHES`."""
    return zero.version >= SWITCHES[behaviour]
