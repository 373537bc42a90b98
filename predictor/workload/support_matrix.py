"""The support matrix: a page with the combinations of features, engines, precisions and recipes that were compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from predictor.workload import compared, contradictions
from predictor.workload.given_keys import GivenKeys
from predictor.workload.key_problem import KeyProblem

YES, NOT_YET, NEVER = "yes", "not yet", "–"
"""Contents of a cell: predicted; rejected because it was not compared; two keys that contradict each other."""
_BASE = {"model": "llava-1.5-7b", "sequence_length": 1024}
_FOUR_BITS: dict[str, Any] = {"recipe": "lora", "quantization": {"load_in_4bit": True}}
_TURNS = [{"tokens": 600, "new_tokens": 64}]
_TWO_GPUS: Mapping[str, Any] = {"data_parallel_size": 2}
_OF_ENGINES = ("engine", "zero_stage", "data_parallel_size")


def _keys(**keys: Any) -> Mapping[str, Any]:
    return keys


ROWS: dict[str, Mapping[str, Any]] = {
    "no feature": {},
    "padding packed": {"padding": "packed"},
    "attn_implementation eager": {"attn_implementation": "eager"},
    "attn_implementation flash_attention_2": {"attn_implementation": "flash_attention_2"},
    "gradient_checkpointing_kwargs use_reentrant": {"gradient_checkpointing_kwargs": {"use_reentrant": True}},
    "gradient_checkpointing_kwargs every_n_layers": {"gradient_checkpointing_kwargs": {"every_n_layers": 2}},
    "gradient_checkpointing_kwargs offload": {"gradient_checkpointing_kwargs": {"offload": True}},
    "use_liger_kernel": {"use_liger_kernel": True},
    "loss trl_sft": {"loss": "trl_sft"},
    "loss label_smoothing": {"loss": "label_smoothing"},
    "neftune_noise_alpha": {"neftune_noise_alpha": 5.0},
    "lora target_parameters": {"recipe": "lora", "lora": {"target_parameters": ["experts.down_proj"]}},
    "quantization": _FOUR_BITS,
    "quantization and lora use_dora": _FOUR_BITS | {"lora": {"use_dora": True}},
    "offload optimizer": {"offload": "optimizer", "zero_stage": 2, **_TWO_GPUS},
    "offload all": {"offload": "all", "zero_stage": 3, **_TWO_GPUS},
    "tensor_parallel_size": {"tensor_parallel_size": 2},
    "per_device_eval_batch_size": {"per_device_eval_batch_size": 8},
    "keep_outputs": {"keep_outputs": "next_forward"},
    "zero_grad": {"zero_grad": "before_backward"},
    "a model from code": {"model": "model.py:make", "gradient_checkpointing": False},
    "mode inference": {"mode": "inference"},
    "mode inference and quantization": {"mode": "inference", "quantization": {"load_in_4bit": True}},
    "a conversation": {"mode": "inference", "conversation": _TURNS, "sequence_length": None},
}
"""Feature of a row -> the keys of a workload with that feature."""
COLUMNS: dict[str, dict[str, Mapping[str, Any]]] = {
    "Engines": {"torch": _keys(zero_stage=None, data_parallel_size=None)}
    | {name: _keys(engine=name, zero_stage=None, **_TWO_GPUS) for name in ("ddp", "fsdp1", "fsdp2")}
    | {f"zero_stage {stage}": _keys(zero_stage=stage, **_TWO_GPUS) for stage in range(4)},
    "Precisions": {f"dtype {dtype}": _keys(dtype=dtype) for dtype in ("bf16", "fp16", "fp32")}
    | {f"mixed_precision {dtype}": _keys(mixed_precision=dtype) for dtype in ("bf16", "fp16")},
    "Recipes": {recipe: _keys(recipe=recipe) for recipe in ("finetune", "pretrain", "full", "lora")},
    "Batches": {f"padding {padding}": _keys(padding=padding) for padding in ("right", "packed")}
    | {"per_device_eval_batch_size": _keys(per_device_eval_batch_size=8)},
}
"""Heading -> column -> keys of a workload with that feature; an engine's keys replace those of the row."""


def cell(row: Mapping[str, Any], column: Mapping[str, Any], also: Iterable[compared.Line] = ()) -> str:
    """The content of a cell: one of :data:`YES`, :data:`NOT_YET` and :data:`NEVER`.

    Args:
        also: lines beyond those of the keys.
    """
    if any(row.get(key, value) != value for key, value in column.items() if key not in _OF_ENGINES):
        return NEVER
    draft = GivenKeys.read(_BASE | {**row, **column}).completed()
    try:
        contradictions.check(draft, contradictions.CONTRADICTING)
    except KeyProblem:
        return NEVER
    refused = any(True for line in (*compared.FEATURES.values(), *also) for _ in line.unseen(draft.values))
    return NOT_YET if refused or any(line.detail(draft) for line in contradictions.NOT_PREDICTED) else YES


def page() -> str:
    """The whole page as Markdown."""
    text = ["""# What is predicted together

`yes`: the two are predicted together. `not yet`: they are refused, as they were not compared with a run on a GPU, real
or emulated. `–`: they contradict each other. A third feature may be refused beside two that are predicted. Made by
`python scripts/build_support_matrix.py` from the tables that predictions use, `predictor/workload/compared.py` and
`predictor/workload/contradictions.py`."""]
    for heading, columns in COLUMNS.items():
        text += ["", f"## {heading}", "", f"| feature | {' | '.join(columns)} |",
                 f"| --- |{' :---: |' * len(columns)}"]
        text += [f"| {name} | {' | '.join(cell(row, column) for column in columns.values())} |"
                 for name, row in ROWS.items()]
    text += ["", "## Datasets", "", f"| feature | {' | '.join(compared.DATASETS)} |",
             f"| --- |{' :---: |' * len(compared.DATASETS)}"]
    text += [f"| {name} | {' | '.join(cell(row, {}, [line]) for line in compared.DATASETS.values())} |"
             for name, row in ROWS.items()]
    text += ["", "## Models", "", "| feature | `model_type` | compared by |", "| --- | --- | --- |"]
    text += [f"| {name} | {', '.join(line.seen['model_type'])} | {_evidence(line)} |"
             for name, line in compared.MODEL_TYPES.items()]
    text += ["", "## Compared by", "", "| feature | refused beside some values of | compared by |",
             "| --- | --- | --- |"]
    text += [f"| {name} | {', '.join(line.seen) or 'nothing'} | {_evidence(line)} |"
             for name, line in (compared.FEATURES | compared.DATASETS).items()]
    return "\n".join(text) + "\n"


def _evidence(line: compared.Line) -> str:
    return "; ".join(f"`{pointer}`" for pointer in line.evidence)
