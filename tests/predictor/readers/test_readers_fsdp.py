"""FSDP2 from the Trainer's arguments, accelerate's configuration, and frameworks."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from predictor import readers
from predictor.common.errors import InputError
from predictor.workload.workload import Workload

SWIFT = {"model": "Qwen/Qwen2.5-7B-Instruct", "tuner_type": "full", "max_length": 512}
FSDP = """distributed_type: FSDP
mixed_precision: bf16
num_processes: 4
fsdp_config: {{fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_reshard_after_forward: {}, fsdp_offload_params: false,
  fsdp_cpu_ram_efficient_loading: true, fsdp_state_dict_type: SHARDED_STATE_DICT, fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer}}
"""
LLAMA = "train.py --model_name_or_path Llama-3.1-8B --max_length 512 --output_dir x"


def launched(directory: Path, text: str, words: str = LLAMA):
    (directory / "a.yaml").write_text(text)
    return readers.read(words=shlex.split(f"accelerate launch --config_file {directory / 'a.yaml'} {words}"))


@pytest.mark.parametrize("reshards", ["true", "false"])
def test_accelerates_fsdp_is_what_training_arguments_say_of_it(tmp_path, reshards):
    found, source = launched(tmp_path, FSDP.format(reshards))
    said = json.dumps({"transformer_layer_cls_to_wrap": "LlamaDecoderLayer", "reshard_after_forward": reshards})
    same, _ = readers.read(words=shlex.split(f"torchrun --nproc_per_node 4 {LLAMA} --bf16 True --fsdp full_shard --fsdp_config '{said}'"))
    assert found == same and found["engine"] == "fsdp2" and found["fsdp"]["reshard_after_forward"] == (reshards == "true")
    assert source.place("engine").endswith("a.yaml: distributed_type")


@pytest.mark.parametrize("said", ["true", "True", "false"])
def test_fsdp_with_a_word_that_is_no_option_of_it_is_refused_where_the_flag_alone_is_not(said):
    """transformers 5.17, training_args.py, ``_apply_legacy_fsdp_to_config``: any text is words of it."""
    command = shlex.split(f"torchrun --nproc_per_node 4 {LLAMA} --bf16 True --fsdp")
    assert readers.read(words=command)[0]["engine"] == "fsdp2"
    with pytest.raises(InputError, match=f'--fsdp has "{said}": of version 2 are full_shard, shard_grad_op and auto_wrap'):
        readers.read(words=[*command, said])


def test_what_follows_llama_factorys_file_is_true_or_false_as_in_the_file(tmp_path):
    (tmp_path / "a.yaml").write_text("model_name_or_path: gpt2\nstage: pt\nfinetuning_type: full\ncutoff_len: 64\nbf16: true\n"
                                     "disable_gradient_checkpointing: true\n")
    for said, engine in (("true", "fsdp2"), ("false", "ddp")):
        words = ["torchrun", "--nproc_per_node", "2", "src/train.py", str(tmp_path / "a.yaml"), f"fsdp={said}"]
        assert readers.read(words=words)[0]["engine"] == engine


FACTORY = ("src/train.py --model_name_or_path Llama-3.1-8B --stage sft --finetuning_type full --cutoff_len 512 --output_dir x --bf16 True "
           "--use_reentrant_gc True")


def test_llama_factorys_checkpoints_are_not_reentrant_under_accelerates_fsdp2_alone(tmp_path):
    found, _ = launched(tmp_path, FSDP.format("true"), FACTORY)
    assert found["gradient_checkpointing"] and found["gradient_checkpointing_kwargs"] == {"use_reentrant": False}
    found, _ = readers.read(words=shlex.split(f"torchrun --nproc_per_node 4 {FACTORY} --fsdp full_shard"))
    assert found["gradient_checkpointing_kwargs"] == {"use_reentrant": True}


@pytest.mark.parametrize(("version", "reentrant"), [(2, False), (1, True)])
def test_llama_factorys_checkpoints_go_by_the_launchers_fsdp_whatever_its_own_says(tmp_path, version, reentrant):
    text = FSDP.format("true").replace("fsdp_version: 2", f"fsdp_version: {version}")
    found, source = launched(tmp_path, text, f"{FACTORY} --fsdp")
    assert found["gradient_checkpointing_kwargs"] == {"use_reentrant": reentrant}
    assert source.place("engine") == "the command: --fsdp"


def test_checkpointing_of_fsdp_beside_a_named_layer_is_noted_under_fsdp2_alone(tmp_path):
    text = FSDP.format("true").replace("{fsdp_version", "{fsdp_activation_checkpointing: true, fsdp_version")
    found, source = launched(tmp_path, text)
    workload = Workload.from_mapping(found)
    said, plain = "\n".join(source.left_out(workload)), Workload(model="llama-3.1-8b", sequence_length=512)
    assert found["gradient_checkpointing"] and "FSDP's wrappers are predicted as transformers' own" in said
    assert not any("FSDP's wrappers" in line for line in source.left_out(plain))


def test_checkpoints_of_fsdp_and_of_the_trainer_together_are_refused(tmp_path):
    text = FSDP.format("true").replace("{fsdp_version", "{fsdp_activation_checkpointing: true, fsdp_version")
    with pytest.raises(InputError, match="--gradient_checkpointing is on, and so is activation_checkpointing of FSDP"):
        launched(tmp_path, text, f"{LLAMA} --gradient_checkpointing True")


@pytest.mark.parametrize(("before", "after", "said"), [
    ("fsdp_version: 2", "fsdp_version: 3", 'version 3: it is 1 or 2'),
    ("fsdp_version: 2", "fsdp_version: 1", "sharding_strategy True: it is one of FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, "
     "HYBRID_SHARD, HYBRID_SHARD_ZERO2"),
    ("fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, ", "", "auto_wrap_policy NO_WRAP (accelerate's default), which is not predicted: "
     "give TRANSFORMER_BASED_WRAP"),
    ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "auto_wrap_policy SIZE_BASED_WRAP, which is not predicted: give TRANSFORMER_BASED_WRAP"),
    ("offload_params: false", "offload_params: true", "offload_params True: parameters on the CPU are not predicted: leave it out"),
    ("forward: true", "forward: SHARD_GRAD_OP", 'reshard_after_forward "SHARD_GRAD_OP": it is true or false'),
])
def test_what_accelerates_fsdp_cannot_be_is_named(tmp_path, before, after, said):
    with pytest.raises(InputError) as caught:
        launched(tmp_path, FSDP.format("true").replace(before, after))
    assert str(caught.value) == f"the command: --config_file {tmp_path / 'a.yaml'}: fsdp_config has {said}"


VERSION_1 = """distributed_type: FSDP
mixed_precision: bf16
num_processes: 4
fsdp_config: {{fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_backward_prefetch: BACKWARD_PRE, fsdp_cpu_ram_efficient_loading: true,
  fsdp_forward_prefetch: false, fsdp_offload_params: {offload}, fsdp_sharding_strategy: {strategy}, fsdp_state_dict_type: SHARDED_STATE_DICT,
  fsdp_sync_module_states: true, fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer, fsdp_use_orig_params: {original}}}
