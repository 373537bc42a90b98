"""The estimate of model states only: LLMem's terms for parameters and optimizer states.

T. Kim, Y. Wang, V. Chaturvedi, L. Gupta, S. Kim, Y. Kwon, S. Ha: LLMem: Estimating GPU Memory Usage for Fine-Tuning
Pre-Trained LLMs. IJCAI 2024, pages 6324-6332, doi 10.24963/ijcai.2024/699, arXiv 2404.10933; their program:
github.com/taehokim20/LLMem, ``size_estimator.py``. With data parallelism over N GPUs under ZeRO: 16-bit parameters in
full, as they are gathered for computation, and 1/N of the fp32 parameters and of two fp32 moments. Gradients take the
place of the 16-bit parameters (in its runtime, Colossal-AI, they share chunks). Without ZeRO, N is 1.

LLMem's terms for activations and the head are left out. Where LLMem does not say: a frozen parameter has 16 bits and
nothing else (LLMem trains everything). Sizes are not rounded up to chunks, whose size is chosen at run time, nor to
pages of 2 MiB. Every parameter counts, not only embeddings and linear layers.
"""

from __future__ import annotations

from calibrate.regression.baselines.baseline import Baseline, Estimate
from calibrate.regression.baselines.model_under_test import partitions, subject
from predictor.workload.workload import Workload

HALF_BYTES = 2
FP32_BYTES = 4 + 4 + 4
"""Bytes of a trainable element: master weight and two moments."""


def estimate(workload: Workload) -> Estimate:
    """The estimate in bytes of one GPU.

    Raises:
        InputError: the model cannot be found.
    """
    model = subject(workload)
    return Estimate(HALF_BYTES * model.parameters + -(-FP32_BYTES * model.trainable // partitions(workload)))


BASELINE = Baseline(
    name="states only",
    source="LLMem (Kim et al., IJCAI 2024, arXiv 2404.10933), terms m_p and m_os",
    counts="16-bit parameters, and ZeRO's share of fp32 master weights and moments of those that train",
    does_not_count="activations, logits and loss (LLMem has terms for them); gradients, which share the parameters' "
                   "place in its runtime and not in DeepSpeed; temporaries; buckets",
    estimate=estimate,
)
