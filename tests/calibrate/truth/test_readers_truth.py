"""Workloads read from command lines against the Trainer with the same arguments on the emulated GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from calibrate.dryrun.dryrun import Streams, dryrun
from predictor.cli import Parser
from predictor.commands import options
from predictor.jobs import dispatch
from tests.calibrate.small_jobs import BATCH, SEQUENCE, measured_and_predicted, model_file, needs_emulator, workload
from tests.calibrate.trainer import FROZEN_TOWER as FREEZE
from tests.calibrate.trainer import SCALARS_BYTES, ZERO2_CONFIG, train

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]


def read(*words: str):
    """The workload of ``peakcast predict`` with these words."""
    parser = Parser()
    options.add_workload(parser)
    options.add_from(parser)
    return options.workload(parser.parse_known_args(list(words))[0])


@pytest.mark.parametrize("launch, arguments", [
    (("python",), {"per_device_train_batch_size": 3, "bf16": True, "optim": "adamw_torch", "gradient_checkpointing": True}),
    (("torchrun", "--nproc_per_node", "8"), {"per_device_train_batch_size": 2, "bf16": True, "max_grad_norm": 0.5,
                                             "gradient_accumulation_steps": 1, "deepspeed": ZERO2_CONFIG}),
], ids=["autocast", "zero2"])
def test_the_trainer_needs_what_its_command_line_is_read_as(tmp_path, launch, arguments):
    (tmp_path / "ds.json").write_text(json.dumps(arguments.get("deepspeed")))
    given = {key: item if key != "deepspeed" else tmp_path / "ds.json" for key, item in arguments.items()}
    flags = [str(word) for key, item in given.items() for word in (f"--{key}", item)]
    asked = read("--gpu", "h100-80gb", "--profile", "none", "--frozen", "*vision_tower*", "--rank", "0", "--", *launch,
                 "train.py", "--model_name_or_path", model_file(tmp_path), "--torch_dtype", "bfloat16", *flags,
                 "--model_max_length", str(SEQUENCE))
    found = train(tmp_path, world_size=8 if "deepspeed" in arguments else None, prepare=FREEZE,
                  **{"optim": "adamw_torch_fused", "gradient_checkpointing": False, "gradient_checkpointing_kwargs": None} | arguments)
    predicted = dispatch.prepare(asked).run(asked.capacity, 0).peak
    assert 0 < found.peak_requested_bytes - predicted < SCALARS_BYTES


def test_a_tower_without_gradients_is_predicted(tmp_path):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", no_grad="*vision_tower*",
                     gradient_checkpointing_kwargs={"use_reentrant": True})
    record, run, simulation = measured_and_predicted(asked)
    assert record.peak("requested_bytes").bytes == run.peak
    assert record.peak("reserved_bytes").bytes == simulation.peak_reserved_bytes
    assert run.peak < dispatch.prepare(asked.replace(no_grad=())).run(asked.capacity).peak


LLAMA = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 4, "vocab_size": 32_000, "tie_word_embeddings": False, "dtype": "bfloat16"}
RANK, LINEAR = 8, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def test_axolotls_qlora_needs_what_its_file_is_read_as_and_adapters_of_fp32(tmp_path):
    """As axolotl 0.19 loads it (loaders/model.py, ``_configure_embedding_dtypes``): fp32, then embeddings, head and norms
    narrow again. Not predicted are 2 bytes more of each adapter, and 4 of its two moments."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "job.json").write_text(json.dumps({
        "base_model": str(tmp_path), "adapter": "qlora", "load_in_4bit": True, "lora_r": RANK, "lora_alpha": 16,
        "lora_target_linear": True, "sequence_len": 512, "micro_batch_size": 2, "gradient_checkpointing": True,
        "attn_implementation": "sdpa"}))
    asked = read("--gpu", "h100-80gb", "--profile", "none", "--from", str(tmp_path / "job.json"))
    (tmp_path / "train.py").write_text(textwrap.dedent(f"""
        import peft, torch
        from transformers import Trainer, TrainingArguments
        from calibrate.job import quantized
        from predictor.workload.workload import Workload
        model = quantized.load(Workload.from_mapping({{"model": {str(tmp_path)!r}, "recipe": "lora", "sequence_length": 512,
                                                      "quantization": {dict(asked.quantization)!r}}}))
        peft.prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={{"use_reentrant": True}})
        for name, module in model.named_modules():
            if "norm" in name or name.endswith(("embed_tokens", "lm_head")):
                module.to(torch.bfloat16)
        model = peft.get_peft_model(model, peft.LoraConfig(r={RANK}, target_modules={list(LINEAR)!r}))
        ids = torch.ones(512, dtype=torch.long)
        Trainer(model, TrainingArguments(
            {str(tmp_path)!r}, per_device_train_batch_size=2, max_steps=3, report_to=[], save_strategy="no", bf16=True,
            gradient_checkpointing=True, gradient_checkpointing_kwargs={{"use_reentrant": True}}),
            train_dataset=[{{"input_ids": ids, "labels": ids}}] * 64).train()
    """))
    found = dryrun([sys.executable, str(tmp_path / "train.py")], streams=Streams(subprocess.DEVNULL))
    predicted = dispatch.prepare(asked).run(asked.capacity, 0).peak
    wide, inner = LLAMA["hidden_size"], LLAMA["intermediate_size"]
    adapters = LLAMA["num_hidden_layers"] * RANK * (4 * 2 * wide + 3 * (wide + inner))
    assert 0 < found.peak_requested_bytes - predicted - 6 * adapters < SCALARS_BYTES


LLAMA_FACTORY = """
    import functools, peft
    from torch.utils.checkpoint import checkpoint

    def where_something_trains(function, *arguments):
        block = getattr(function, "func", function).__self__
        if not any(parameter.requires_grad for parameter in block.parameters()):
            return function(*arguments)
        arguments[0].requires_grad_(True)
        return checkpoint(function, *arguments, use_reentrant=True)

    model.gradient_checkpointing_enable()
    model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=where_something_trains)
    targets = r".*language_model.*\\.(?:q|k|v|o|gate|up|down)_proj"
    model = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, target_modules=targets))
"""
"""Lines that make a model ready as LLaMA-Factory 0.9.5 does for LoRA (model/model_utils/checkpointing.py)."""


def test_a_frozen_tower_in_llama_factory_keeps_its_activations_as_predicted(tmp_path):
    model_file(tmp_path)
    (tmp_path / "job.json").write_text(json.dumps({
        "model_name_or_path": str(tmp_path), "stage": "sft", "finetuning_type": "lora", "lora_target": "all", "bf16": True,
        "cutoff_len": SEQUENCE, "per_device_train_batch_size": BATCH}))
    asked = read("--gpu", "h100-80gb", "--profile", "none", "--from", str(tmp_path / "job.json"))
    found = train(tmp_path, prepare=LLAMA_FACTORY, gradient_checkpointing=False, bf16=True)
    predicted = dispatch.prepare(asked).run(asked.capacity, 0).peak
    assert 0 <= found.peak_requested_bytes - predicted < SCALARS_BYTES
    assert predicted > dispatch.prepare(asked.replace(no_grad="*vision_tower*")).run(asked.capacity, 0).peak
