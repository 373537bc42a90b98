"""Defaults that decide a prediction are named: the number of GPUs, the optimizer and the weights' dtype."""

from __future__ import annotations

import shlex
from types import SimpleNamespace

import pytest
import yaml

from predictor import readers
from predictor.answer import decisive_defaults
from predictor.answer.predict import predict
from predictor.workload.workload import Workload
from tests.predictor.readers.test_readers import LLAVA

FULL = {"model_name_or_path": "meta-llama/Llama-3.2-1B", "finetuning_type": "full", "bf16": True, "cutoff_len": 512}
MODEL = {"model": "llava-1.5-7b", "sequence_length": 1024}
GPUS, EVERY = "give --data-parallel-size.", "uses every GPU of the machine"


def said(workload: Workload) -> tuple[str, ...]:
    return predict(workload).assumptions


def read(options=None, **more) -> Workload:
    values, source = readers.read(options=options or {}, **more)
    overridden = source.overriding(set(options or {}))
    return Workload.from_mapping(values | (options or {})).read_from(overridden)


def test_a_deepspeed_script_without_a_number_of_gpus_is_said_first():
    first, *_ = said(read(path=str(LLAVA / "pretrain.sh")))
    assert first.startswith("Assumed 1 GPU: deepspeed uses every GPU of the machine, and ") and first.endswith(GPUS)


def test_a_number_of_gpus_leaves_nothing_to_assume():
    assert not any("GPU" in line for line in said(read(path=str(LLAVA / "pretrain.sh"), options={"data_parallel_size": 8})))
    assert not any("GPU" in line for line in said(Workload(**MODEL, zero_stage=2, data_parallel_size=4)))


def test_a_config_alone_and_a_stage_alone_are_for_several_gpus():
    assert said(Workload(**MODEL, zero_stage=2))[0] == \
        "Assumed 1 GPU: deepspeed is made for several, and nothing says how many: give --data-parallel-size."
    config = str(LLAVA.parent / "zero2.json")
    assert "is made for several, and" in said(read(path=config, options=MODEL))[0]
    assert not any("GPU" in line for line in said(Workload(**MODEL, recipe="pretrain")))


@pytest.mark.parametrize("command, starts", [
    ("accelerate launch train.py", "accelerate"), ("torchrun --nproc_per_node 2 train.py", ""), ("torchrun train.py", ""),
    ("python train.py", ""), ("srun python train.py", "srun"), ("deepspeed train.py", "deepspeed"),
    ("CUDA_VISIBLE_DEVICES=0,1 accelerate launch train.py", "")])
def test_what_a_launcher_does_without_a_number(command, starts):
    words = shlex.split(command + " --output_dir out --model_name_or_path gpt2 --max_length 64")
    assert readers.read(words=words)[1].on_every_gpu == starts


@pytest.mark.parametrize("form, keys, starts", [
    ("llamafactory", FULL, "llamafactory-cli train"), ("axolotl", {"base_model": "gpt2", "sequence_len": 64, "adapter": "lora",
     "lora_r": 8, "lora_alpha": 8, "lora_target_linear": True}, "axolotl train"), ("swift", {"model": "gpt2", "max_length": 64}, ""),
    ("transformers", {"output_dir": "out"}, "")])
def test_a_file_whose_command_uses_every_gpu(form, keys, starts, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(keys))
    assert readers.read(path=str(path), form=form)[1].on_every_gpu == starts
    assert "on_every_gpu" not in readers.read(path=str(path), form=form)[1].to_json()


def test_an_optimizer_that_only_the_default_says_is_named_where_its_states_are_large():
    lines = said(Workload(**MODEL, zero_stage=2, data_parallel_size=4))
    assert len(lines) == 1 and lines[0].startswith("Assumed optim adamw_torch_fused, whose states are ") and lines[0].endswith("give --optim.")
    assert said(Workload(**MODEL, zero_stage=2, data_parallel_size=4, optim="adamw_torch_fused")) == ()
    assert said(Workload(**MODEL, recipe="pretrain")) == ()  # the projector's states are small


def test_inference_has_none():
    assert said(Workload(**MODEL, mode="inference")) == ()


@pytest.mark.parametrize("options, assumed", [({}, True), ({"image_size": "448x336"}, False)])
def test_the_largest_pictures_of_a_framework_are_said_to_be_assumed(options, assumed, tmp_path):
    path = tmp_path / "sft.yaml"
    path.write_text(yaml.safe_dump(FULL | {"model_name_or_path": "Qwen/Qwen2.5-VL-7B-Instruct", "cutoff_len": 2048}))
    workload = read(options, path=str(path))
    workload = workload.fill(images_per_sample=1)
    prediction = SimpleNamespace(workload=workload.resolved(), source=workload.source)
    assert [line.split(", the largest")[0] for line in decisive_defaults._pictures(prediction)] == (
        ["Assumed pictures of 768 pixels a side, 1 a sample"] if assumed else [])
