"""A configuration without its shape: a point of the space that a plan searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from predictor.workload.workload import Workload

BATCH, STEPS, LENGTH = "per_device_train_batch_size", "gradient_accumulation_steps", "sequence_length"
SHARINGS = ("data parallel", "fully sharded", "tensor parallel", "combined")
"""Ways to share the work among GPUs: by samples; by samples and weights (ZeRO-3, FSDP2); by layers; by samples and
layers."""
ALONE = "one GPU"
"""Takes the place of a way to share the work for a plain loop on one GPU."""


@dataclass(frozen=True)
class Setting:
    """A configuration without its shape.

    Attributes:
        method: name of the engine and of what is offloaded to the host.
        rest: names of the other choices.
        differs: how the trained model, or the training loop, differs from the usual; empty if it does not.
        keys: the workload's keys.
        cuts: whether it trains with less of each sample.
    """

    method: str
    rest: tuple[str, ...]
    differs: tuple[str, ...]
    keys: Mapping[str, Any] = field(hash=False, compare=False)
    cuts: bool = False

    @property
    def name(self) -> str:
        """The setting's name in reports."""
        return " · ".join((self.method, *self.rest))

    @property
    def sharing(self) -> str:
        """The way to share the work, one of :data:`SHARINGS`. On one GPU :data:`ALONE`, or empty under DeepSpeed."""
        workload = self.at_any_shape
        if workload.tensor_parallel_size > 1:
            return "combined" if workload.data_parallel_size > 1 else "tensor parallel"
        if workload.data_parallel_size == 1:
            return ALONE if workload.engine == "torch" else ""
        return "fully sharded" if workload.engine in ("fsdp1", "fsdp2") or workload.zero_stage == 3 else "data parallel"

    @property
    def at_any_shape(self) -> Workload:
        """The workload of this setting with the samples and micro-steps that its keys fix, or else one."""
        return Workload.from_mapping({BATCH: 1, **self.keys, LENGTH: None})

    def workload(self, batch: int, accumulation: int, sequence: int | None) -> Workload:
        """The workload of this setting at a shape."""
        steps = {} if accumulation == 1 else {STEPS: accumulation}  # a learned job does not take this key
        return Workload.from_mapping({**self.keys, **steps, BATCH: batch, LENGTH: sequence})