"""


@pytest.mark.parametrize(("offload", "strategy", "original", "keys"), [
    ("false", "FULL_SHARD", "true", {}), ("true", "2", "true", {"cpu_offload": True, "sharding_strategy": "SHARD_GRAD_OP"}),
    ("false", "1", "false", {"use_orig_params": False})])
def test_accelerates_default_version_is_fsdp1(tmp_path, offload, strategy, original, keys):
    found, source = launched(tmp_path, VERSION_1.format(offload=offload, strategy=strategy, original=original))
    assert found["engine"] == "fsdp1" and found["mixed_precision"] == "bf16" and found["data_parallel_size"] == 4
    assert found["fsdp1"] == keys | {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
    assert any("sync_module_states" in line for line in source.left_out(Workload.from_mapping(found)))


@pytest.mark.parametrize("said", [{}, {"gradient_checkpointing": False}, {"gradient_checkpointing": True}])
def test_checkpointing_of_ms_swifts_fsdp2_goes_before_the_trainers(read, said):
    values, source = read(SWIFT | {"fsdp": "fsdp2"} | said, data_parallel_size=8)
    assert (values["engine"], values["gradient_checkpointing"]) == ("fsdp2", True)
    assert not values.get("gradient_checkpointing_kwargs", {}).get("use_reentrant")
    assert source.place("gradient_checkpointing").endswith("job.json: fsdp") and source.without_effect == tuple(said)


FULL_STATE = {"fsdp": "shard_grad_op auto_wrap", "fsdp_config": {"state_dict_type": "FULL_STATE_DICT", "activation_checkpointing": True}}


@pytest.mark.parametrize("inline", [False, True])
def test_ms_swift_takes_an_fsdp_config_as_a_file_or_as_its_content(read, tmp_path, inline):
    (tmp_path / "fsdp.json").write_text(json.dumps(FULL_STATE))
    said = {"save_only_model": True, "fsdp": json.dumps(FULL_STATE) if inline else "fsdp.json"}
    values, source = read(SWIFT | said, data_parallel_size=8)
    assert (values["engine"], values["fsdp"]["reshard_after_forward"], values["gradient_checkpointing"]) == ("fsdp2", False, True)
    assert source.without_effect == ("save_only_model",)


def test_ms_swifts_fsdp_replaces_what_fsdp_config_says(read):
    said = {"fsdp": "fsdp2", "fsdp_config": {"reshard_after_forward": False}}
    values, source = read(SWIFT | said, data_parallel_size=8)
    assert values["fsdp"]["reshard_after_forward"] is True
    assert source.without_effect == ("fsdp_config",) and source.place("fsdp", "engine").endswith("job.json: fsdp")


def test_llama_factorys_pure_bf16_leaves_weights_of_bf16_under_fsdp2(read):
    values, source = read({"model_name_or_path": "gpt2", "stage": "pt", "finetuning_type": "full", "cutoff_len": 64, "pure_bf16": True,
                           "disable_gradient_checkpointing": True, "fsdp": "full_shard"}, data_parallel_size=2)
    assert values["dtype"] == "bf16" and "param_dtype" not in values["fsdp"] and source.place("dtype").endswith("pure_bf16")
