"""Communication of tensor parallelism per token, computed from the shapes of the full and the sharded weights."""

from __future__ import annotations

import re
from dataclasses import dataclass

from predictor.events.model_facts import ModelFacts, modality

LAYER = re.compile(r"(.*\.\d+(?=\.))?")
"""Matches the path of the layer that a weight belongs to; matches empty text for a weight outside of layers."""


@dataclass(frozen=True)
class Reductions:
    """Elements that a ring moves for each token in a micro-step. An all-reduce counts twice, an all-gather once.

    transformers 5.17, distributed/tensor_parallel.py: ``RowwiseParallel`` all-reduces a layer's output (so do sharded
    embeddings). ``ColwiseParallel`` all-reduces the gradient of a layer's input, separately for q, k and v. Logits of
    a sharded head are gathered. Activation checkpointing repeats the communication of forward except the last of each
    layer, because PyTorch stops the recomputation there (torch 2.11, utils/checkpoint.py,
    ``_StopRecomputationError``).

    Attributes:
        computed: elements in the dtype of matrix products.
        repeated: further elements of that dtype where activation checkpointing recomputes.
        stored: elements in the dtype of the weights.
    """

    computed: int = 0
    repeated: int = 0
    stored: int = 0

    @staticmethod
    def of(whole: ModelFacts, held: ModelFacts) -> Reductions:
        """The communication of a model.

        Args:
            whole: facts of the model without tensor parallelism.
            held: facts of the shard that one rank holds.
        """
        computed = repeated = stored = 0
        last: dict[str, int] = {}
        shapes = {parameter.name: parameter.shape for parameter in whole.parameters}
        for parameter in held.parameters:
            if not parameter.sharded or len(parameter.shape) < 2:  # a bias is counted with its weight
                continue
            rows, columns = shapes[parameter.name]
            if parameter.is_embedding:  # an embedding is sharded only if it is tied to the head
                computed += rows
                stored += 4 * columns
            elif parameter.shape[0] == rows:
                computed += 2 * rows
                match = LAYER.match(parameter.name)
                assert match is not None  # it matches empty text too
                layer = match[0]
                repeated += last.get(layer, 0)
                last[layer] = 2 * rows
            else:
                computed += rows * (modality(parameter.name) == "head")
                stored += 2 * columns
        return Reductions(computed, repeated, stored)
