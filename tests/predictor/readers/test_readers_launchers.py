"""Launchers accept the options of the real parsers, and start the same number of processes."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import readers
from predictor.common.errors import InputError
from predictor.readers import hostfile, launchers

TRAIN = ["train.py", "--output_dir", "out", "--model_name_or_path", "gpt2", "--max_length", "128"]
HOSTS = "worker-0 slots=8\nworker-1 slots=4\n"


def read(*words, **more):
    return readers.read(words=[*words, *TRAIN], **more)


def error_of(*words) -> str:
    with pytest.raises(InputError) as caught:
        read(*words)
    return str(caught.value)


def test_the_table_is_what_the_installed_packages_say(tmp_path, monkeypatch):
    for package in ("deepspeed.launcher.runner", "accelerate.commands.launch"):
        pytest.importorskip(package)
    from scripts import list_launchers

    monkeypatch.setattr(sys, "argv", ["", "-o", str(tmp_path / "table.json")])
    list_launchers.main()
    assert json.loads((tmp_path / "table.json").read_text()) == launchers.table()


@pytest.mark.parametrize(("words", "size"), [
    (["deepspeed", "--num_gpu", "8"], 8), (["deepspeed", "--num_accelerators=8"], 8), (["deepspeed", "-i", "localhost:0,2"], 2),
    (["torchrun", "--nproc_per_nod", "8"], 8), (["torchrun", "--nproc-per-node", "8", "--nnode", "2"], 16),
    (["PET_NPROC_PER_NODE=4", "torchrun"], 4), (["python", "-m", "torch.distributed.launch", "--use_env", "--nproc_per_node", "2"], 2),
    (["accelerate", "launch", "--num-processes=4"], 4), (["python", "-m", "accelerate.commands.launch", "--num_processes", "4"], 4),
    (["CUDA_VISIBLE_DEVICES=1,3", "accelerate", "launch"], 2)])
def test_options_are_spelled_as_the_launcher_lets_them(words, size):
    assert read(*words)[0]["data_parallel_size"] == size


@pytest.mark.parametrize(("words", "said"), [
    (["accelerate", "launch", "--num_procesess", "8"], "--num_procesess: accelerate 1.15.0's launcher has no such option"),
    (["accelerate", "launch", "--num_process", "8"], "--num_process: accelerate 1.15.0's launcher has no such option"),
    (["deepspeed", "--num-gpus", "8"], '--num-gpus: deepspeed 0.19.8\'s launcher has no such option (did you mean "--num_gpus"?)'),
    (["torchrun", "--gpus=8"], "--gpus: torch 2.11.0's launcher has no such option"),
    (["deepspeed", "--num", "8"], "deepspeed: ambiguous option: --num could match --num_nodes, --num_gpus, --num_accelerators"),
    (["python", "-m", "torch.distributed.run", "--nproc", "x8"], "torchrun: ambiguous option: --nproc"),
])
def test_an_option_that_the_launcher_has_not_is_refused_by_name(words, said):
    assert error_of(*words).startswith(f"the command: {said}")


def test_a_number_that_nobody_wrote_is_not_said_to_be_read():
    rows = {row.key: row for row in read("torchrun")[1].values}
    assert rows["data_parallel_size"].names == ("torchrun without --nproc_per_node",)


@pytest.mark.parametrize(("words", "size"), [
    (["--include", "localhost:0,0,1"], 2), (["--include", "a:0@a:1@b:0"], 3), (["--hostfile", "HOSTS", "--include", "worker-0@worker-1:0,2"], 10),
    (["--hostfile", "HOSTS", "--include", "worker-0@worker-0:1"], 1), (["--hostfile", "HOSTS", "--exclude", "worker-1:0,3"], 10),
    (["--hostfile", "HOSTS", "--exclude", "worker-0"], 4)])
def test_deepspeed_takes_what_its_filters_leave(tmp_path, words, size):
    (tmp_path / "hosts").write_text(HOSTS)
    assert read("deepspeed", *(str(tmp_path / "hosts") if word == "HOSTS" else word for word in words))[0]["data_parallel_size"] == size


@pytest.mark.parametrize(("words", "said"), [
    (["--include", "localhost"], '--include is "localhost", and nothing says how many GPUs localhost has: give --hostfile'),
    (["--include", "worker-0@worker-1:0,2"], "and nothing says how many GPUs worker-0 has: give --hostfile"),
    (["--exclude", "localhost:0"], "and nothing says how many GPUs localhost has: give --hostfile"),
    (["--include", "localhost:0-3"], '--include has "0-3" for a GPU\'s number, and DeepSpeed stops at that: write each, as in localhost:0,1,2'),
    (["--num_gpus", "8", "--exclude", "localhost:0"], "--exclude and --num_gpus are both given, and DeepSpeed stops at that: keep one"),
    (["--include", "a:0", "--exclude", "a:1"], "--include and --exclude are both given, and DeepSpeed stops at that: keep one"),
    (["--hostfile", "HOSTS", "--include", "worker-1:4"], '"worker-1:4", and the hostfile has no such GPU: it has worker-0 with 8, worker-1 with 4'),
    (["--hostfile", "HOSTS", "--include", "worker-2"], '"worker-2", and the hostfile has no such GPU'),
    (["--hostfile", "HOSTS", "--exclude", "worker-0@worker-1"], "which leaves no GPU")])
def test_what_deepspeed_stops_at_or_nobody_knows_is_refused(tmp_path, words, said):
    (tmp_path / "hosts").write_text(HOSTS)
    assert said in error_of("deepspeed", *(str(tmp_path / "hosts") if word == "HOSTS" else word for word in words))


@pytest.mark.parametrize(("words", "given"), [
    (["--include", "localhost"], True), (["--num_gpus", "$N"], True), (["--include", "localhost:0-3"], False),
    (["--include", "a:0", "--exclude", "a:1"], False)])
def test_a_number_is_asked_for_where_it_is_missing_not_where_deepspeed_stops(words, given):
    assert error_of("deepspeed", *words).endswith("or give --data-parallel-size") is given


def test_a_visible_gpu_beside_a_number_of_nodes_stops_deepspeed():
    assert "CUDA_VISIBLE_DEVICES and --num_nodes are both given" in error_of("CUDA_VISIBLE_DEVICES=0", "deepspeed", "--num_nodes", "1")


MACHINES = st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), min_size=1)
NODES = st.lists(st.tuples(st.sampled_from("abcd"), st.lists(st.integers(0, 4).map(str) | st.just("0-1"), max_size=3)), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(MACHINES, NODES, st.booleans())
def test_filters_are_deepspeeds_own(tmp_path_factory, machines, nodes, excluded):
    runner = pytest.importorskip("deepspeed.launcher.runner")
    text = "@".join(f"{machine}:{','.join(slots)}" if slots else machine for machine, slots in nodes)
    path = tmp_path_factory.getbasetemp() / "hosts"
    path.write_text("".join(f"{machine} slots={size}\n" for machine, size in machines.items()))
    try:
        theirs = runner.parse_inclusion_exclusion(OrderedDict(machines), *(("", text) if excluded else (text, "")))
        expected = sum(map(len, theirs.values())) or None
    except ValueError:
        expected = None
    try:
        ours = hostfile.count("x", None, {"hostfile": str(path), "exclude" if excluded else "include": text}, {}, "")[0]
    except InputError:
        ours = None
    assert ours == expected


@pytest.mark.parametrize("launcher", launchers.PACKAGES)
def test_every_option_is_one_of_a_parser(launcher):
    assert isinstance(launchers._parser(launcher), ArgumentParser)
    assert launchers.options(launcher, ["--help", "a.py", "--help"], "x") == ({"help": ""}, ["a.py", "--help"])


@pytest.fixture
def axolotl(tmp_path) -> str:
    """A small configuration of axolotl."""
    path = tmp_path / "job.yaml"
    path.write_text("base_model: gpt2\nsequence_len: 64\nmicro_batch_size: 1\ngradient_accumulation_steps: 1\n"
                    "attn_implementation: flash_attention_2\n")
    return str(path)


@pytest.mark.parametrize(("words", "size"), [
    (["--launcher", "torchrun", "--", "--nproc_per_node", "8"], 8), (["--launcher=accelerate", "--", "--num_processes=4"], 4),
    (["--", "--num-processes", "4"], 4), (["--num-processes", "2"], 2)])
def test_axolotl_hands_options_to_its_launcher(axolotl, words, size):
    assert readers.read(words=["axolotl", "train", axolotl, *words])[0]["data_parallel_size"] == size


def test_axolotl_without_a_launcher_is_the_training_of_a_script(axolotl, tmp_path):
    (tmp_path / "run.sh").write_text(f"axolotl train {axolotl} --launcher python\n")
    assert readers.read(path=str(tmp_path / "run.sh"))[1].format == "axolotl"


@pytest.mark.parametrize(("words", "said"), [
    (["--launcher", "mpirun"], '--launcher is "mpirun": axolotl\'s are accelerate, torchrun and python'),
    (["--", "--num_gpus", "2"], "--num_gpus: accelerate 1.15.0's launcher has no such option"),
    (["--sequence-length", "9"], "--sequence_length: axolotl 0.19 has no such key")])
def test_a_mistake_beside_axolotls_file_is_not_the_files(axolotl, words, said):
    with pytest.raises(InputError) as caught:
        readers.read(words=["axolotl", "train", axolotl, *words])
    assert str(caught.value).startswith(f"the command: {said}")


def accelerated(directory, text: str, *words: str, train: tuple[str, ...] = ()):
    (directory / "a.yaml").write_text(text)
    return readers.read(words=["accelerate", "launch", "--config_file", str(directory / "a.yaml"), *words, *TRAIN, *train])


@pytest.mark.parametrize(("text", "said"), [
    ("num_procesess: 8", 'a.yaml: num_procesess: accelerate 1.15.0 has no such key (did you mean "num_processes"?)'),
    ("deepspeed_config: {zero_stge: 3}", 'a.yaml: deepspeed_config: zero_stge: accelerate 1.15.0 has no such key (did you mean "zero_stage"?)'),
    ("deepspeed_config: {offload_optimizer_devise: cpu}", 'has no such key (did you mean "offload_optimizer_device"?)'),
    ("fsdp_config: {fsdp_state_dic_type: X}", 'fsdp_config: state_dic_type: accelerate 1.15.0 has no such key (did you mean "state_dict_type"?)'),
    ("dynamo_config: {dynamo_backed: INDUCTOR}", 'has no such key (did you mean "backend"?)'),
    ("deepspeed_config: 3", "deepspeed_config is 3: a section of keys is needed"),
    ("distributed_type: DEEPSEED", 'distributed_type DEEPSEED is not predicted: of accelerate\'s, NO, MULTI_GPU, DEEPSPEED, FSDP are (did you '
                                   'mean "DEEPSPEED"?)'),
    ("dynamo_backend: INDUCTOR", "dynamo_backend true is not supported: compiled models"),
    ("use_cpu: true", "use_cpu: a training on the CPU takes no GPU memory"), ("mixed_precision: bf61", "mixed_precision bf61 is not predicted"),
    ("compute_environment: AMAZON_SAGEMAKER", "is not read: give the command that is run there"),
    ("distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json, zero_stage: 2}",
     "zero_stage is given beside deepspeed_config_file, which sets it: leave it out"),
    ("distributed_type: DEEPSPEED\nnum_machines: 2\ndeepspeed_config: {deepspeed_inclusion_filter: a@b}",
     "deepspeed_inclusion_filter is not read: leave it out, and give as num_processes what it leaves"),
    ("distributed_type: DEEPSPEED\ndeepspeed_config: {gradient_clipping: much}", 'gradient_clipping is "much": a number is needed, or auto')])
def test_accelerates_file_has_the_keys_that_accelerate_knows(tmp_path, text, said):
    with pytest.raises(InputError) as caught:
        accelerated(tmp_path, text)
    assert said.lower() in str(caught.value).lower()


@pytest.mark.parametrize(("text", "said"), [
    ("mixed_precision: fp8", "a.yaml: mixed_precision fp8 is not predicted: use bf16"),
    ("dynamo_config: {dynamo_backend: INDUCTOR}", "a.yaml: dynamo_backend True is not supported: compiled models"),
    ("parallelism_config: {tp_size: 2}", "a.yaml: parallelism_config is not predicted"),
    ("distributed_type: MEGATRON_LM", "a.yaml: megatron_lm_config is not predicted")])
def test_what_else_accelerates_file_turns_on_is_refused(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        accelerated(tmp_path, text)


DEEPSPEED = ("accelerate", "launch", "--use_deepspeed", "--num_processes", "8")
HALVED = ("--bf16", "--max_grad_norm", "0.5", "--gradient_accumulation_steps", "8")


def test_accelerates_options_of_deepspeed_are_read():
    words = (*DEEPSPEED, "--zero_stage", "1", "--gradient_accumulation_steps", "8", "--gradient_clipping", "0.5", *TRAIN, *HALVED)
    config = readers.read(words=words)[0]["deepspeed"]
    assert config["zero_optimization"]["stage"] == 1
    assert (config["gradient_accumulation_steps"], config["gradient_clipping"]) == (8, 0.5)


@pytest.mark.parametrize(("words", "said"), [
    (["--gradient_accumulation_steps", "4"], "--gradient_accumulation_steps is 8 but the command: accelerate launch: deepspeed_config has "
                                             "gradient_accumulation_steps 4"),
    (["--gradient_clipping", "1"], "--max_grad_norm is 0.5 but the command: accelerate launch: deepspeed_config has gradient_clipping 1.0")])
def test_accelerates_options_that_the_trainers_contradict_are_refused(words, said):
    with pytest.raises(InputError) as caught:
        readers.read(words=[*DEEPSPEED, *words, *TRAIN, *HALVED])
    assert said in str(caught.value)


def test_deepspeed_without_a_stage_is_accelerates_stage_2():
    assert readers.read(words=[*DEEPSPEED, *TRAIN, "--bf16"])[0]["deepspeed"]["zero_optimization"]["stage"] == 2


def test_an_option_s_engine_goes_before_the_files(tmp_path):
    assert accelerated(tmp_path, "distributed_type: DEEPSPEED\nnum_processes: 4", "--multi_gpu")[0]["engine"] == "ddp"


def test_a_distributed_type_of_no_starts_one_process(tmp_path):
    values, source = accelerated(tmp_path, "distributed_type: 'NO'\nnum_processes: 4")
    assert values["data_parallel_size"] == 1 and source.place("data_parallel_size").endswith("a.yaml: distributed_type NO: num_processes 1")


@pytest.mark.parametrize("option", ["--cpu", "--tpu", "--use_megatron_lm", "--use_parallelism_config"])
def test_what_accelerate_launches_otherwise_is_refused(option):
    assert "not predicted" in (said := error_of("accelerate", "launch", option)) or "takes no GPU memory" in said


@pytest.mark.parametrize("key", ["bf16", "fp16"])
def test_a_precision_that_is_off_leaves_it_to_accelerates_file(tmp_path, key):
    assert accelerated(tmp_path, "mixed_precision: bf16\nnum_processes: 2\n", train=(f"--{key}", "False"))[0]["mixed_precision"] == "bf16"


def test_accelerates_file_yields_to_what_the_trainings_file_says(tmp_path):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "gradient_accumulation_steps": "auto"}')
    (tmp_path / "a.yaml").write_text("distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"
                                     "deepspeed_config: {zero_stage: 2, gradient_accumulation_steps: 2}\n")
    (tmp_path / "job.yaml").write_text("model_name_or_path: gpt2\nfinetuning_type: full\ncutoff_len: 64\nfp16: true\ndeepspeed: ds.json\n")
    values, source = readers.read(words=["accelerate", "launch", "--config_file", str(tmp_path / "a.yaml"), "src/train.py", str(tmp_path / "job.yaml")])
    rows = {row.key: row for row in source.values}
    assert (rows["deepspeed.zero_optimization.stage"].value, values["gradient_accumulation_steps"]) == (3, 1)
    assert values["dtype"] == "fp16" and "fp16" in rows["dtype"].names


@pytest.mark.parametrize(("words", "said"), [
    (["--use_fsdp", "--use_deepspeed", "--num_processes", "8"], "--use_deepspeed and --use_fsdp are both given, and accelerate stops at that"),
    (["--multi_gpu", "--use_fsdp"], "--multi_gpu and --use_fsdp are both given"),
    (["--multi_gpu", "--num_processes", "1"], "--multi_gpu is given with --num_processes 1, and accelerate stops at fewer than 2")])
def test_accelerates_options_that_exclude_each_other_are_refused(words, said):
    assert error_of("accelerate", "launch", *words).startswith(f"the command: {said}")
