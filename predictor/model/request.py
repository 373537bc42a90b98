"""A request: a workload with the configuration, the GPU and the shape that it names, each looked up once."""

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
    """What is predicted.

    Attributes:
        workload: with the defaults that only the model could settle.
        config: of its model; None where a learned file answers.
        gpu: whose kernels run; the default one where the workload names none.
        shape: of one micro-batch, or of what the first forward of a call of ``generate`` sees.
    """

    workload: Workload
    config: ModelConfig | None
    gpu: Gpu
    shape: Shape

    @classmethod
    def of(cls, workload: Workload, shape: Shape | None = None) -> Request:
        """The request of a workload whose ``images_per_sample`` is known.

        Args:
            shape: where it is not :func:`shape_of`'s.

        Raises:
            InputError: an unknown model or GPU.
        """
        return cls(workload, models.find(workload.model), gpu_of(workload), shape or shape_of(workload))

    def at(self, shape: Shape) -> Request:
        """The same of another shape."""
        return replace(self, shape=shape)

    def on(self, gpu: Gpu) -> Request:
        """The same on another GPU."""
        return replace(self, gpu=gpu)


def gpu_of(workload: Workload) -> Gpu:
    """The GPU of a workload, or the default one.

    Raises:
        InputError: an unknown GPU.
    """
    return gpus.find(workload.gpu or gpus.DEFAULT)


def shape_of(workload: Workload) -> Shape:
    """The shape of one micro-batch; ``images_per_sample`` must be known."""
    return Shape(workload.per_device_train_batch_size, workload.sequence_length or 0,
                 workload.per_device_train_batch_size * workload.images_per_sample)
