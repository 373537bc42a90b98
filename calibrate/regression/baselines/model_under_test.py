"""The model of a workload as baselines need it: its parameters and its traced micro-step, independent of the engine."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.common.gpus import Gpu
from predictor.events.model_facts import ModelFacts
from predictor.events.sizes import Shape
from predictor.formula.formula import Formula
from predictor.jobs import dispatch, training_job
from predictor.model import models
from predictor.model.request import Request, gpu_of
from predictor.workload.keys import KEYS
from predictor.workload.workload import Workload


@dataclass(frozen=True, eq=False)
class Subject:
    """A model at one shape. The formula of its micro-step also holds its parameters."""

    formula: Formula
    shape: Shape
    gpu: Gpu

    @property
    def facts(self) -> ModelFacts:
        """Facts of the model: its parameters and buffers."""
        return self.formula.facts

    @property
    def parameters(self) -> int:
        """Number of elements of all parameters."""
        return sum(p.numel for p in self.facts.parameters if not p.buffer)

    @property
    def trainable(self) -> int:
        """Number of elements of the trainable parameters."""
        return sum(p.numel for p in self.facts.parameters if p.trainable)


def subject(workload: Workload) -> Subject:
    """The workload's model at its shape.

    Raises:
        InputError: as :func:`predictor.answer.predict.predict`, except that every engine is accepted.
    """
    one_process = single(workload)
    request = Request.of(one_process).on(gpu_of(workload))
    formula = training_job.find_formula(request)
    training_job.check_shape(request, formula)
    return Subject(formula, request.shape, request.gpu)


def single(workload: Workload) -> Workload:
    """The same model, recipe and shape in one process under plain PyTorch. Workloads that differ only in their engine
    become equal.

    Raises:
        InputError: the model's configuration cannot be found.
    """
    images = dispatch.resolve(workload).workload.images_per_sample
    of_engines = [name for name, entry in KEYS.items() if entry.metadata["group"] in ("engine", "gpu")]
    return workload.replace(**dict.fromkeys([*of_engines, "max_grad_norm", "gradient_accumulation_steps"]) | {
        "per_device_train_batch_size": workload.per_device_train_batch_size, "images_per_sample": images,
        "optim": workload.optim, "versions": workload.versions})


def shape_of(workload: Workload) -> Shape:
    """Samples, tokens and images of the micro-batch."""
    batch = workload.per_device_train_batch_size
    return Shape(batch, workload.sequence_length or 0, batch * (workload.images_per_sample or 0))


def partitions(workload: Workload) -> int:
    """Number of GPUs that ZeRO partitions over; 1 without ZeRO."""
    return workload.data_parallel_size if workload.engine == "deepspeed" else 1


def configuration(workload: Workload) -> dict:
    """The model's ``config.json``.

    Raises:
        InputError: it cannot be found or read.
    """
    return models.find(workload.model).document
