"""The estimate of DeepSpeed's own estimator of model states.

Calls ``deepspeed.runtime.zero.stage_1_and_2.estimate_zero2_model_states_mem_needs`` (0.19.8) without offload and with
all GPUs on one node, as the bytes of a GPU depend only on the number of GPUs. The function takes "total model params".
Its variant for a live model counts frozen parameters too (``model_to_params``), so it gets all parameters here, not
only the trainable ones. That variant does not work on meta tensors, because it identifies parameters by address.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable

from calibrate.regression.baselines.baseline import Baseline, Estimate, not_installed
from calibrate.regression.baselines.model_under_test import subject
from predictor.workload.workload import Workload


def estimate(workload: Workload) -> Estimate:
    """DeepSpeed's estimate in bytes of one GPU under ZeRO-2; None for other engines and stages.

    Raises:
        InputError: the model cannot be found.
    """
    if workload.engine != "deepspeed" or workload.zero_stage != 2:
        return Estimate(None, "the estimator called here is that of ZeRO stage 2")
    try:
        needs = estimator()
    except ImportError as error:
        return not_installed(error, "calibrate")
    _, gpu_bytes = needs(subject(workload).parameters, num_gpus_per_node=workload.data_parallel_size, num_nodes=1,
                         cpu_offload=False)
    return Estimate(gpu_bytes)


def estimator() -> Callable[..., tuple[int, int]]:
    """Imports DeepSpeed's function. The first import takes seconds.

    Raises:
        ImportError: DeepSpeed is not installed.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # importing warns that no GPU exists, but none is needed
    try:
        with contextlib.redirect_stdout(sys.stderr):  # its logger writes to the stdout of the import
            from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs
    finally:
        logging.disable(before)
    return estimate_zero2_model_states_mem_needs


BASELINE = Baseline(
    name="DeepSpeed",
    source="deepspeed.runtime.zero.stage_1_and_2.estimate_zero2_model_states_mem_needs, called without offload",
    counts="2 bytes a parameter, and 18 more shared by all GPUs: gradients in 16 and 32 bit, master weights, moments",
    does_not_count="which parameters are frozen; activations; temporaries; buckets; batch and sequence",
    estimate=estimate,
)
