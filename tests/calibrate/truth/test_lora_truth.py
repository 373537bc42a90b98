"""LoRA against peft itself: measured jobs and Hugging Face's Trainer on the emulated GPU."""

from __future__ import annotations

import json

import pytest

from predictor.jobs import dispatch, survival
from tests.calibrate.small_jobs import measured_and_predicted, needs_emulator, workload
from tests.calibrate.trainer import SCALARS_BYTES, ZERO2_CONFIG, train
from tests.predictor.small import small_config
from tests.predictor.small_models import EXPERTS

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

ZERO2 = {"zero_stage": 2, "data_parallel_size": 8, "rank": 7}


@pytest.mark.parametrize("changes", [
    {"per_device_train_batch_size": 1, "lora": {"r": 8, "lora_dropout": 0.05}, "gradient_checkpointing": False, "optim": "adamw_torch"},
    {"per_device_train_batch_size": 1, "lora": {"r": 64, "use_dora": True, "lora_dropout": 0.1, "target_modules": "all-linear"}},
    {"lora": {"r": 64, "use_dora": True, "use_rslora": True}, **ZERO2},
    {"per_device_train_batch_size": 1, "lora": {"modules_to_save": ["lm_head", "embed_tokens"], "bias": "all"}, "zero_stage": 2, "data_parallel_size": 2},
    {"lora": {"r": 4, "lora_dropout": 0.1}, "engine": "ddp", "data_parallel_size": 2},
    {"lora": {"r": 4, "use_dora": True}, "zero_stage": 1, "data_parallel_size": 2, "rank": 1},
    {"lora": {"r": 64}, "zero_stage": 3, "data_parallel_size": 8, "rank": 7, "optim": "adamw_8bit"},
], ids=["dropout", "dora-everywhere", "dora-zero2", "modules-to-save-zero2", "dropout-ddp", "dora-zero1", "zero3-8bit"])
def test_a_measured_job_is_predicted(tmp_path, changes):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", **changes)
    record, run, simulation = measured_and_predicted(asked)
    assert 0 <= record.peak("requested_bytes").bytes - run.peak < SCALARS_BYTES
    assert 0 <= record.peak("reserved_bytes").bytes - simulation.peak_reserved_bytes <= survival.PAGE_BYTES


@pytest.mark.parametrize("keys", [
    {"gradient_accumulation_steps": 2},
    {"engine": "ddp", "data_parallel_size": 2, "gradient_checkpointing": False},
    {"zero_stage": 1, "data_parallel_size": 2, "rank": 1},
    {**ZERO2, "optim": "adamw_torch"},
    {"mixed_precision": "bf16"},
    {"dtype": "fp32", "mixed_precision": "bf16", "gradient_checkpointing": False},
], ids=["torch", "ddp", "zero1", "zero2", "autocast", "autocast over fp32"])
def test_adapters_of_experts_are_predicted(tmp_path, keys):
    (tmp_path / "experts.json").write_text(json.dumps(EXPERTS))
    lora = {"r": 4, "target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
    asked = workload(tmp_path, model=str(tmp_path / "experts.json"), gpu="h100-80gb", profile="none", lora=lora, sequence_length=65, **keys)
    record, run, simulation = measured_and_predicted(asked)
    assert record.peak("requested_bytes").bytes == run.peak
    assert record.peak("reserved_bytes").bytes == simulation.peak_reserved_bytes


@pytest.mark.parametrize("lora", [None, {"r": 4, "modules_to_save": ["lm_head"]}], ids=["whole", "trained-copy"])
def test_tied_embeddings_are_one_parameter_and_a_trained_copy_another(tmp_path, lora):
    (tmp_path / "tied.json").write_text(json.dumps(
        small_config(model_type="qwen2", tie_word_embeddings=True, vocab_size=3200) | {"tie_word_embeddings": True}))
    asked = workload(tmp_path, model=str(tmp_path / "tied.json"), gpu="h100-80gb", profile="none", lora=lora)
    record, run, simulation = measured_and_predicted(asked)
    assert record.peak("requested_bytes").bytes == run.peak
    assert record.peak("reserved_bytes").bytes == simulation.peak_reserved_bytes


ADAPTED = """
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(
            r=16, use_dora=True, lora_dropout=0.05, task_type="CAUSAL_LM", target_modules=r".*language_model\\..*_proj"))
        model.base_model.model.model.multi_modal_projector.requires_grad_(True)
"""


@pytest.mark.parametrize(("world_size", "zero"), [(None, {}), (8, ZERO2)], ids=["torch", "zero2"])
def test_the_trainer_with_a_model_that_peft_wrapped_on_the_cpu_is_predicted(tmp_path, world_size, zero):
    asked = workload(tmp_path, lora={"r": 16, "use_dora": True, "lora_dropout": 0.05}, gpu="h100-80gb", profile="none", **zero)
    found = train(tmp_path, deepspeed=ZERO2_CONFIG if zero else None, bf16=bool(zero), world_size=world_size,
                  rank=zero.get("rank", 0), prepare=ADAPTED)
    predicted = dispatch.prepare(asked).run(asked.capacity, zero.get("rank", 0)).peak
    assert 0 < found.peak_requested_bytes - predicted < SCALARS_BYTES
