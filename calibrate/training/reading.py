"""The workload of a training, put together from what model, loop, machine and batch say; or the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from calibrate.training import loop_keys, model_keys
from calibrate.training.batch_keys import Extent, batch_keys
from predictor.common.errors import InputError
from predictor.readers.deepspeed import uncast
from predictor.workload.workload import Workload


@dataclass(frozen=True)
class Reading:
    """All but the batch.

    Attributes:
        keys: of a workload.
        document: the model's ``config.json``; None where the user gave the workload.
        assumed: keys that neither the loop shows before its first step nor the user gave, with what is taken.
        notes: what else of the training is left out.
    """

    keys: Mapping[str, Any]
    document: Mapping[str, Any] | None = None
    assumed: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def seen(self, keys: Mapping[str, Any]) -> Reading:
        """With keys that the loop has shown."""
        return replace(self, keys={**self.keys, **keys},
                       assumed={name: value for name, value in self.assumed.items() if name not in keys})

    @property
    def complete(self) -> bool:
        """Whether no batch is needed."""
        return self.document is None

    def workload(self, batch: Mapping[str, Any] | None, size: Extent | None) -> Workload:
        """With what a batch says; of a workload that was given, only how large it is.

        Raises:
            InputError: a batch, or a combination of keys, that is not predicted.
        """
        if not self.complete:
            return Workload.from_mapping({**self.keys, **batch_keys(batch or {}, self.document)})
        sizes = {} if size is None else {"per_device_train_batch_size": size.samples,
                                         "sequence_length": size.tokens or None}
        return Workload.from_mapping({**self.keys, **sizes})


def given(workload: Workload, device: int | None) -> Reading:
    """The user's workload as this process: its rank, and the GPU it finds unless one is named.

    Raises:
        InputError: it is of another number of GPUs.
    """
    rank, ranks = loop_keys.ranks()
    if workload.world_size != ranks:
        parts = f" x tensor_parallel_size {workload.tensor_parallel_size}" if workload.tensor_parallel_size > 1 else ""
        raise InputError(f"the Workload has data_parallel_size {workload.data_parallel_size}{parts}, and this training "
                         f"has {ranks} rank(s): make them agree")
    machine = loop_keys.machine_keys(device) if workload.capacity is None else {}
    return Reading({**workload.resolved(), **machine, "rank": rank})


def of_trainer(args: Any, model: Any, optimizer: Any, processing_class: Any, samples: int, device: int | None,
               directory: Path) -> Reading:
    """From what Hugging Face's Trainer tells its callbacks.

    Args:
        samples: of a micro-batch.
        device: the GPU's number.
        directory: where the model's configuration goes if it has no name.

    Raises:
        InputError: something that no key can say.
    """
    keys = loop_keys.trainer_keys(args, optimizer, samples)
    mine = model_keys.model_keys(model)
    if "deepspeed" in keys:
        _cast(mine, keys["deepspeed"])
    elif keys.get("mixed_precision") and "quantization" in mine:
        mine.pop("dtype")  # which has a default under autocast
    ranks = loop_keys.ranks()[1]
    if ranks > 1 and "deepspeed" not in keys:
        keys |= loop_keys.trainer_ddp_keys(args, mine["gradient_checkpointing"], "lora" in mine)
    keys |= mine
    evaluation, notes = loop_keys.evaluation_keys(args, keys)
    return replace(_reading(keys | evaluation, model, processing_class, device, directory), notes=notes)


def _cast(mine: dict[str, Any], config: Mapping[str, Any]) -> None:
    """DeepSpeed casts every weight where bf16 or fp16 is on, and none elsewhere."""
    if any((config.get(name) or {}).get("enabled") is True for name in ("bf16", "bfloat16", "fp16")):
        mine.pop("dtype")
    elif mine["dtype"] != "fp32":
        raise InputError(f"of the DeepSpeed config {uncast(mine['dtype'])}")


WRAPPERS = ("DistributedDataParallel", "DeepSpeedEngine")


def inner(model: Any) -> Any:
    """The model in its engine."""
    return model.module if type(model).__name__ in WRAPPERS else model


def of_loop(model: Any, optimizer: Any, device: int | None, directory: Path) -> Reading:
    """From the model, as its engine wraps it, and the optimizer of a loop of the user's.

    Raises:
        InputError: something that no key can say, or no optimizer.
    """
    engine, module = type(model).__name__, inner(model)
    optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
    if optimizer is None:
        raise InputError("which optimizer is not known: watch(model, optimizer=…), or give a Workload")
    mine = model_keys.model_keys(module)
    if engine == "DeepSpeedEngine":
        keys = loop_keys.deepspeed_keys(model._config._param_dict, optimizer)  # read, if it was the path of a file
        keys |= {"gradient_accumulation_steps": model.gradient_accumulation_steps()}
        _cast(mine, keys["deepspeed"])
    else:
        keys = loop_keys.optimizer_keys(optimizer) | {"max_grad_norm": 0.0}
        if engine == "DistributedDataParallel":
            keys |= loop_keys.ddp_keys(model.bucket_bytes_cap / (1 << 20), model.find_unused_parameters,
                                       model.static_graph, model.gradient_as_bucket_view)
        elif loop_keys.ranks()[1] > 1:
            raise InputError(f"a {engine} on several GPUs is not read off: give a Workload")
    return _reading(keys | mine, module, None, device, directory)


def _reading(keys: dict[str, Any], model: Any, processing_class: Any, device: int | None, directory: Path) -> Reading:
    rank, ranks = loop_keys.ranks()
    name = model_keys.known_name(model) or model_keys.save(model, processing_class, directory)
    return Reading({**keys, **loop_keys.machine_keys(device), "model": name, "rank": rank,
                    "data_parallel_size": ranks // loop_keys.parts(keys)}, model_keys.document_of(model))
