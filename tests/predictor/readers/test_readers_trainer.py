"""Training arguments that change memory and are not predicted are rejected or named; no others are."""

from __future__ import annotations

import re
import shlex

import pytest

from predictor import readers
from predictor.common.errors import InputError
from tests.predictor.readers.test_readers_rules import GPT2, LLAVA, UNCAST, of_file


@pytest.mark.parametrize(("keys", "said"), [
    ({"torch_compile_backend": "inductor"}, "it turns torch_compile on"), ({"torch_compile_mode": "default"}, "it turns torch_compile on"),
    ({"full_determinism": True}, "other workspaces of cuBLAS"), ({"ddp_backend": "gloo"}, "the buffers of NCCL are predicted"),
    ({"accelerator_config": {"split_batches": True}}, "accelerator_config has split_batches True: GPUs share the batch"),
    ({"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 4}}}, "has num_steps 4: give gradient_accumulation_steps"),
    ({"accelerator_config": {"split_batch": True}}, 'has the key "split_batch", which accelerate has not (did you mean "split_batches"?)'),
    ({"config_name": "gpt2-medium"}, 'config_name is "gpt2-medium", not the model'), ({"config_overrides": "n_embd=8"}, "is not supported"),
    ({"bf16_full_eval": True, "deepspeed": UNCAST}, "bf16_full_eval turns bf16.enabled of")])
def test_training_arguments_that_change_what_is_allocated_are_refused(tmp_path, keys, said):
    with pytest.raises(InputError, match=re.escape(said)):
        of_file(tmp_path, GPT2 | keys)


@pytest.mark.parametrize("keys", [{"accelerator_config": {"dispatch_batches": True}}, {"include_for_metrics": ["inputs"]}, {"debug": "underflow_overflow"},
                                  {"skip_memory_metrics": False}, {"predict_with_generate": True}])
def test_training_arguments_whose_memory_is_left_out_are_noted(tmp_path, keys):
    source = of_file(tmp_path, GPT2 | keys)[1]
    assert any(next(iter(keys)) in note for note in source.not_modelled) and not keys.keys() & set(source.without_effect)


@pytest.mark.parametrize("keys", [{"accelerator_config": {"even_batches": False}}, {"config_name": "gpt2"}, {"skip_memory_metrics": True},
                                  {"ddp_backend": "nccl"}, {"full_determinism": False}, {"bf16_full_eval": True}])
def test_training_arguments_that_ask_for_what_is_predicted_are_without_effect(tmp_path, keys):
    assert keys.keys() <= set(of_file(tmp_path, GPT2 | keys)[1].without_effect)


@pytest.mark.parametrize(("keys", "said"), [({"split_batches": True}, "GPUs share the batch"), ({"tp_size": 2}, "tensor parallelism"),
                                            ({"fp16_backend": "apex"}, "PyTorch's autocast"), ({"past_index": 0}, "hidden states")])
def test_older_training_arguments_that_change_what_is_allocated_are_refused(keys, said):
    with pytest.raises(InputError, match=said):
        readers.read(words=[*shlex.split(LLAVA), *(word for key, item in keys.items() for word in (f"--{key}", str(item)))])


def test_a_learning_rate_of_the_projector_alone_does_not_make_a_script_llavas():
    _, source = readers.read(words=shlex.split("torchrun --nproc_per_node 2 finetune.py --model_name_or_path Qwen/Qwen2.5-VL-3B-Instruct "
                                               "--dataset_name a --mm_projector_lr 1e-5 --output_dir x --model_max_length 4096 --bf16"))
    assert source.format == "transformers" and any("--mm_projector_lr" in note for note in source.not_modelled)
