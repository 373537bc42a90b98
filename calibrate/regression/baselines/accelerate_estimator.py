"""The estimate of ``accelerate estimate-memory``, by its own functions (accelerate 1.15.0, commands/estimate.py).

Follows the command: ``AutoModel`` builds the model from its configuration, in fp32 on the meta device.
``calculate_maximum_sizes`` gives its size. ``estimate_training_usage`` gives four numbers, of which the command prints
the largest as "Training using Adam". ``AutoModel`` builds a LLaVA without its head. The command fetches the
configuration from the hub; this module does not. bf16 is its mixed precision: weights, moments and computation over
fp32 bytes.
"""

from __future__ import annotations

import json
from functools import lru_cache

from calibrate.regression.baselines.baseline import Baseline, Estimate, not_installed
from calibrate.regression.baselines.model_under_test import configuration
from predictor.workload.workload import Workload

PRECISION = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""``dtype`` of a workload -> accelerate's name of it."""


def estimate(workload: Workload) -> Estimate:
    """Accelerate's estimate in bytes of one GPU, for batch size 1.

    Raises:
        InputError: the model cannot be found.
    """
    document = configuration(workload)
    try:
        import transformers  # noqa: F401
        from accelerate.commands.estimate import estimate_training_usage
    except ImportError as error:
        return not_installed(error, "calibrate")
    try:
        size = total_size(json.dumps(document, sort_keys=True))
    except Exception as error:  # a field of the configuration can make transformers raise anything
        return Estimate(None, f"transformers cannot build the model: {' '.join(str(error).split())[:160]}")
    return Estimate(int(max(estimate_training_usage(size, PRECISION[workload.dtype]).values())))


@lru_cache(maxsize=32)
def total_size(document: str) -> int:
    """Bytes of the model in fp32. ``document`` is its ``config.json`` as text."""
    import torch
    from accelerate import init_empty_weights
    from accelerate.utils import calculate_maximum_sizes
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(**json.loads(document))
    with init_empty_weights():
        model = AutoModel.from_config(config, dtype=torch.float32)
    return calculate_maximum_sizes(model)[0]


BASELINE = Baseline(
    name="accelerate",
    source="accelerate estimate-memory: calculate_maximum_sizes and estimate_training_usage, called",
    counts="with bf16 twice the model's fp32 bytes: the moments of Adam, larger than model or gradients alone",
    does_not_count="what is alive together; the head (AutoModel has none); which parameters are frozen; ZeRO; "
                   "activations, batch and sequence",
    estimate=estimate,
)
