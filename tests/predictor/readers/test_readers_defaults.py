"""The defaults that readers fill in are those that transformers and DeepSpeed themselves compute."""

from __future__ import annotations

import dataclasses
import json
from importlib import import_module
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictor import readers
from predictor.readers import deepspeed, swift, training_arguments
from tests.predictor.readers.test_readers import EXAMPLES

transformers = pytest.importorskip("transformers")
FIELDS = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments)}
HF = {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}, "gradient_accumulation_steps": "auto",
      "gradient_clipping": "auto", "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
      "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}}
CONFIGS = {
    "huggingface-zero2": HF | {"zero_optimization": {
        "stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}, "allgather_partitions": True, "allgather_bucket_size": 2e8,
        "overlap_comm": True, "reduce_scatter": True, "reduce_bucket_size": 2e8, "contiguous_gradients": True}},
    "huggingface-zero3": HF | {"zero_optimization": {
        "stage": 3, "overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 1e9, "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": True}},
    "llava-zero2": json.loads((EXAMPLES / "llava/scripts/zero2.json").read_text()),
    "llava-zero3": json.loads((EXAMPLES / "llava/scripts/zero3.json").read_text()),
    "deepspeed-zero1": {"train_batch_size": 8, "gradient_clipping": 1.0, "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8},
                        "bf16": {"enabled": True}},
} | {f"swift-{name}": swift.builtin(name) for name in ("zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload")}


def test_every_training_argument_is_known():
    form = training_arguments.FORMAT
    assert FIELDS.keys() - form.fields.keys() - form.without_effect == set()


@pytest.mark.parametrize("form", readers.FORMATS.values())
def test_a_key_is_read_or_without_effect(form):
    found = import_module(form).FORMAT
    assert not found.without_effect & found.fields.keys() and not set(found.renamed) & found.fields.keys()


@pytest.mark.parametrize("name", sorted(FIELDS.keys() & training_arguments.ARGUMENTS.keys()))
def test_an_absent_argument_has_transformers_default(name):
    ours, theirs = training_arguments.ARGUMENTS[name].default, FIELDS[name].default
    theirs = None if theirs is dataclasses.MISSING else theirs  # an empty list
    off = {None, False, ""} if not isinstance(theirs, (int, float)) or isinstance(theirs, bool) else {None, 0.0}
    assert ours == theirs or {ours, theirs} <= off


ARGUMENTS = st.fixed_dictionaries({}, optional={
    "per_device_train_batch_size": st.integers(1, 64), "gradient_accumulation_steps": st.integers(1, 64),
    "weight_decay": st.floats(0, 1), "max_grad_norm": st.floats(0, 5), "gradient_checkpointing": st.booleans(),
    "optim": st.sampled_from(["adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adamw_bnb_8bit"]),
    "use_liger_kernel": st.just(False), "learning_rate": st.floats(1e-6, 1), "logging_steps": st.integers(1, 9)})


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ARGUMENTS)
def test_arguments_are_what_transformers_makes_of_them(tmp_path, document):
    path = tmp_path / "arguments.json"
    path.write_text(json.dumps(document | {"output_dir": str(tmp_path)}))
    values, _ = readers.read(path=str(path))
    made = transformers.TrainingArguments(**document, output_dir=str(tmp_path), use_cpu=True, report_to=[])
    same = ("per_device_train_batch_size", "gradient_accumulation_steps", "weight_decay", "max_grad_norm", "gradient_checkpointing", "optim")
    assert {key: values[key] for key in same} == {key: getattr(made, key) for key in same}


def filled_by_transformers(document, **changes):
    """A config with its "auto" replaced by transformers itself, for 8 GPUs and a hidden size of 4096."""
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    arguments = {"world_size": 8, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "max_grad_norm": 1.0, "learning_rate": 1e-4,
                 "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "weight_decay": 0.0, "save_on_each_node": False, "fp16": False,
                 "fp16_full_eval": False, "bf16": True, "bf16_full_eval": False, "get_warmup_steps": lambda steps: 0} | changes
    config = HfTrainerDeepSpeedConfig(json.loads(json.dumps(document)))
    config.trainer_config_process(SimpleNamespace(**arguments))
    config.trainer_config_finalize(SimpleNamespace(**arguments), SimpleNamespace(config=SimpleNamespace(hidden_size=4096)), 100)
    return config.config


@pytest.mark.parametrize("name", CONFIGS)
def test_auto_is_what_transformers_puts_there(name):
    theirs = filled_by_transformers(CONFIGS[name])
    ours = deepspeed.filled(CONFIGS[name], {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "train_batch_size": 8,
                                            "max_grad_norm": 1.0, "bf16": True, "fp16": False}, 4096)
    assert ours == {key: deepspeed.at(theirs, key) for key in ours}
    left = {key for key in deepspeed.KNOWN if deepspeed.at(CONFIGS[name], key) == "auto" and key not in ours}
    assert all(deepspeed.at(theirs, key) == "auto" for key in left)


@pytest.mark.parametrize("name", CONFIGS)
def test_what_a_config_leaves_out_is_deepspeeds_default(name):
    runtime = pytest.importorskip("deepspeed.runtime.config")
    document = filled_by_transformers(CONFIGS[name])
    document.pop("train_batch_size")  # its world has one rank here
    made = runtime.DeepSpeedConfig(document | {"train_micro_batch_size_per_gpu": 1})
    rows = {row.key.removeprefix("deepspeed."): row.value for row in deepspeed.rows(document, "ds.json", {})}
    zero = {key.partition(".")[2]: value for key, value in rows.items() if key.startswith("zero_")}
    theirs = {key: getattr(made.zero_config, key.replace("stage3_", "") if key.startswith("stage3_") else key) for key in zero
              if not key.startswith("offload")}
    if theirs["overlap_comm"] is None:
        theirs["overlap_comm"] = zero["stage"] == 3
    assert {key: zero[key] for key in theirs} == theirs
    assert rows.get("gradient_clipping") == made.gradient_clipping
