"""What ``accelerate estimate-memory`` says, by the functions behind it (accelerate 1.15.0, commands/estimate.py).

As the command does: the model from its configuration with ``AutoModel``, in fp32 and without memory; its size by
``calculate_maximum_sizes``; then ``estimate_training_usage``, of whose four numbers the largest is what it prints as
"Training using Adam". ``AutoModel`` makes a LLaVA without its head. The command itself asks the hub for the
configuration; this does not. bf16 is its mixed precision: weights, moments and computation over fp32 bytes.
"""

from __future__ import annotations

import json
from functools import lru_cache

from calibrate.regression.baselines.baseline import Baseline, Estimate, not_installed
from calibrate.regression.baselines.model_under_test import configuration
from predictor.workload.workload import Workload

PRECISION = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""``dtype`` of a workload -> accelerate's name."""


def estimate(workload: Workload) -> Estimate:
    """Bytes of one GPU, batch size 1, as accelerate has it.

    Raises:
        InputError: the model cannot be found.
    """
    document = configuration(workload)
    try:
        import transformers  # noqa: F401
        from accelerate.commands.estimate import estimate_training_usage
    except ImportError as error:
        return not_installed(error, "report")
    try:
        size = total_size(json.dumps(document, sort_keys=True))
    except Exception as error:  # transformers raises whatever the field leads to
        return Estimate(None, f"transformers cannot build the model: {' '.join(str(error).split())[:160]}")
    return Estimate(int(max(estimate_training_usage(size, PRECISION[workload.dtype]).values())))


@lru_cache(maxsize=32)
def total_size(document: str) -> int:
    """Bytes of the model in fp32, from its ``config.json``."""
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
