"""Reads DeepSpeed configs: fills in "auto" as Hugging Face does, and absent keys with DeepSpeed's defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from predictor.common import releases
from predictor.common.errors import InputError
from predictor.common.files import read_mapping
from predictor.common.suggestions import quoted
from predictor.common.value_types import thaw
from predictor.model import hub
from predictor.readers.reading import Format, Reading
from predictor.readers.user_input import UserInput
from predictor.workload import deepspeed_config, deepspeed_releases, deepspeed_settings
from predictor.workload.deepspeed_keys import READ as KNOWN
from predictor.workload.deepspeed_keys import SECTIONS, WITHOUT_EFFECT
from predictor.workload.keys import PINNED
from predictor.workload.value_sources import DEFAULT, READ, Source, Value, value

FILLED = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "train_batch_size": "train_batch_size", "gradient_clipping": "max_grad_norm",
    "bf16.enabled": "bf16", "fp16.enabled": "fp16",
}
"""Key of a config -> training argument that transformers fills in for "auto", or else compares the value with
(5.17, integrations/deepspeed.py, ``trainer_config_process``)."""
STAGE_3 = ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")


def filled(document: Mapping[str, Any], arguments: Mapping[str, Any], hidden_size: int | None) -> dict[str, Any]:
    """The values that transformers fills in for "auto", by dotted key.

    Args:
        arguments: training arguments, under the names in :data:`FILLED`.
        hidden_size: of the language model. None: values derived from it stay "auto".
    """
    result = {key: arguments[argument] for key, argument in FILLED.items() if at(document, key) == "auto"}
    if hidden_size is None:
        return result
    square = hidden_size * hidden_size
    by_size = {"reduce_bucket_size": square, STAGE_3[0]: int(0.9 * square), STAGE_3[1]: 10 * hidden_size}
    zero = document.get("zero_optimization")
    stage = zero.get("stage") if isinstance(zero, Mapping) else None
    for name, size in by_size.items():
        if at(document, f"zero_optimization.{name}") == "auto" and (stage == 3 or name not in STAGE_3):
            result[f"zero_optimization.{name}"] = size
    return result


def at(document: Mapping[str, Any], dotted: str) -> Any:
    """The value of a config's dotted key; None without it."""
    section, _, key = dotted.rpartition(".")
    inner = document.get(section) if section else document
    return inner.get(key) if isinstance(inner, Mapping) else None


def use(reading: Reading, config: str | Mapping[str, Any], *names: str, model: str = "") -> None:
    """Sets the ``deepspeed`` key from a config, a path or its content, as the Trainer uses it.

    ``names`` are the keys that named the config. The reading must have the keys of Hugging Face's training arguments.

    Raises:
        InputError: a value of the config differs from the training argument; transformers stops there too.
    """
    path = config if isinstance(config, str) else ""
    document = config if isinstance(config, Mapping) else read_mapping(
        path, "the DeepSpeed config", strict_for="Hugging Face's Trainer")
    name = path or reading.place(names[0])
    batch, steps = reading["per_device_train_batch_size"], reading["gradient_accumulation_steps"]
    _no_half_of_evaluation(reading, document, name)
    half, settings = reading.half, deepspeed_config.parse(document, name)
    world_size = _world_size(reading, settings.get("tensor_parallel.autotp_size", 1), name)
    arguments = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": steps,
                 "train_batch_size": batch * steps * world_size, "max_grad_norm": reading["max_grad_norm"],
                 "bf16": half == "bf16", "fp16": half == "fp16"}
    compared = {key: arguments[argument] for key, argument in FILLED.items()
                if key != "train_batch_size" or reading.input.gpus or reading.input.world_size}
    for key, ours in compared.items():
        theirs = at(document, key)
        if theirs not in (None, "auto") and theirs != ours:
            argument = FILLED[key]
            how = "" if argument in reading or argument not in reading.form.fields else \
                f", the default of {reading.form.framework},"
            raise InputError(f"{reading.place(argument)} is {_word(ours)}{how} but {name} has {key} {_word(theirs)}: "
                             'write "auto" there, or the same in both')
    reading.put("deepspeed", path or thaw(config), *names)
    if half:
        by_weights = reading.decided_half and "torch_dtype" in reading.form.fields
        reading.put("dtype", half, *(("torch_dtype",) if by_weights else ("bf16", "fp16")))
    if at(document, "gradient_clipping") == "auto" and "max_grad_norm" in reading.form.fields:
        reading.put("max_grad_norm", reading["max_grad_norm"], "max_grad_norm")
    optim = settings.get("optimizer")
    if optim:  # the config's optimizer overrides the argument's (transformers 5.17, integrations/deepspeed.py)
        reading.workload.pop("optim", None)
        reading.rows["optim"] = value("optim", optim, READ, name, "optimizer")
    put_in = filled(document, arguments, hub.hidden_size(model) if model else None)
    reading.rows |= {row.key: row for row in rows(document, name, put_in)}


