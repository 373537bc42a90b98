"""DeepSpeed configs: what Hugging Face puts where they say "auto", and what DeepSpeed takes where they say nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import read_mapping
from predictor.common.suggestions import show
from predictor.common.value_types import thaw
from predictor.model import hub
from predictor.readers.configuration import Reading
from predictor.readers.fields import Format, Given
from predictor.workload import deepspeed_config, deepspeed_releases, deepspeed_settings
from predictor.workload.deepspeed_keys import READ as KNOWN
from predictor.workload.deepspeed_keys import SECTIONS, WITHOUT_EFFECT
from predictor.workload.keys import PINNED
from predictor.workload.value_sources import DEFAULT, READ, Source, value

FILLED = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "train_batch_size": "train_batch_size", "gradient_clipping": "max_grad_norm",
    "bf16.enabled": "bf16", "fp16.enabled": "fp16",
}
"""Key of a config -> the training argument that transformers puts where it says "auto", and compares it with where it
says something else (5.17, integrations/deepspeed.py, ``trainer_config_process``)."""
STAGE_3 = ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")


def filled(document: Mapping[str, Any], arguments: Mapping[str, Any], hidden_size: int | None) -> dict[str, Any]:
    """What transformers puts where a config says "auto", by dotted key.

    Args:
        arguments: of training, by the names of :data:`FILLED`.
        hidden_size: of the language model; None leaves what it fills as "auto".
    """
    result = {key: arguments[argument] for key, argument in FILLED.items() if _at(document, key) == "auto"}
    if hidden_size is None:
        return result
    square = hidden_size * hidden_size
    by_size = {"reduce_bucket_size": square, STAGE_3[0]: int(0.9 * square), STAGE_3[1]: 10 * hidden_size}
    zero = document.get("zero_optimization")
    stage = zero.get("stage") if isinstance(zero, Mapping) else None
    for name, size in by_size.items():
        if _at(document, f"zero_optimization.{name}") == "auto" and (stage == 3 or name not in STAGE_3):
            result[f"zero_optimization.{name}"] = size
    return result


def _at(document: Mapping[str, Any], dotted: str) -> Any:
    section, _, key = dotted.rpartition(".")
    inner = document.get(section) if section else document
    return inner.get(key) if isinstance(inner, Mapping) else None


def use(reading: Reading, config: str | Mapping[str, Any], *names: str, model: str = "") -> None:
    """Take a config, a path or its content, as the framework's Trainer does; the ``names`` are keys that named it.

    The reading has the keys of Hugging Face's training arguments.

    Raises:
        InputError: a value of the config that differs from the training argument beside it, as transformers stops too.
    """
    path = config if isinstance(config, str) else ""
    document = read_mapping(path, "the DeepSpeed config", strict_for="Hugging Face's Trainer") if path else config
    name = path or reading.place(names[0])
    batch, steps = reading["per_device_train_batch_size"], reading["gradient_accumulation_steps"]
    _no_half_of_evaluation(reading, document, name)
    half, settings = reading.half, deepspeed_config.parse(document, name)
    world_size = _world_size(reading, settings.get("tensor_parallel.autotp_size", 1), name)
    arguments = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": steps,
                 "train_batch_size": batch * steps * world_size, "max_grad_norm": reading["max_grad_norm"],
                 "bf16": half == "bf16", "fp16": half == "fp16"}
    compared = {key: arguments[argument] for key, argument in FILLED.items()
                if key != "train_batch_size" or reading.given.gpus or reading.given.world_size}
    for key, ours in compared.items():
        theirs = _at(document, key)
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
    if _at(document, "gradient_clipping") == "auto" and "max_grad_norm" in reading.form.fields:
        reading.put("max_grad_norm", reading["max_grad_norm"], "max_grad_norm")
    optim = settings.get("optimizer")
    if optim:  # DeepSpeed's goes before the arguments' (transformers 5.17, integrations/deepspeed.py)
        reading.workload.pop("optim", None)
        reading.rows["optim"] = value("optim", optim, READ, name, "optimizer")
    put_in = filled(document, arguments, hub.hidden_size(model) if model else None)
    reading.rows |= {row.key: row for row in rows(document, name, put_in)}


def _no_half_of_evaluation(reading: Reading, document: Mapping[str, Any], name: str) -> None:
    """transformers takes ``bf16_full_eval`` for ``bf16`` where a config says "auto"."""
    for half in ("bf16", "fp16"):
        full = f"{half}_full_eval"
        if full in reading and reading[full] and reading.half != half and _at(document, f"{half}.enabled") == "auto":
            raise reading.wrong(full, f"turns {half}.enabled of {name} on for training too: give {half}, or leave it "
                                      "out")


def _world_size(reading: Reading, parts: int, name: str) -> int:
    """All GPUs; ``parts`` of those that a launcher starts share each layer, while ``gpus`` counts data parallelism."""
    if reading.given.gpus:
        return reading.given.gpus * parts
    started = reading.given.world_size
    if started is not None and started % parts:
        raise InputError(f"{name}: tensor_parallel.autotp_size {parts} does not divide the {started} GPUs of "
                         f"{reading.given.launched_by}")
    if started is not None and parts > 1:
        row = reading.rows["data_parallel_size"]
        reading.workload["data_parallel_size"] = degree = started // parts
        reading.rows["data_parallel_size"] = replace(row, value=degree, because=f"{parts} GPUs share each layer")
    return reading.world_size


def rows(document: Mapping[str, Any], name: str, put_in: Mapping[str, Any]):
    """Every value of a config that memory depends on: read, put in for "auto", or DeepSpeed's default."""
    stage = deepspeed_config.parse(document, name)["zero_optimization.stage"]
    release = deepspeed_releases.release(PINNED["deepspeed"])
    for dotted in KNOWN:
        given, key = _at(document, dotted), dotted.rpartition(".")[2]
        if given == "auto" and dotted in put_in:
            yield value(f"deepspeed.{dotted}", put_in[dotted], READ, name, dotted, because="auto")
        elif given is not None:
            yield value(f"deepspeed.{dotted}", given, READ, name, dotted)
        elif key in deepspeed_releases.DEFAULTS and (stage == 3 or not key.startswith("stage3")):
            default = stage == 3 if key == "overlap_comm" else deepspeed_releases.default(key, release)
            yield value(f"deepspeed.{dotted}", default, DEFAULT, f"DeepSpeed {PINNED['deepspeed']}")


