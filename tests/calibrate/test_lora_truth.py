"""LoRA against peft itself: measured jobs and Hugging Face's Trainer on the emulated GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from calibrate.dryrun import dryrun
from predictor import pipeline, survival
from tests.calibrate.small_jobs import BATCH, SEQUENCE, measured_and_predicted, needs_emulator, workload
from tests.predictor.small import small_config

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

SCALARS_BYTES = 64
"""DeepSpeed's norm and overflow flags, and what the Trainer logs, are not predicted."""
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


@pytest.mark.parametrize("lora", [None, {"r": 4, "modules_to_save": ["lm_head"]}], ids=["whole", "trained-copy"])
def test_tied_embeddings_are_one_parameter_and_a_trained_copy_another(tmp_path, lora):
    (tmp_path / "tied.json").write_text(json.dumps(
        small_config(model_type="qwen2", tie_word_embeddings=True, vocab_size=3200) | {"tie_word_embeddings": True}))
    asked = workload(tmp_path, model=str(tmp_path / "tied.json"), gpu="h100-80gb", profile="none", lora=lora)
    record, run, simulation = measured_and_predicted(asked)
    assert record.peak("requested_bytes").bytes == run.peak
    assert record.peak("reserved_bytes").bytes == simulation.peak_reserved_bytes


@pytest.mark.parametrize(("world_size", "zero"), [(None, {}), (8, ZERO2)], ids=["torch", "zero2"])
def test_the_trainer_with_a_model_that_peft_wrapped_on_the_cpu_is_predicted(tmp_path, world_size, zero):
    asked = workload(tmp_path, lora={"r": 16, "use_dora": True, "lora_dropout": 0.05}, gpu="h100-80gb", profile="none", **zero)
    (tmp_path / "zero2.json").write_text(json.dumps({
        "bf16": {"enabled": True}, "gradient_clipping": "auto", "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}))
    (tmp_path / "model.json").write_text(json.dumps(small_config()))
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(f"""
        import json, torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoConfig, LlavaForConditionalGeneration, Trainer, TrainingArguments
        document = json.load(open({str(tmp_path / "model.json")!r}))
        config = AutoConfig.for_model(document.pop("model_type"), **document)
        model = LlavaForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
        model = get_peft_model(model, LoraConfig(
            r=16, use_dora=True, lora_dropout=0.05, task_type="CAUSAL_LM", target_modules=r".*language_model\\..*_proj"))
        model.base_model.model.model.multi_modal_projector.requires_grad_(True)
        ids = torch.full(({SEQUENCE},), 1)
        ids[1:5] = config.image_token_id
        labels = torch.where(ids == config.image_token_id, -100, ids)
        sample = {{"input_ids": ids, "labels": labels, "pixel_values": torch.zeros(3, 28, 28, dtype=torch.bfloat16)}}
        arguments = TrainingArguments(
            output_dir={str(tmp_path)!r}, per_device_train_batch_size={BATCH}, max_steps=3, report_to=[],
            save_strategy="no", gradient_checkpointing=True, optim="adamw_torch_fused", logging_steps=1,
            gradient_checkpointing_kwargs={{"use_reentrant": False}}, remove_unused_columns=False,
            deepspeed={str(tmp_path / "zero2.json") if zero else None!r}, bf16={bool(zero)})
        Trainer(model=model, args=arguments, train_dataset=[sample] * 64).train()
    """))
    found = dryrun([sys.executable, str(script)], output=subprocess.DEVNULL, world_size=world_size,
                   rank=7 if world_size else 0)
    assert (found.exit_code, found.optimizer_steps) == (0, 3)
    predicted = pipeline.prepare(asked).run(asked.capacity, zero.get("rank", 0)).peak
    assert 0 < found.peak_requested_bytes - predicted < SCALARS_BYTES
