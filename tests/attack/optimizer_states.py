"""A closed form: the states of AdamW on plain PyTorch are twice what trains, from numbers of parameters that are published."""

from __future__ import annotations

import random
from typing import NamedTuple

from predictor.events.events import Factor
from tests.attack.jobs import answered, changed, usual_job
from tests.attack.rounds import Round


class Model(NamedTuple):
    """A model of layers with seven linear layers each, whose numbers of parameters are known from its own configuration.

    Attributes:
        parameters, tensors: of the whole model.
        layers: number of its layers.
        hidden, inner, queries, keys: widths of a layer: of its input, of its MLP, of all query heads, and of all key heads.
    """

    parameters: int
    tensors: int
    layers: int
    hidden: int
    inner: int
    queries: int
    keys: int

    def of_adapters(self, rank: int) -> int:
        """Parameters of LoRA on every linear layer of the layers: its inputs and outputs, times the rank (arXiv 2106.09685)."""
        return rank * self.layers * (2 * (self.hidden + self.queries) + 2 * (self.hidden + self.keys) + 3 * (self.hidden + self.inner))


MODELS = {"llama-3.1-8b": Model(8_030_261_248, 291, 32, 4_096, 14_336, 4_096, 1_024), "qwen3-8b": Model(8_190_735_360, 399, 36, 4_096, 12_288, 4_096, 1_024)}
BF16, FP32, STATES, LINEAR, MATRICES = 2, 4, 2, 7, 2
"""Bytes of a number, states of AdamW, linear layers of a layer, matrices of an adapter."""
COUNTERS = {"adamw_torch": 0, "adamw_torch_fused": 4}
"""Optimizer -> bytes of each tensor's counter of steps: on the GPU only if the optimizer is fused (torch/optim/adamw.py)."""


def play(number: int) -> Round:
    """A round: each optimizer on a random model, in full and with adapters, which peft makes of fp32 (0.21)."""
    draw, found = random.Random(number), Round()
    name, model = draw.choice(sorted(MODELS.items()))
    for rank in (None, 8, 16):
        base = usual_job(name, {"recipe": "full"} if rank is None else {"recipe": "lora", "lora": {"r": rank}})
        trained, size, tensors = (model.parameters, BF16, model.tensors) if rank is None else (
            model.of_adapters(rank), FP32, model.layers * LINEAR * MATRICES)
        for optim, counter in (*COUNTERS.items(), ("sgd", 0)):
            job = changed(base, optim=optim, per_device_train_batch_size=draw.choice((1, 2, 3)), engine="torch", data_parallel_size=1,
                          param_groups="single")  # of two groups the second has no states yet when the first step updates the first
            prediction = job and answered(job)
            if job is None or prediction is None:
                continue
            expected = 0 if optim == "sgd" else STATES * size * trained + counter * tensors
            found.models.add(name)
            found.check("AdamW's states are two numbers for each that trains", prediction.factors[Factor.OPTIMIZER_STATES] == expected, job,
                        predicted=prediction.factors[Factor.OPTIMIZER_STATES], expected=expected)
    return found
