"""The stated estimate that configurations are ranked by: seconds of a step as a few rates and counts give them.

It is for comparing configurations of one model on one kind of GPU, not for predicting a speed: nothing in it was
measured. :func:`assumptions` says all of it in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from predictor.common.gpus import Gpu
from predictor.events.model_facts import TOWERS, ModelFacts, Parameter, modality
from predictor.plan.reductions import Reductions
from predictor.workload.engines import name_of
from predictor.workload.workload import Workload

Numbers = np.ndarray | float


@dataclass(frozen=True)
class Rates:
    """What a GPU does a second by its data sheet: dense bf16 products (TFLOP), bytes to another GPU of the node in one
    direction and of its own memory (GB)."""

    tflops: float
    link: float
    memory: float


RATES = {
    "h100-80gb": Rates(989, 450, 3350), "h100-pcie-80gb": Rates(756, 64, 2000), "h200": Rates(989, 450, 4800),
    "b200": Rates(2250, 900, 8000), "a100-40gb": Rates(312, 300, 1555), "a100-80gb": Rates(312, 300, 2039),
    "a800-80gb": Rates(312, 200, 2039), "l40s": Rates(362, 32, 864), "l20": Rates(119, 32, 864),
    "l4": Rates(121, 32, 300), "a10": Rates(125, 32, 600), "a10g": Rates(70, 32, 600), "a40": Rates(150, 32, 696),
    "rtx-a6000": Rates(155, 32, 768), "rtx-6000-ada": Rates(364, 32, 960), "rtx-5090": Rates(210, 64, 1792),
    "rtx-4090": Rates(165, 32, 1008), "rtx-3090": Rates(71, 32, 936),
}
"""Data sheets of NVIDIA; without NVLink in the sheet, PCIe."""
ELSEWHERE = Rates(100, 32, 800)
"""Of a GPU that is not in the table."""
OF_PRODUCTS, OF_LINKS = 0.45, 0.7
"""Shares of these rates that training reaches."""
HOST_LINK, HOST_MEMORY = 25.0, 100.0
"""GB a second between a GPU and the host's memory, and of that memory, which the GPUs of a node share."""
NODE, BETWEEN_NODES = 8, 50.0
"""GPUs of a node, and GB a second of each to other nodes."""
UPDATE_BYTES = 28
"""Read and written by AdamW for each element: fp32 weight, gradient and two moments, of which it writes three."""
GIGA = 1e9

VOLUME = {"torch": (0, 0, 0), "ddp": (0, 0, 2), "zero0": (0, 0, 2), "zero1": (0, 0, 2), "zero2": (0, 1, 1),
          "zero3": (2, 1, 0), "fsdp2": (2, 0, 1)}
"""Engine -> all-gathers of all parameters in a micro-step, reduce-scatters of the trained ones in it, and all-gathers
or reduce-scatters of the trained ones in a step; an all-reduce is one of each. ZeRO-3 keeps what it gathered for the
recomputation until backward has used it."""
WHOLE = ("torch", "ddp", "zero0")
"""Engines under which every GPU updates all that trains."""


@dataclass(frozen=True)
class Estimate:
    """Seconds of one optimizer step, each part as if nothing overlapped; numbers, or arrays over shapes."""

    products: Numbers
    recomputation: Numbers
    communication: Numbers
    host: Numbers
    update: Numbers
    samples: Numbers

    @property
    def seconds(self) -> Numbers:
        """Of the whole step."""
        return self.products + self.recomputation + self.communication + self.host + self.update

    @property
    def seconds_per_sample(self) -> Numbers:
        """What configurations are compared by."""
        return self.seconds / self.samples

    def to_json(self) -> dict[str, Any]:
        """Parts, in seconds of an optimizer step."""
        return {f"{name}_seconds": float(value) for name, value in vars(self).items() if name != "samples"} | {
            "seconds_per_sample": float(self.seconds_per_sample)}


@dataclass(frozen=True)
class Elements:
    """Of weights that tokens of one kind meet in products: all, what trains, what layers under checkpoints have."""

    all: int = 0
    trained: int = 0
    recomputed: int = 0

    def of(self, parameter: Parameter, module: str) -> Elements:
        """With one parameter more."""
        numel = _numel(parameter)
        return Elements(self.all + numel, self.trained + numel * parameter.trainable,
                        self.recomputed + numel * (module not in ("head", "projector")))


@dataclass(frozen=True)
class Model:
    """What the estimate needs to know of one: elements that tokens of text meet and those that pictures meet, of all
    parameters, of those that train, as a GPU holds them; tokens of a picture; what tokens of text have to send."""

    text: Elements
    media: Elements
    everything: int
    trained: int
    tokens_per_image: int
    reductions: Reductions = Reductions()

    @staticmethod
    def of(facts: ModelFacts, whole: ModelFacts | None = None) -> Model:
        """From the facts of any formula of a model and recipe; of tensor parallelism, also of one without."""
        text, media = Elements(), Elements()
        parameters = [parameter for parameter in facts.parameters if not parameter.buffer]
        for parameter in parameters:
            module = modality(parameter.module)
            if parameter.is_embedding:
                continue
            if module in (*TOWERS, "projector"):
                media = media.of(parameter, module)
            else:
                text = text.of(parameter, module)
        return Model(text, media, sum(map(_numel, parameters)),
                     sum(_numel(parameter) for parameter in parameters if parameter.trainable),
                     max(1, facts.tokens_per_image), Reductions.of(whole, facts) if whole else Reductions())


