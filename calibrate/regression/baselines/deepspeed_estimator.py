"""DeepSpeed's own estimator of model states, called.

``deepspeed.runtime.zero.stage_1_and_2.estimate_zero2_model_states_mem_needs`` (0.19.8) without offload, all GPUs on
one node: the bytes of a GPU depend on the number of GPUs only. It asks for "total model params", and its variant for
a live model counts frozen ones among them (``model_to_params``), so all parameters are handed over, not only those
that train. That variant itself is of no use on meta tensors: it tells parameters apart by address.
"""

from __future__ import annotations

import contextlib
import logging
import sys

from calibrate.regression.baselines.baseline import Baseline, Estimate, not_installed
from calibrate.regression.baselines.model_under_test import subject
from predictor.workload.workload import Workload


def estimate(workload: Workload) -> Estimate:
    """Bytes of one GPU under ZeRO-2.

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


def estimator():
    """DeepSpeed's function; the import takes seconds, once.

    Raises:
        ImportError: DeepSpeed is not installed.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it warns of having no GPU: this needs none
    try:
        with contextlib.redirect_stdout(sys.stderr):  # its logger keeps the stdout that it finds
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