def uncast(dtype: str) -> str:
    """Why weights of 16 bits are not predicted where neither bf16 nor fp16 is on: DeepSpeed leaves them as they are,
    and accumulates and reduces gradients in fp32 (0.19.8, runtime/engine.py, ``_configure_distributed_model``,
    ``get_data_types``, ``communication_data_type``)."""
    return (f"neither bf16 nor fp16 is on, so weights stay {dtype} and DeepSpeed keeps their gradients in fp32, which "
            "is not predicted: turn one on, or give weights of fp32")


def _word(given: Any) -> str:
    return str(given).lower() if isinstance(given, bool) else show(given)


def alone(given: Given) -> tuple[dict[str, Any], Source]:
    """A config that no training arguments go with: the workload's own keys stand where it says "auto".

    Raises:
        InputError: as ``deepspeed_config.parse``.
    """
    settings = deepspeed_config.parse(given.values, given.name)
    workload: dict[str, Any] = {"deepspeed": given.path or thaw(given.values)}
    found = [value("deepspeed", workload["deepspeed"], READ, given.name)]
    for theirs, ours in deepspeed_settings.SAME_AS.items():
        if settings.get(theirs) not in (None, "auto"):
            found.append(value(ours, settings[theirs], READ, given.name, theirs))
    found += rows(given.values, given.name, {})
    ignored = [key for key in given.values if key in WITHOUT_EFFECT[""]]
    return workload, Source("deepspeed", f"DeepSpeed {PINNED['deepspeed']}", given.name, tuple(found), tuple(ignored))


MARKS = frozenset({"zero_optimization", "train_micro_batch_size_per_gpu", *SECTIONS} - {"bf16", "fp16", "optimizer"})
FORMAT = Format("deepspeed", f"DeepSpeed {PINNED['deepspeed']}", {}, MARKS, lambda reading: None)