def _numel(parameter: Parameter) -> int:
    return parameter.numel * (2 if parameter.packed else 1)


def estimate(workload: Workload, model: Model, gpu: Gpu, batch: Numbers, accumulation: Numbers,
             sequence: Numbers) -> Estimate:
    """One optimizer step.

    Args:
        workload: engine and recipe; its own shape is not looked at.
        batch, accumulation, sequence: numbers, or arrays of one length.
    """
    rates, gpus, parts = RATES.get(gpu.name, ELSEWHERE), workload.data_parallel_size, workload.tensor_parallel_size
    engine = name_of(workload.engine, workload.zero_stage)
    width = 4 if workload.dtype == "fp32" else 2
    everything, trained = model.everything, model.trained
    tokens, seen = np.maximum(sequence, 1), model.tokens_per_image * (workload.images_per_sample or 0)
    passed, updated, layers = (getattr(model.text, part) * tokens + getattr(model.media, part) * seen
                               for part in ("all", "trained", "recomputed"))
    micro_steps = batch * accumulation
    flops = rates.tflops * 1e12 * OF_PRODUCTS
    reading = everything * width / (rates.memory * GIGA) * accumulation  # all weights, once a pass
    gathered, reduced, stepped = VOLUME[engine]
    if engine == "fsdp2" and workload.fsdp["sync_each_batch"]:
        reduced, stepped = 1, 0
    moved = (gathered * everything + reduced * trained) * accumulation + stepped * trained
    sent = model.reductions
    computed = (sent.computed + sent.repeated * workload.gradient_checkpointing) * (
        4 if workload.computes_in == "fp32" else 2)
    between = (computed + sent.stored * width) * tokens * micro_steps * (parts - 1) / parts / link(rates, parts)
    share = 1 if engine in WHOLE else 1 / gpus
    update, host = UPDATE_BYTES * trained * share / (rates.memory * GIGA), 0.0
    if workload.offload in ("optimizer", "all"):
        copied = width * trained * share * (1 + (accumulation if reduced else 1))
        host = copied / (HOST_LINK * GIGA) + UPDATE_BYTES * trained / -(-gpus // NODE) / (HOST_MEMORY * GIGA)
        update = 0.0
    if workload.offload in ("parameters", "all"):
        host = host + 2 * width * everything * share * accumulation / (HOST_LINK * GIGA)
    return Estimate(
        products=(2 * passed + updated) * 2 * micro_steps / flops + 3 * reading,
        recomputation=(2 * layers * micro_steps / flops + reading) * workload.gradient_checkpointing,
        communication=moved * width * (gpus - 1) / gpus / link(rates, gpus * parts) + between, host=host, update=update,
        samples=micro_steps * gpus)


def link(rates: Rates, span: int) -> float:
    """Bytes a second in a ring that reaches over so many GPUs, those of a node side by side."""
    return (rates.link if span <= NODE else BETWEEN_NODES) * GIGA * OF_LINKS


def assumptions(gpu: Gpu, gpus: int, tensor_parallel: bool = False) -> tuple[str, ...]:
    """The estimate in sentences; of tensor parallelism, if it is tried."""
    rates = RATES.get(gpu.name, ELSEWHERE)
    sharded = ("tensor parallelism, whose ranks are neighbours, all-reduces each micro-step's activations after each "
               "layer sharded by rows, their gradients before each sharded by columns, and the former again where a "
               "checkpoint recomputes",) if tensor_parallel else ()
    listed = "" if gpu.name in RATES else " (not in the table: assumed)"
    return (
        "an estimate for ranking, not a predicted speed: nothing in it was measured, and no part overlaps another",
        f"products: 2 FLOP an element and token forward, 2 backward, 2 more where it trains, and 2 where a checkpoint "
        f"recomputes, at {OF_PRODUCTS:.0%} of {rates.tflops:,.0f} TFLOP/s{listed}; attention's own products and "
        "convolutions left out",
        f"each pass of a micro-step reads all weights once, at {rates.memory:,.0f} GB/s",
        f"communication: rings of {gpus} GPUs at {OF_LINKS:.0%} of "
        f"{rates.link if gpus <= NODE else BETWEEN_NODES:,.0f} GB/s; all-reduces, reduce-scatters and all-gathers by "
        "engine, of gradients in the weights' dtype",
        *sharded,
        f"the host: {HOST_LINK:,.0f} GB/s to each GPU; its AdamW at {HOST_MEMORY:,.0f} GB/s of memory, which {NODE} "
        "GPUs share",
        f"an update reads and writes {UPDATE_BYTES} bytes an element, whatever the optimizer",
    )
