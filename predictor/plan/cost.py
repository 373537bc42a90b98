"""The cost estimate that ranks configurations: seconds of a step, from data sheet rates and parameter counts.

It compares configurations of one model on one GPU type. It does not predict a speed: nothing in it was measured.
:func:`assumptions` lists its assumptions in sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from predictor.common.gpus import NODE, Gpu
from predictor.events.model_facts import TOWERS, ModelFacts, Parameter, modality
from predictor.plan.reductions import Reductions
from predictor.workload.engines import name_of
from predictor.workload.workload import Workload

Numbers = np.ndarray | float


@dataclass(frozen=True)
class Rates:
    """A GPU's rates by its data sheet.

    Attributes:
        tflops: dense bf16 matrix products, TFLOP/s.
        link: to another GPU of the node in one direction, GB/s.
        memory: of its own memory, GB/s.
    """

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
"""By NVIDIA's data sheets. If a sheet lists no NVLink, the link is PCIe."""
ELSEWHERE = Rates(100, 32, 800)
"""Assumed rates of a GPU that is not in the table."""
OF_PRODUCTS, OF_LINKS = 0.45, 0.7
"""Assumed fractions of ``tflops`` and ``link`` that training reaches."""
HOST_LINK, HOST_MEMORY = 25.0, 100.0
"""GB/s between each GPU and the host's memory, and of the host's memory itself, which the GPUs of a node share."""
BETWEEN_NODES = 50.0
"""GB/s from each GPU to other nodes."""
UPDATE_BYTES = 28
"""Bytes that AdamW reads and writes per element: reads fp32 weight, gradient and two moments, and writes all but the
gradient."""
GIGA = 1e9

VOLUME = {"torch": (0, 0, 0), "ddp": (0, 0, 2), "zero0": (0, 0, 2), "zero1": (0, 0, 2), "zero2": (0, 1, 1),
          "zero3": (2, 1, 0), "fsdp1": (2, 0, 1), "fsdp2": (2, 0, 1)}
"""Communication volume by engine, as three counts: all-gathers of all parameters per micro-step, reduce-scatters of the
trained parameters per micro-step, and all-gathers or reduce-scatters of the trained parameters per step. An all-reduce
counts as one of each. ZeRO-3 gathers parameters for the recomputation and keeps them until backward has used them."""
WHOLE = ("torch", "ddp", "zero0")
"""Engines under which every GPU updates all trained parameters."""


@dataclass(frozen=True)
class Estimate:
    """Seconds of one optimizer step by part, as if no part overlapped another.

    Values are numbers, or arrays over shapes. ``samples`` is the number of samples in the step, on all GPUs.
    """

    products: Numbers
    recomputation: Numbers
    communication: Numbers
    host: Numbers
    update: Numbers
    samples: Numbers

    @property
    def seconds(self) -> Numbers:
        """Seconds of the whole step."""
        return self.products + self.recomputation + self.communication + self.host + self.update

    @property
    def seconds_per_sample(self) -> Numbers:
        """The cost that configurations are compared by."""
        return self.seconds / self.samples

    def to_json(self) -> dict[str, Any]:
        """The parts of an optimizer step, in seconds."""
        return {f"{name}_seconds": float(value) for name, value in vars(self).items() if name != "samples"} | {
            "seconds_per_sample": float(self.seconds_per_sample)}


@dataclass(frozen=True)
class Elements:
    """Elements of the weights that text tokens, or image tokens, are multiplied with.

    Attributes:
        all: elements of all these weights.
        trained: of those that train.
        recomputed: of those in layers that activation checkpointing recomputes.
    """

    all: int = 0
    trained: int = 0
    recomputed: int = 0

    def of(self, parameter: Parameter, module: str) -> Elements:
        """The sums with one more parameter, of modality module ``module``."""
        numel = _numel(parameter)
        return Elements(self.all + numel, self.trained + numel * parameter.trainable,
                        self.recomputed + numel * (module not in ("head", "projector")))


