"""A request for a prediction: a workload with its model configuration, GPU and shape, each looked up once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from predictor.common import gpus
from predictor.common.gpus import Gpu
from predictor.events.sizes import Shape
from predictor.model import models
from predictor.model.model_config import ModelConfig
from predictor.workload.workload import Workload


@dataclass(frozen=True)
class Request:
    """A request for a prediction.

    Attributes:
        workload: the user's settings, with defaults that depend on the model filled in.
        config: configuration of the model; None if a learned file answers.
        gpu: the GPU whose kernels run; the default GPU if the workload names none.
        shape: shape of one micro-batch, or of the first forward of a call of ``generate``.
    """

    workload: Workload
    config: ModelConfig | None
    gpu: Gpu
    shape: Shape

    @classmethod
    def of(cls, workload: Workload, shape: Shape | None = None) -> Request:
        """The request of a workload whose ``images_per_sample`` is known.

        Args:
            shape: the shape, if it is not that of :func:`shape_of`.

        Raises:
            InputError: the model or GPU is unknown.
        """
        return cls(workload, models.find(workload.model), gpu_of(workload), shape or shape_of(workload))

    def at(self, shape: Shape) -> Request:
        """The same request for another shape."""
        return replace(self, shape=shape)

    def on(self, gpu: Gpu) -> Request:
        """The same request for another GPU."""
        return replace(self, gpu=gpu)


def gpu_of(workload: Workload) -> Gpu:
    """The GPU of a workload, or the default GPU.

    Raises:
        InputError: the GPU is unknown.
    """
    return gpus.find(workload.gpu or gpus.DEFAULT)


def shape_of(workload: Workload) -> Shape:
    """The shape of one micro-batch; the workload's ``images_per_sample`` must be known."""
    assert workload.images_per_sample is not None
    return Shape(workload.per_device_train_batch_size, workload.sequence_length or 0,
                 workload.per_device_train_batch_size * workload.images_per_sample)
