"""What the ranks of tensor parallelism send each other for a token, by the shapes of whole and held weights."""

from __future__ import annotations

import re
from dataclasses import dataclass

from predictor.events.model_facts import ModelFacts, modality

LAYER = re.compile(r"(.*\.\d+(?=\.))?")
"""Path of the layer that a weight is in; empty outside."""


@dataclass(frozen=True)
class Reductions:
    """Elements of a token in a micro-step: of an all-reduce twice, of an all-gather once, as rings move them.

    transformers 5.17, distributed/tensor_parallel.py: ``RowwiseParallel`` reduces what a layer returns (so do
    embeddings), ``ColwiseParallel`` the gradient of what each layer is given, of q, k and v one by one; a head's logits
    are gathered. A checkpoint repeats all in forward but the last of a layer, where PyTorch stops recomputing
    (torch 2.11, utils/checkpoint.py, ``_StopRecomputationError``).

    Attributes:
        computed: in the dtype of products; ``repeated``: of these, where a checkpoint recomputes.
        stored: in the dtype of weights.
    """

    computed: int = 0
    repeated: int = 0
    stored: int = 0

    @staticmethod
    def of(whole: ModelFacts, held: ModelFacts) -> Reductions:
        """Of a model, by what it has and what a rank holds of it."""
        computed = repeated = stored = 0
        last: dict[str, int] = {}
        shapes = {parameter.name: parameter.shape for parameter in whole.parameters}
        for parameter in held.parameters:
            if not parameter.sharded or len(parameter.shape) < 2:  # a bias has its weight's
                continue
            rows, columns = shapes[parameter.name]
            if parameter.is_embedding:  # sharded only with a head that is tied to it
                computed += rows
                stored += 4 * columns
            elif parameter.shape[0] == rows:
                computed += 2 * rows
                layer = LAYER.match(parameter.name)[0]
                repeated += last.get(layer, 0)
                last[layer] = 2 * rows
            else:
                computed += rows * (modality(parameter.name) == "head")
                stored += 2 * columns
        return Reductions(computed, repeated, stored)
