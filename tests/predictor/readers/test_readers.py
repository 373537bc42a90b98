"""Readers turn each format's example, launchers and defaults into workloads, and report each mistake in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictor import predict, readers
from predictor.common.errors import InputError
from predictor.model import hub
from predictor.readers.training_arguments import ADAPTED
from predictor.workload.value_sources import DEFAULT, READ
from predictor.workload.workload import Workload

EXAMPLES = Path(__file__).parents[1] / "configurations"
LLAVA = EXAMPLES / "llava/scripts/v1_5"
LINEAR_7B = {"model": "llava-1.5-7b", "sequence_length": 2048, "dtype": "bf16", "attn_implementation": "flash_attention_2",
             "gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}, "optim": "adamw_torch",
             "no_grad": ["*vision_tower*"]}


def read(path=None, words=None, **more):
    return readers.read(path=None if path is None else str(path), words=words, **more)


def error_of(**given) -> str:
    """As the command line shows it."""
    with pytest.raises(InputError) as caught:
        values, source = read(**given)
        try:
            Workload(**values)
        except InputError as error:
            raise InputError(source.told(str(error))) from None
    return str(caught.value)


def written(directory: Path, text, name="job.yaml") -> Path:
    path = directory / name
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


@pytest.mark.parametrize("path, framework, expected", [
    (LLAVA / "pretrain.sh", "LLaVA", LINEAR_7B | {"recipe": "pretrain", "per_device_train_batch_size": 32}),
    (LLAVA / "finetune.sh", "LLaVA", LINEAR_7B | {"recipe": "finetune", "per_device_train_batch_size": 16}),
    (LLAVA / "finetune_lora.sh", "LLaVA", LINEAR_7B | {
        "recipe": "lora", "lora": {"r": 128, "lora_alpha": 256, "lora_dropout": 0.05, "autocast_adapter_dtype": False}}),
    (EXAMPLES / "llamafactory.yaml", "LLaMA-Factory", {
        "model": "qwen2.5-vl-7b", "recipe": "lora", "lora": {"r": 8, "lora_alpha": 16, "lora_dropout": 0.0}, "image_size": 512,
        "frozen": ["*visual.merger*"], "sequence_length": 2048, "gradient_accumulation_steps": 8, "mixed_precision": "bf16",
        "dtype": "bf16", "gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}),
    (EXAMPLES / "swift.sh", "ms-swift", {
        "model": "qwen2.5-vl-7b", "recipe": "lora", "lora": {"r": 16, "lora_alpha": 32, "lora_dropout": 0.05},
        "data_parallel_size": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "sequence_length": 4096,
        "weight_decay": 0.1, "image_size": 1001, "dtype": "bf16", "gradient_checkpointing": True}),
    (EXAMPLES / "axolotl.yml", "axolotl", {
        "model": "llava-1.5-7b", "recipe": "lora", "optim": "adamw_bnb_8bit", "sequence_length": 8192,
        "gradient_accumulation_steps": 4, "per_device_train_batch_size": 1, "dtype": "bf16", "mixed_precision": "bf16",
        "gradient_checkpointing_kwargs": {"use_reentrant": True}, "frozen": ["*multi_modal_projector*"]}),
    (EXAMPLES / "training_arguments.json", "transformers", {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "optim": "adamw_torch_fused", "max_grad_norm": 1.0,
        "weight_decay": 0.01, "gradient_checkpointing": False, "recipe": "full", "mixed_precision": "bf16"}),
], ids=lambda value: value.stem if isinstance(value, Path) else None)
def test_an_example_of_each_framework_is_read_as_it_is(path, framework, expected):
    values, source = read(path)
    assert source.framework.startswith(framework)
    assert {key: values.get(key) for key in expected} == expected
    assert {row.key for row in source.values} >= values.keys()
    Workload.from_mapping({"model": "llava-1.5-7b"} | values)


def test_a_difference_of_known_size_that_may_turn_the_verdict_is_a_caution():
    values, source = read(LLAVA / "finetune.sh")
    keys = {"model": "llava-1.5-7b", "data_parallel_size": 8, "allocator_conf": "expandable_segments:True"}
    found = predict(Workload.from_mapping(values | keys | {"gpu": "a100-40gb"}).read_from(source))
    logits_bytes = 16 * 2048 * 32_000 * 4
    assert found.verdict == "fits"
    assert [(row.more_bytes, row.text) for row in found.cautions] == [(logits_bytes, (
        f"the loss of LLaVA's own transformers, 4.37, copies its fp32 logits once more, {logits_bytes:,} bytes here"))]


def test_each_value_says_where_it_came_from():
    _, source = read(LLAVA / "finetune.sh", options={"data_parallel_size": 8})
    rows = {row.key: row for row in source.values}
    assert (rows["sequence_length"].origin, rows["sequence_length"].names) == (READ, ("--model_max_length",))
    assert (rows["optim"].origin, rows["optim"].where) == (DEFAULT, "LLaVA 1.2 (transformers 4.37)")
    assert rows["deepspeed.train_batch_size"].value == 16 * 8
    assert rows["deepspeed.zero_optimization.reduce_bucket_size"].value == 4096**2
    assert rows["deepspeed.zero_optimization.reduce_scatter"].where.startswith("DeepSpeed")
    assert "data_path" in source.without_effect
    assert any("transformers 4.37.2" in line for line in source.not_modelled)


TRAIN = ["train.py", "--output_dir", "out", "--model_name_or_path", "gpt2", "--max_length", "128"]


@pytest.mark.parametrize("words, size", [
    (["torchrun", "--nproc_per_node", "8", *TRAIN], 8),
    (["torchrun", "--nproc-per-node=4", "--nnodes=2", "--master_port", "1", *TRAIN], 8),
    (["python", "-m", "torch.distributed.run", "--nproc_per_node=2", *TRAIN], 2),
    (["deepspeed", "--num_gpus", "4", "--num_nodes", "2", *TRAIN], 8),
    (["deepspeed", "--include", "localhost:0,1,5", "--master_port", "1", *TRAIN], 3),
    (["deepspeed", "--include=a:0,1@b:0,1", *TRAIN], 4),
    (["CUDA_VISIBLE_DEVICES=0,1", "deepspeed", *TRAIN], 2),
    (["accelerate", "launch", "--multi_gpu", "--num_processes", "8", *TRAIN], 8),
    (["NPROC_PER_NODE=4", "NNODES=2", "swift", "sft", "--model", "gpt2", "--max_length", "64"], 8),
    (["FORCE_TORCHRUN=1", "NPROC_PER_NODE=4", "llamafactory-cli", "train", str(EXAMPLES / "llamafactory.yaml")], 4),
    (["accelerate", "launch", "--num_processes", "2", "-m", "axolotl.cli.train", str(EXAMPLES / "axolotl.yml")], 2),
])
def test_the_launcher_says_how_many_gpus(words, size):
    values, _ = read(words=words)
    assert values["data_parallel_size"] == size
    assert values["engine"] == "ddp"


@pytest.mark.parametrize("options, size", [
    ([], 8 + 4 + 2), (["--num_nodes", "2"], 8 + 4), (["--num_gpus", "2"], 2 * 3), (["--num_gpus", "2", "--num_nodes", "1"], 2)])
def test_a_hostfile_says_how_many_gpus(tmp_path, options, size):
    hosts = str(written(tmp_path, "# mine\nworker-0 slots=8\n\nworker-1 slots=4\nworker-2 slots=2\n", "hosts"))
    values, _ = read(words=["deepspeed", "--hostfile", hosts, *options, *TRAIN])
    assert values["data_parallel_size"] == size


@pytest.mark.parametrize("text, options, said", [
    (None, [], 'names "HOSTS", and there is no such file, or give --data-parallel-size'),
    ("worker-0 slots=8\nworker-0 slots=4", [], "HOSTS: worker-0 has two lines, and DeepSpeed stops at that: keep one"),
    ("worker-0 8", [], 'HOSTS: a hostfile has lines such as worker-1 slots=8, not "worker-0 8"')])
def test_the_number_is_asked_for_where_a_hostfile_is_missing_not_where_deepspeed_stops(tmp_path, text, options, said):
    hosts = str(written(tmp_path, text, "hosts")) if text else str(tmp_path / "hosts")
    assert error_of(words=["deepspeed", "--hostfile", hosts, *options, *TRAIN]).endswith(said.replace("HOSTS", hosts))


def test_axolotls_own_kernels_of_adapters_are_a_note(tmp_path):
    def notes(**keys):
        return read(path=written(tmp_path, {"base_model": "gpt2", "sequence_len": 9, "adapter": "lora", "lora_r": 8,
                                            "lora_target_linear": True} | keys))[1].not_modelled
    assert any("lora_mlp_kernel" in line and "turns on" in line for line in notes())
    assert not any("lora_mlp_kernel" in line for line in notes(lora_mlp_kernel=False))


def test_only_what_changes_a_note_is_named_before_it(tmp_path):
    (tmp_path / "zero3.json").write_text('{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}')
    path = written(tmp_path, {"base_model": "gpt2", "sequence_len": 64, "bf16": True, "deepspeed": str(tmp_path / "zero3.json"),
                              "val_set_size": 0.05, "eval_steps": 10, "load_in_4bit": False, "pad_to_sequence_len": True})
    source = read(path)[1]
    assert any(note.startswith("val_set_size: eval_steps 10.0: the evaluation") for note in source.not_modelled)
    assert source.without_effect == ("load_in_4bit", "pad_to_sequence_len")


def test_accelerates_configuration_file_is_read(tmp_path):
    path = written(tmp_path, {"distributed_type": "DEEPSPEED", "num_processes": 8, "mixed_precision": "bf16", "deepspeed_config": {
        "zero_stage": 2, "offload_optimizer_device": "none", "offload_param_device": "none", "zero3_init_flag": False}})
    values, source = read(words=["accelerate", "launch", "--config_file", str(path), *TRAIN, "--gradient_accumulation_steps", "4"])
    assert (values["data_parallel_size"], values["dtype"], values["deepspeed"]["zero_optimization"]["stage"]) == (8, "bf16", 2)
    rows = {row.key: row for row in source.values}
    assert rows["deepspeed.train_batch_size"].value == 8 * 8 * 4
    assert rows["deepspeed"].names == (f"--config_file {path}: deepspeed_config",)
    Workload.from_mapping(values)


def test_without_a_launcher_an_option_says_it():
    assert "data_parallel_size" not in read(words=["python", *TRAIN])[0]
    assert read(words=["python", *TRAIN], options={"data_parallel_size": 4})[0]["engine"] == "ddp"


def test_a_command_may_override_the_file_that_it_names():
    words = ["llamafactory-cli", "train", str(EXAMPLES / "llamafactory.yaml"), "lora_rank=32"]
    assert read(words=words)[0]["lora"]["r"] == 32


def test_a_script_has_variables_and_comments(tmp_path):
    path = written(tmp_path, "\n".join((
        "#!/bin/bash", "set -e", "MODEL=Qwen/Qwen2.5-VL-7B-Instruct", "export LENGTH=1024  # tokens", "cd somewhere && ls",
        "# --bf16 True", "torchrun --nproc_per_node 2 train.py \\", "  --model_name_or_path ${MODEL} \\",
        "  --max_seq_length $LENGTH --output_dir x 2>&1 | tee log.txt")), "job.sh")
    values, _ = read(path)
    assert (values["model"], values["sequence_length"], values["data_parallel_size"]) == ("qwen2.5-vl-7b", 1024, 2)


def test_a_scripts_own_flags_are_listed_and_slips_are_not():
    _, source = read(words=["python", *TRAIN, "--my_own_thing", "3"])
    assert "what the script does with its own --my_own_thing" in source.not_modelled
    assert error_of(words=["python", *TRAIN, "--per_device_train_batchsize", "3"]).endswith(
        '--per_device_train_batchsize: transformers 5.17.0 has no such key (did you mean "per_device_train_batch_size"?)')


@pytest.mark.parametrize("own", ["train_batch_size", "eval_batch_size", "model_dtype"])
def test_a_flag_of_words_that_known_ones_have_is_the_scripts_own(own):
    assert f"what the script does with its own --{own}" in read(words=["python", *TRAIN, f"--{own}", "1"])[1].not_modelled


@pytest.mark.parametrize("own", ["use_lora True", "lora", "q_lora 1", "lora_r 8", "freeze_tower true", "train_vision_encoder True", "bits 4",
                                 "lora_target_modules q_proj"])
def test_a_flag_of_a_script_of_its_own_that_says_what_trains_is_refused_by_its_name(own):
    assert error_of(words=["python", *TRAIN, *f"--{own}".split()]).startswith(f"the command: --{own.split()[0]}: what they make of the model")


@pytest.mark.parametrize("off", ["use_lora False", "freeze_tower false", "bits 16"])
def test_such_a_flag_that_is_off_is_listed(off):
    assert f"what the script does with its own --{off.split()[0]}" in read(words=["python", *TRAIN, *f"--{off}".split()])[1].not_modelled


def test_an_option_that_says_what_trains_takes_the_place_of_such_a_flag():
    assert read(words=["python", *TRAIN, "--use_lora", "True"], options={"recipe": "lora"})[0]["recipe"] == "full"


@pytest.mark.parametrize("slip", ["learning_rte", "gradient_acumulation_steps", "gradient_checkpointing_kwrags", "per_device_eval_batchsize"])
def test_a_flag_with_a_word_of_its_own_near_a_known_one_is_a_slip(slip):
    assert f"--{slip}: transformers 5.17.0 has no such key (did you mean" in error_of(words=["python", *TRAIN, f"--{slip}", "1"])


@pytest.mark.parametrize("flag, key", [("per_device_train_batch", "per_device_train_batch_size"), ("model_max", "sequence_length"),
                                       ("gradient-accumulation", "gradient_accumulation_steps")])
def test_a_flag_is_abbreviated_as_argparse_lets_it(flag, key):
    words = [word for word in TRAIN if word not in ("--max_length", "128")]
    values, source = read(words=["python", *words, f"--{flag}", "4"])
    assert values[key] == 4 and f"--{flag.replace('-', '_')}" in {row.key: row for row in source.values}[key].names


@pytest.mark.parametrize("own", ["model", "model_name"])
def test_a_beginning_of_several_keys_or_of_one_that_is_given_is_a_flag_of_the_script(own):
    assert f"what the script does with its own --{own}" in read(words=["python", *TRAIN, f"--{own}", "1"])[1].not_modelled


def test_an_abbreviation_of_several_keys_is_refused_by_name():
    assert error_of(words=["python", *TRAIN, "--gradient_checkpoint", "True"]).startswith(
        "the command: --gradient_checkpoint may be --gradient_checkpointing or --gradient_checkpointing_kwargs: write it in full")


def test_an_abbreviation_of_a_key_that_the_launcher_decides_is_refused_by_name():
    """The Trainer would take it for ``--deepspeed``."""
    assert error_of(words=["accelerate", "launch", "--use_deepspeed", "--zero_stage", "2", *TRAIN, "--deepsp", "ds.json"]).startswith(
        "the command: --deepsp is read as --deepspeed, which accelerate launch: deepspeed_config sets too: write it in full")


@pytest.mark.parametrize("text, message", [
    ({"finetuning_type": "lora", "cutof_len": 9}, '{}: cutof_len: LLaMA-Factory 0.9.5 has no such key (did you mean "cutoff_len"?)'),
    ({"finetuning_type": "lora", "cutoff_len": "long"}, '{}: cutoff_len must be a whole number, not "long"'),
    ({"finetuning_type": "oft", "cutoff_len": 9}, '{}: finetuning_type "oft" is not supported yet: use lora'),
    ({"finetuning_type": "full", "use_galore": True}, "{}: use_galore True is not supported: its optimizer is not predicted: leave it out"),
    ({"finetuning_type": "full", "quantization_bit": 4}, "{}: quantization_bit is given, but finetuning_type is full: weights of 4 bits do not train"),
    ({"base_model": "gpt2", "sequence_len": 9, "adapter": "lora"}, "{}: lora_r is not given, but adapter is lora: axolotl has no default"),
    ({"base_model": "gpt2", "micro_batch_size": 2, "gradient_accumulation_steps": 2, "batch_size": 9}, "{}: batch_size is 9, but micro_batch_size 2 x gradient_accumulation_steps 2 is 4: leave it out"),
    ({"base_model": "gpt2", "bf16": True, "fp16": True, "sequence_len": 9}, "{}: fp16 is true, and so is bf16: keep one"),
    ({"tuner_type": "lora", "packing": True, "max_length": 9}, "{}: packing is on, but attn_impl is not flash_attn: ms-swift stops there"),
    ({"per_device_train_batch_size": 0, "output_dir": "x"}, "{}: per_device_train_batch_size must be at least 1, not 0"),
    ({"output_dir": "x", "deepspeed": "no.json"}, '{}: deepspeed names "no.json", and there is no such file'),
    ({"output_dir": "x", "optim": "adam"}, '{}: optim must be one of'),
    ({"output_dir": "x", "torch_compile": True, "model_name_or_path": "gpt2"}, "{}: torch_compile True is not supported: compiled models allocate differently: leave it out"),
    ({"output_dir": "x", "fsdp": "full_shard", "fsdp_config": {"version": 3}}, "{}: fsdp_config has version 3: it is 1 or 2"),
    *(({"output_dir": "x", "fsdp": said}, f'{{}}: fsdp has "{word}": of version 2 are full_shard, shard_grad_op and auto_wrap') for said, word in (
        ("fulll_shard", "fulll_shard"), ("no_shard", "no_shard"), (["hybrid_shard_zero2", "auto_wrap"], "hybrid_shard_zero2"))),
    ({"output_dir": "x", "fsdp": "full_shard", "deepspeed": {"zero_optimization": {"stage": 2}}}, "{}: fsdp is given, and so is deepspeed: keep one"),
    ({"nothing": 1}, "{}: is in no known format: name one with --from-format (llava, llamafactory, swift, axolotl, qwenvl, qwen_series, deepspeed, trl, transformers)"),
    ("- 1", "{}: holds no mapping of keys to values: give YAML, JSON, or a shell script (.sh)"),
    ({"mm_projector_type": "linear"}, '{}: mm_projector_type "linear" is not supported yet: use mlp2x_gelu, a projector of two layers'),
    ({"mm_projector_type": "mlp2x_gelu", "bits": 4}, "{}: bits is 4, but lora_enable is off: weights of 4 bits do not train"),
])
def test_what_is_wrong_is_one_line_with_file_and_key(tmp_path, text, message):
    path = written(tmp_path, text)
    said = error_of(path=path)
    assert said.startswith(message.format(path)) and "\n" not in said


@pytest.mark.parametrize("document, message", [
    ({"bf16": {"enabled": True}}, "{0}: bf16 is false, the default of transformers 5.17.0, but {1} has bf16.enabled true"),
    ({"gradient_accumulation_steps": 4}, "{0}: gradient_accumulation_steps is 1, the default of transformers 5.17.0, but {1} has gradient_accumulation_steps 4"),
    ({"train_micro_batch_size_per_gpu": 4}, "{0}: per_device_train_batch_size is 2 but {1} has train_micro_batch_size_per_gpu 4"),
])
def test_a_deepspeed_config_must_say_what_the_arguments_say(tmp_path, document, message):
    config = written(tmp_path, {"zero_optimization": {"stage": 2}} | document, "ds.json")
    path = written(tmp_path, {"output_dir": "x", "deepspeed": str(config), "per_device_train_batch_size": 2})
    assert error_of(path=path) == message.format(path, config) + ': write "auto" there, or the same in both'


def test_beside_training_arguments_a_deepspeed_config_is_plain_json_as_the_trainer_reads_it(tmp_path):
    config = written(tmp_path, '{"zero_optimization": {"stage": 2},}', "ds.json")
    path = written(tmp_path, {"output_dir": "x", "deepspeed": str(config)})
    assert error_of(path=path).startswith(f"{config}: not valid JSON at line 1") and read(config)[0]["deepspeed"]


@pytest.mark.parametrize("words, message", [
    (["ls", "-l"], 'the command: "ls -l" starts no training that can be read'),
    (["torchrun", "--nproc_per_node", "gpu", *TRAIN], 'the command: --nproc_per_node is "gpu": a number of GPUs or nodes is needed'),
    (["python", *TRAIN, "--bf16", "maybe"], "the command: --bf16 must be true or false"),
    (["python", *TRAIN, "--output_dir", "y"], "the command: --output_dir is given twice: keep one"),
    (["python", *TRAIN, "--weight_decay", "$DECAY"], 'the command: --weight_decay is "$DECAY": the variable is not set there'),
    (["python", *TRAIN, "--max_seq_length", "64"], "the command: --max_seq_length is given twice, as 128 and 64: keep one"),
])
def test_what_is_wrong_with_a_command_is_one_line(words, message):
    assert error_of(words=words).startswith(message)


@pytest.mark.parametrize("name, known", [
    ("liuhaotian/llava-v1.5-7b", "llava-1.5-7b"), ("./checkpoints/llava-v1.5-13b/", "llava-1.5-13b"), ("llava-hf/llava-1.5-7b-hf", "llava-1.5-7b"),
    ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b"), ("google/gemma-3-4b-it", "gemma-3-4b"), ("OpenGVLab/InternVL3-8B-hf", "internvl3-8b"),
    ("meta-llama/Llama-2-7b-hf", "llama-2-7b"), ("mistralai/Mistral-7B-v0.3", "mistral-7b-v0.3"), ("nobody/knows-this", "nobody/knows-this"),
])
def test_ids_of_the_hub_are_known_models(name, known):
    assert hub.known(name) == known


@pytest.mark.parametrize("keys, recipe, frozen", [
    ({}, "finetune", ["*multi_modal_projector*"]),
    ({"freeze_multi_modal_projector": False}, "finetune", None),
    ({"freeze_vision_tower": False, "freeze_multi_modal_projector": False}, "full", None),
    ({"freeze_language_model": True, "freeze_multi_modal_projector": False}, "pretrain", None),
    ({"freeze_vision_tower": False}, "full", ["*multi_modal_projector*"]),
])
def test_what_is_frozen_becomes_a_recipe(tmp_path, keys, recipe, frozen):
    path = written(tmp_path, {"model_name_or_path": "llava-1.5-7b", "finetuning_type": "full"} | keys)
    values, _ = read(path)
    assert (values["recipe"], values.get("frozen")) == (recipe, frozen)


@pytest.mark.parametrize("model, targets", [("gpt2", ["c_attn"]), ("qwen2.5-0.5b", ["q_proj", "v_proj"])])
def test_layers_that_trl_does_not_name_are_pefts(model, targets):
    constants = pytest.importorskip("peft.utils.constants")
    values, _ = read(words=["python", "train.py", "--model_name_or_path", model, "--use_peft", "--output_dir", "x"])
    assert values["lora"] == {"r": 16, "lora_alpha": 32, "lora_dropout": 0.05, "target_modules": targets}
    theirs = constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    assert {name: list(layers) for name, layers in ADAPTED.items()} == {name: theirs[name] for name in ADAPTED}


@pytest.mark.parametrize("linear, frozen", [({"lora_target_linear": True}, None),
                                            ({"lora_target_modules": ["q_proj"]}, ["*multi_modal_projector*"])])
def test_adapters_of_the_projector_are_not_frozen(tmp_path, linear, frozen):
    path = written(tmp_path, {"base_model": "llava-hf/llava-1.5-7b-hf", "adapter": "lora", "lora_r": 8} | linear)
    assert read(path)[0].get("frozen") == frozen


KEYS = st.sampled_from(["finetuning_type", "deepspeed", "bf16", "model_name_or_path", "fsdp", "lora_target", "gradient_checkpointing_kwargs",
                        "per_device_train_batch_size", "fsdp_config", "base_model", "adapter", "tuner_type", "mm_projector_type", "output_dir"])
ANYTHING = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9), lambda inner: st.lists(inner, max_size=3)
                        | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=5)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, ANYTHING, max_size=5))
def test_any_file_is_read_or_is_one_line(tmp_path, document):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(document))
    try:
        Workload.from_mapping(read(path)[0])
    except InputError as error:
        assert "\n" not in str(error)


OWN_OF_SFT = ["python", "sft.py", "--model_name_or_path", "Qwen/Qwen3-8B", "--my_own", "3", "--use_lora", "True"]


def test_the_first_message_about_a_script_of_trl_names_all_flags_of_its_own():
    assert ("add --from-format trl, which reads it without the script's own --my_own, --use_lora (leave them out, and say "
            "what they do by options such as --recipe)") in error_of(words=OWN_OF_SFT)


def test_all_unknown_flags_are_named_at_once():
    assert ('--my_own, --use_lora (did you mean "use_rslora"?): TRL 1.16 has no such keys: leave out what is the script\'s '
            "own, and say what it does by options such as --recipe") in error_of(words=OWN_OF_SFT, form="trl")
