"""TRL's own script on the emulated H100 against the prediction of the same command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from calibrate.dryrun.dryrun import Streams, dryrun
from predictor.jobs import dispatch
from tests.calibrate.small_jobs import measured_and_predicted, needs_emulator, workload
from tests.calibrate.trainer import SCALARS_BYTES, ZERO2_CONFIG
from tests.calibrate.truth.test_readers_truth import read

pytest.importorskip("trl")
pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]
MODEL = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 256, "intermediate_size": 704,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 40_000, "dtype": "bfloat16",
         "tie_word_embeddings": True, "eos_token_id": 257, "pad_token_id": 256, "bos_token_id": None, "max_position_embeddings": 4096}
SAMPLES = 256
LOSSES_BYTES = 4 * SAMPLES
"""The Trainer's evaluation keeps a loss of fp32 for each sample, which is not predicted."""
LENGTH = 700
"""Characters of each sample. Each is a token, and there are more tokens than a tile of logits has in the larger batches."""


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    """A directory with a small model, its tokenizer of single bytes, and samples."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

    path = tmp_path_factory.mktemp("trl")
    letters = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    Qwen2Tokenizer(vocab=letters | {"<|endoftext|>": 256, "<eos>": 257}, merges=[], eos_token="<eos>",
                   pad_token="<|endoftext|>").save_pretrained(path / "model")
    config = Qwen2Config(**{key: item for key, item in MODEL.items() if key != "model_type"})
    Qwen2ForCausalLM._from_config(config).save_pretrained(path / "model")
    (path / "samples").mkdir()
    text = "".join(chr(97 + number * 7 % 26) for number in range(LENGTH))
    for split in ("train", "test"):
        (path / f"samples/{split}.jsonl").write_text(f"{json.dumps({'text': text})}\n" * SAMPLES)
    (path / "zero2.json").write_text(json.dumps(ZERO2_CONFIG))
    return path


@pytest.mark.parametrize("gpus, flags", [
    (1, "--per_device_train_batch_size 8"),
    (1, "--per_device_train_batch_size 3 --use_peft --dtype bfloat16 --gradient_checkpointing false"),
    (1, "--per_device_train_batch_size 3 --use_peft --lora_target_modules all-linear --dtype bfloat16 --neftune_noise_alpha 5"),
    (1, "--per_device_train_batch_size 2 --packing"),
    (1, "--per_device_train_batch_size 1 --use_peft --dtype bfloat16 --per_device_eval_batch_size 64 --eval_strategy steps --eval_steps 1"),
    (8, "--per_device_train_batch_size 2 --ddp_find_unused_parameters true"),
    (8, "--per_device_train_batch_size 3 --deepspeed zero2.json"),
], ids=["default", "lora", "noise", "packing", "evaluation", "ddp", "zero2"])
def test_a_command_of_trl_needs_what_it_is_read_as(job, monkeypatch, gpus, flags):
    monkeypatch.chdir(job)
    command = [sys.executable, "-m", "trl.scripts.sft", "--model_name_or_path", "model", "--dataset_name", "samples", "--max_length", "640",
               "--output_dir", "out", "--report_to", "none", "--dataset_num_proc", "1", *flags.split()]
    found = dryrun(command, world_size=gpus if gpus > 1 else None, optimizer_steps=3, streams=Streams(subprocess.DEVNULL, subprocess.DEVNULL))
    assert found.exit_code == 0
    asked = read("--gpu", "h100-80gb", "--profile", "none", "--rank", "0", "--data-parallel-size", str(gpus), "--", *command)
    prepared = dispatch.prepare(asked)
    beside = LOSSES_BYTES if asked.per_device_eval_batch_size else 0
    assert 0 <= found.peak_requested_bytes - prepared.run(asked.capacity, 0).peak < SCALARS_BYTES + beside


@pytest.mark.parametrize("changes", [
    {"dtype": "fp32", "mixed_precision": "bf16"}, {"recipe": "lora", "lora": {"r": 4}, "padding": "right"}, {"zero_stage": 2, "data_parallel_size": 4}],
    ids=["autocast", "lora-padded", "zero2"])
def test_a_measured_job_with_pictures_is_predicted(tmp_path, changes):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", loss="trl_sft", **changes)
    record, run, simulation = measured_and_predicted(asked)
    assert 0 <= record.peak("requested_bytes").bytes - run.peak < SCALARS_BYTES
    assert record.peak("reserved_bytes").bytes == simulation.peak_reserved_bytes