@dataclass(frozen=True)
class Model:
    """Facts about a model that the estimate needs.

    Attributes:
        text, media: weights that text tokens and image tokens are multiplied with.
        everything, trained: elements of all parameters and of the trained ones, as one GPU holds them.
        tokens_per_image: tokens of a picture.
        reductions: elements that tensor parallelism sends for each text token.
    """

    text: Elements
    media: Elements
    everything: int
    trained: int
    tokens_per_image: int
    reductions: Reductions = Reductions()

    @staticmethod
    def of(facts: ModelFacts, whole: ModelFacts | None = None) -> Model:
        """Collects the facts from any formula of the model and recipe.

        Args:
            whole: under tensor parallelism, the facts of the same model without it.
        """
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
    """The estimate of one optimizer step.

    Args:
        workload: all settings but the shape.
        batch, accumulation, sequence: the shape, as numbers or as arrays of the same length.
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
    reading = everything * width / (rates.memory * GIGA) * accumulation  # each pass reads all weights once
    gathered, reduced, stepped = VOLUME[engine]
    if any(keys["sync_each_batch"] for keys in (workload.fsdp, workload.fsdp1) if keys):
        reduced, stepped = 1, 0
    moved = (gathered * everything + reduced * trained) * accumulation + stepped * trained
    sent = model.reductions
    computed = (sent.computed + sent.repeated * workload.gradient_checkpointing) * (
        4 if workload.computes_in == "fp32" else 2)
    between = (computed + sent.stored * width) * tokens * micro_steps * (parts - 1) / parts / link(rates, parts)
    share = 1 if engine in WHOLE else 1 / gpus
    host: Numbers = 0.0
    update = UPDATE_BYTES * trained * share / (rates.memory * GIGA)
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
    """Bytes per second of a ring over ``span`` GPUs, in which the GPUs of a node are neighbours."""
    return (rates.link if span <= NODE else BETWEEN_NODES) * GIGA * OF_LINKS


def assumptions(gpu: Gpu, gpus: int, tensor_parallel: bool = False) -> tuple[str, ...]:
    """The assumptions of the estimate, as sentences.

    Args:
        tensor_parallel: whether to include the assumptions about tensor parallelism.
    """
    rates = RATES.get(gpu.name, ELSEWHERE)
    sharded = ("tensor parallelism, whose ranks are neighbours, all-reduces each micro-step's activations after each "
               "layer sharded by rows, their gradients before each sharded by columns, and the former again where a "
               "checkpoint recomputes",) if tensor_parallel else ()
    rings = (f"communication: rings of {gpus} GPUs at {OF_LINKS:.0%} of "
             f"{rates.link if gpus <= NODE else BETWEEN_NODES:,.0f} GB/s; all-reduces, reduce-scatters and all-gathers "
             "by engine, of gradients in the weights' dtype",) if gpus > 1 else ()
    shared = f", which the {min(gpus, NODE)} GPUs of a node share" if gpus > 1 else ""
    listed = "" if gpu.name in RATES else " (not in the table: assumed)"
    return (
        "an estimate for ranking, not a predicted speed: nothing in it was measured, and no part overlaps another",
        f"products: 2 FLOP an element and token forward, 2 backward, 2 more where it trains, and 2 where a checkpoint "
        f"recomputes, at {OF_PRODUCTS:.0%} of {rates.tflops:,.0f} TFLOP/s{listed}; attention's own products and "
        "convolutions left out",
        f"each pass of a micro-step reads all weights once, at {rates.memory:,.0f} GB/s",
        *rings,
        *sharded,
        f"the host: {HOST_LINK:,.0f} GB/s to each GPU; its AdamW at {HOST_MEMORY:,.0f} GB/s of memory{shared}",
        f"an update reads and writes {UPDATE_BYTES} bytes an element, whatever the optimizer",
    )