def _no_half_of_evaluation(reading: Reading, document: Mapping[str, Any], name: str) -> None:
    """Rejects ``bf16_full_eval`` without ``bf16``: for "auto" in the config, transformers turns bf16 on with it."""
    for half in ("bf16", "fp16"):
        full = f"{half}_full_eval"
        if full in reading and reading[full] and reading.half != half and at(document, f"{half}.enabled") == "auto":
            raise reading.wrong(full, f"turns {half}.enabled of {name} on for training too: give {half}, or leave it "
                                      "out")


def _world_size(reading: Reading, parts: int, name: str) -> int:
    """The number of all GPUs. ``parts`` is the degree of tensor parallelism.

    The launcher's number counts all GPUs and is divided by ``parts``; an option of peakcast counts data-parallel GPUs.
    """
    if reading.input.gpus:
        return reading.input.gpus * parts
    started = reading.input.world_size
    if started is not None and started % parts:
        raise InputError(f"{name}: tensor_parallel.autotp_size {parts} does not divide the {started} GPUs of "
                         f"{reading.input.launched_by}")
    if started is not None and parts > 1:
        row = reading.rows["data_parallel_size"]
        reading.workload["data_parallel_size"] = degree = started // parts
        reading.rows["data_parallel_size"] = replace(row, value=degree, because=f"{parts} GPUs share each layer")
    return reading.world_size


def rows(document: Mapping[str, Any], name: str, put_in: Mapping[str, Any]) -> Iterator[Value]:
    """Yields every value of a config that memory depends on: read, filled in for "auto", or DeepSpeed's default."""
    stage = deepspeed_config.parse(document, name)["zero_optimization.stage"]
    release = releases.release(PINNED["deepspeed"])
    for dotted in KNOWN:
        written, key = at(document, dotted), dotted.rpartition(".")[2]
        if written == "auto" and dotted in put_in:
            yield value(f"deepspeed.{dotted}", put_in[dotted], READ, name, dotted, because="auto")
        elif written is not None:
            yield value(f"deepspeed.{dotted}", written, READ, name, dotted)
        elif key in deepspeed_releases.DEFAULTS and (stage == 3 or not key.startswith("stage3")):
            default = stage == 3 if key == "overlap_comm" else deepspeed_releases.default(key, release)
            yield value(f"deepspeed.{dotted}", default, DEFAULT, f"DeepSpeed {PINNED['deepspeed']}")


def uncast_message(dtype: str) -> str:
    """The message about weights of 16 bits with neither bf16 nor fp16 on, which are not predicted.

    DeepSpeed then keeps the weights, and accumulates and reduces gradients in fp32 (0.19.8, runtime/engine.py,
    ``_configure_distributed_model``, ``get_data_types``, ``communication_data_type``).
    """
    return (f"neither bf16 nor fp16 is on, so weights stay {dtype} and DeepSpeed keeps their gradients in fp32, which "
            "is not predicted: turn one on, or give weights of fp32")


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else quoted(value)


def read_without_arguments(user_input: UserInput) -> tuple[dict[str, Any], Source]:
    """Reads a config without training arguments. The workload's own keys replace "auto".

    Raises:
        InputError: as ``deepspeed_config.parse``.
    """
    settings = deepspeed_config.parse(user_input.values, user_input.name)
    workload: dict[str, Any] = {"deepspeed": user_input.path or thaw(user_input.values)}
    values = [value("deepspeed", workload["deepspeed"], READ, user_input.name)]
    for theirs, ours in deepspeed_settings.SAME_AS.items():
        if settings.get(theirs) not in (None, "auto"):
            values.append(value(ours, settings[theirs], READ, user_input.name, theirs))
    values += rows(user_input.values, user_input.name, {})
    ignored = [key for key in user_input.values if key in WITHOUT_EFFECT[""]]
    return workload, Source("deepspeed", f"DeepSpeed {PINNED['deepspeed']}", user_input.name, tuple(values),
                            tuple(ignored))


MARKS = frozenset({"zero_optimization", "train_micro_batch_size_per_gpu", *SECTIONS} - {"bf16", "fp16", "optimizer"})
FORMAT = Format("deepspeed", f"DeepSpeed {PINNED['deepspeed']}", {}, MARKS, lambda reading: None)
