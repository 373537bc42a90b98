"""Combines keys from model, loop, machine and batch into the workload of a training, or takes the user's workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from calibrate.training import loop_keys, model_keys
from calibrate.training.batch_keys import Extent, batch_keys
from predictor.common.errors import InputError
from predictor.readers.deepspeed import uncast_message
from predictor.workload.workload import Workload


@dataclass(frozen=True)
class Reading:
    """Workload keys of a training, without those of a batch.

    Attributes:
        keys: the workload keys.
        document: the model's ``config.json``; None if the user gave the workload.
        assumed: values of keys that the loop does not show before its first step and that the user did not set.
        notes: parts of the training that the prediction leaves out.
    """

    keys: Mapping[str, Any]
    document: Mapping[str, Any] | None = None
    assumed: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def with_keys(self, keys: Mapping[str, Any]) -> Reading:
        """The same reading with keys that the loop has shown."""
        return replace(self, keys={**self.keys, **keys},
                       assumed={name: value for name, value in self.assumed.items() if name not in keys})

    @property
    def complete(self) -> bool:
        """Whether the keys make a workload without a batch."""
        return self.document is None

    def workload(self, batch: Mapping[str, Any] | None, size: Extent | None) -> Workload:
        """The workload for a batch. If the user gave the workload, only the batch's size is read.

        Raises:
            InputError: a batch or a combination of keys that is not predicted.
        """
        if self.document is not None:
            return Workload.from_mapping({**self.keys, **batch_keys(batch or {}, self.document)})
        sizes = {} if size is None else {"per_device_train_batch_size": size.samples,
                                         "sequence_length": size.tokens or None}
        return Workload.from_mapping({**self.keys, **sizes})


def from_workload(workload: Workload, device: int | None) -> Reading:
    """The user's workload for this process: its rank, and the current GPU unless the workload names one.

    Raises:
        InputError: the workload has another world size.
    """
    rank, ranks = loop_keys.ranks()
    if workload.world_size != ranks:
        parts = f" x tensor_parallel_size {workload.tensor_parallel_size}" if workload.tensor_parallel_size > 1 else ""
        raise InputError(f"the Workload has data_parallel_size {workload.data_parallel_size}{parts}, and this training "
                         f"has {ranks} rank(s): make them agree")
    machine = loop_keys.machine_keys(device) if workload.capacity is None else {}
    return Reading({**workload.resolved(), **machine, "rank": rank})


def from_trainer(args: Any, model: Any, optimizer: Any, processing_class: Any, samples: int, device: int | None,
               directory: Path) -> Reading:
    """Reads the workload from what Hugging Face's Trainer passes to its callbacks.

    Args:
        samples: samples in a micro-batch.
        device: index of the GPU, or None.
        directory: where to write the model's configuration if it has no built-in name.

    Raises:
        InputError: no key describes a setting.
    """
    keys = loop_keys.trainer_keys(args, optimizer, samples)
    model_part = model_keys.model_keys(model)
    if "deepspeed" in keys:
        _cast(model_part, keys["deepspeed"])
    elif keys.get("mixed_precision") and "quantization" in model_part:
        model_part.pop("dtype")  # dtype has its own default under autocast
    ranks = loop_keys.ranks()[1]
    if ranks > 1 and "deepspeed" not in keys:
        keys |= loop_keys.trainer_ddp_keys(args, model_part["gradient_checkpointing"], "lora" in model_part)
    keys |= model_part
    evaluation, notes = loop_keys.evaluation_keys(args, keys)
    return replace(_reading(keys | evaluation, model, processing_class, device, directory), notes=notes)


def _cast(model_part: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Apply DeepSpeed's cast: with bf16 or fp16 enabled it casts every weight, otherwise none."""
    if any((config.get(name) or {}).get("enabled") is True for name in ("bf16", "bfloat16", "fp16")):
        model_part.pop("dtype")
    elif model_part["dtype"] != "fp32":
        raise InputError(f"of the DeepSpeed config {uncast_message(model_part['dtype'])}")


WRAPPERS = ("DistributedDataParallel", "DeepSpeedEngine")


def unwrapped(model: Any) -> Any:
    """The model inside its engine."""
    return model.module if type(model).__name__ in WRAPPERS else model


def from_loop(model: Any, optimizer: Any, device: int | None, directory: Path) -> Reading:
    """Reads the workload from the model, as its engine wraps it, and the optimizer of the user's own loop.

    Raises:
        InputError: no key describes a setting, or there is no optimizer.
    """
    engine, module = type(model).__name__, unwrapped(model)
    optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
    if optimizer is None:
        raise InputError("optimizer: not known: pass watch(model, optimizer=…), or give a Workload")
    model_part = model_keys.model_keys(module)
    if engine == "DeepSpeedEngine":
        # _param_dict is the config's content, also where the user gave a path
        keys = loop_keys.deepspeed_keys(model._config._param_dict, optimizer)
        keys |= {"gradient_accumulation_steps": model.gradient_accumulation_steps()}
        _cast(model_part, keys["deepspeed"])
    else:
        keys = loop_keys.optimizer_keys(optimizer) | {"max_grad_norm": 0.0}
        if engine == "DistributedDataParallel":
            keys |= loop_keys.ddp_keys(model.bucket_bytes_cap / (1 << 20), model.find_unused_parameters,
                                       model.static_graph, model.gradient_as_bucket_view)
        elif loop_keys.ranks()[1] > 1:
            raise InputError(f"the workload of a {engine} on several GPUs cannot be read: give a Workload")
    return _reading(keys | model_part, module, None, device, directory)


def _reading(keys: dict[str, Any], model: Any, processing_class: Any, device: int | None, directory: Path) -> Reading:
    rank, ranks = loop_keys.ranks()
    name = model_keys.known_name(model) or model_keys.save(model, processing_class, directory)
    return Reading({**keys, **loop_keys.machine_keys(device), "model": name, "rank": rank,
                    "data_parallel_size": ranks // loop_keys.tensor_parallel_ranks(keys)},
                   model_keys.document_of(model))
