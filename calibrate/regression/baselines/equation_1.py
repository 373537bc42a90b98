"""The estimate of Eq. 1 of arXiv 2512.07853: parameters, optimizer states, gradients and activations of all layers.

J. Jeong, M. Kang, Y. Go, C. Shin, H. Lee, J. Yoon, G. Yang, C. Yoo: GPU Memory Prediction for Multimodal Model
Training. 1st Workshop on Systems for Agentic AI (SAA '25, with SOSP 2025), arXiv 2512.07853: peak = sum over modules,
sum over layers of (M_param + M_opt + M_grad + M_act). A frozen layer has parameters only, and activations are counted
for the modalities whose parameters are updated.

The paper gives no formula for a factor. This module uses the exact value of each, so that the remaining error is that
of the sum:

- M_param: every parameter in its own dtype, without buffers. M_grad: the same for each trainable parameter.
- M_opt, under ZeRO: an fp32 master weight and two fp32 moments for each trainable element; under plain PyTorch and
  DDP: two moments in the parameter's own dtype.
- Under ZeRO with N GPUs a partitioned factor is divided by N: optimizer states from stage 1 on, gradients from
  stage 2, parameters in stage 3 (Rajbhandari et al.: ZeRO, SC20, arXiv 1910.02054).
- M_act: activations that are alive at the end of the forward pass, under the workload's own activation checkpointing,
  taken from the traced step. Recomputed tensors are not alive then, so they do not count.
- Modalities: vision (the tower), projection, language (the language model and its head, with the tensors
  between modules: the merged sequence and the loss).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from calibrate.regression.baselines.baseline import Baseline, Estimate
from calibrate.regression.baselines.model_under_test import Subject, partitions, subject
from predictor.events import timeline
from predictor.events.composed_run import sizes_at
from predictor.events.events import FACTORS, MOMENTS, Factor, Moment
from predictor.events.model_facts import modality
from predictor.workload.workload import Workload

ZERO_OPTIMIZER_BYTES = 4 + 4 + 4
"""Bytes of a trainable element: master weight and AdamW's two moments, in fp32."""


def estimate(workload: Workload) -> Estimate:
    """The estimate of Eq. 1 in bytes of one GPU.

    Raises:
        InputError: the model cannot be found, or its step cannot be traced.
    """
    model = subject(workload)
    return Estimate(sum(factors(model, workload).values()))


def factors(model: Subject, workload: Workload) -> dict[Factor, int]:
    """The four factors in bytes of one GPU."""
    degree, stage = partitions(workload), workload.zero_stage or 0
    parameters = [p for p in model.facts.parameters if not p.buffer]
    trained = [p for p in parameters if p.trainable]
    zero = workload.engine == "deepspeed" and stage > 0
    optimizer = sum(p.numel * ZERO_OPTIMIZER_BYTES if zero else 2 * p.bytes for p in trained)

    def share(size: int, from_stage: int) -> int:
        return -(-size // degree) if stage >= from_stage else size

    return {
        Factor.PARAMETERS: share(sum(p.bytes for p in parameters), 3),
        Factor.OPTIMIZER_STATES: share(optimizer, 1),
        Factor.GRADIENTS: share(sum(p.bytes for p in trained), 2),
        Factor.ACTIVATIONS: kept(model, {papers_modality(p.name) for p in trained}),
    }


def kept(model: Subject, modalities: Collection[str]) -> int:
    """Bytes of activations that are alive at the end of the forward pass, made by modules of ``modalities``."""
    events = model.formula.micro.events
    buffers, row_bytes = events.buffers, sizes_at(events, model.shape, model.gpu)
    end = int(np.flatnonzero(events.moment == MOMENTS.index(Moment.FORWARD))[-1])
    return sum(int(row_bytes[buffers.size[buffer]]) for buffer in timeline.alive_buffers(events, end)
               if FACTORS[buffers.factor[buffer]] is Factor.ACTIVATIONS
               and papers_modality(events.names[buffers.module[buffer]]) in modalities)


def papers_modality(path: str) -> str:
    """The modality (``vision``, ``projection`` or ``language``) of a parameter or module path."""
    return {"vision_tower": "vision", "projector": "projection"}.get(modality(path), "language")


BASELINE = Baseline(
    name="Eq. 1",
    source="Jeong et al., GPU Memory Prediction for Multimodal Model Training, SAA '25, arXiv 2512.07853; each factor "
           "exact",
    counts="parameters, gradients, optimizer states (ZeRO's share), activations kept by the modalities that train",
    does_not_count="when each factor is at its largest; activations of frozen modalities; recomputation; temporaries "
                   "of backward and of the optimizer step; communication buckets; the allocator",
    estimate=estimate,
)
