"""The paper's Eq. 1: parameters, optimizer states, gradients and activations, added up over all layers.

J. Jeong, M. Kang, Y. Go, C. Shin, H. Lee, J. Yoon, G. Yang, C. Yoo: GPU Memory Prediction for Multimodal Model
Training. 1st Workshop on Systems for Agentic AI (SAA '25, with SOSP 2025), arXiv 2512.07853: peak = sum over modules,
sum over layers of (M_param + M_opt + M_grad + M_act). A frozen layer has parameters only, and activations are counted
for the modalities whose parameters are updated.

It gives no formula for a factor. The readings taken here, each of them the exact value of what it names, so that what
is left of the error is the sum's own:

- M_param: every parameter at its own size; buffers are none. M_grad: one element of that size for each that trains.
- M_opt, under ZeRO: an fp32 master weight and two fp32 moments for each element that trains; under plain PyTorch and
  DDP: two moments of the parameter's own size.
- Under ZeRO with N GPUs a partitioned factor is divided by N: optimizer states from stage 1 on, gradients from
  stage 2, parameters in stage 3 (Rajbhandari et al.: ZeRO, SC20, arXiv 1910.02054).
- M_act: tensors of the forward pass that are kept for the backward pass when the forward pass ends, under the
  workload's own checkpointing, taken from the traced step. What a checkpoint recomputes is not kept, so not counted.
- Modalities: vision (the tower), projection, language (the language model and its head, with what lies between
  modules: the merged sequence and the loss).
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
"""Per element that trains: master weight and AdamW's two moments, fp32."""


def estimate(workload: Workload) -> Estimate:
    """The sum, in bytes of one GPU.

    Raises:
        InputError: the model cannot be found, or its step cannot be traced.
    """
    asked = subject(workload)
    return Estimate(sum(factors(asked, workload).values()))


def factors(asked: Subject, workload: Workload) -> dict[Factor, int]:
    """The four factors in bytes of one GPU."""
    degree, stage = partitions(workload), workload.zero_stage or 0
    parameters = [p for p in asked.facts.parameters if not p.buffer]
    trained = [p for p in parameters if p.trainable]
    zero = workload.engine == "deepspeed" and stage > 0
    optimizer = sum(p.numel * ZERO_OPTIMIZER_BYTES if zero else 2 * p.bytes for p in trained)

    def share(size: int, from_stage: int) -> int:
        return -(-size // degree) if stage >= from_stage else size

    return {
        Factor.PARAMETERS: share(sum(p.bytes for p in parameters), 3),
        Factor.OPTIMIZER_STATES: share(optimizer, 1),
        Factor.GRADIENTS: share(sum(p.bytes for p in trained), 2),
        Factor.ACTIVATIONS: kept(asked, {papers_modality(p.name) for p in trained}),
    }


def kept(asked: Subject, modalities: Collection[str]) -> int:
    """Bytes of activations that live when the forward pass ends, made by modules of some modalities."""
    events = asked.formula.micro.events
    buffers, row_bytes = events.buffers, sizes_at(events, asked.shape, asked.gpu)
    end = int(np.flatnonzero(events.moment == MOMENTS.index(Moment.FORWARD))[-1])
    return sum(int(row_bytes[buffers.size[buffer]]) for buffer in timeline.alive(events, end)
               if FACTORS[buffers.factor[buffer]] is Factor.ACTIVATIONS
               and papers_modality(events.names[buffers.module[buffer]]) in modalities)


def papers_modality(path: str) -> str:
    """``vision``, ``projection`` or ``language`` for the path of a parameter or module."""
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
