"""Scripts of other trainers are rejected; scripts without a sign of another trainer are read as transformers'."""

from __future__ import annotations

import shlex
from dataclasses import fields

import pytest

from predictor import readers
from predictor.common.errors import InputError
from predictor.readers.trainer_detection import INSTEAD, TRAINERS
from predictor.readers.training_arguments import FORMAT

FLAGS = "--model_name_or_path gpt2 --max_length 512 --output_dir x"


def read(command: str, **how):
    return readers.read(words=shlex.split(command), **how)


def refusal(command: str, **how) -> str:
    with pytest.raises(InputError) as caught:
        read(command, **how)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", [
    "dpo", "dpo_vlm", "dpo_online", "online_dpo", "mpo_vlm",
    "reward_modeling", "grpo_vlm", "grpo_agent", "gspo", "rloo_vlm", "kto", "orpo", "cpo", "ppo", "ppo_tldr", "gkd", "xpo", "nash_md", "prm", "bco"])
def test_an_example_script_of_trl_is_refused_by_its_name(name):
    said = refusal(f"accelerate launch --num_processes 2 examples/scripts/{name}.py {FLAGS}")
    assert said.startswith(f"the command: examples/scripts/{name}.py trains with another of TRL's trainers") and INSTEAD in said


@pytest.mark.parametrize("name", ["sft_vlm_gemma3", "sft_gpt_oss", "sft_video_llm", "sft_gemma3"])
def test_an_example_script_with_more_than_trls_own_is_refused_by_its_name(name):
    said = refusal(f"accelerate launch --num_processes 2 examples/scripts/{name}.py {FLAGS}")
    assert said.startswith(f"the command: examples/scripts/{name}.py trains with TRL's SFTConfig, ") and "--from-format trl" in said


@pytest.mark.parametrize("program", ["trl dpo", "trl reward", "trl grpo", "python -m trl.scripts.kto", "python trl/scripts/dpo.py"])
@pytest.mark.parametrize("form", [None, "trl", "transformers"])
def test_another_trainer_of_trls_is_never_read_as_another(program, form):
    assert "trains with another of TRL's trainers" in refusal(f"{program} {FLAGS}", form=form)


@pytest.mark.parametrize("program", [
    "trl sft", "accelerate launch --num_processes 1 examples/scripts/sft_vlm.py", "python trl/scripts/sft.py", "python -m trl.scripts.sft"])
def test_supervised_fine_tuning_of_trl_is_read_as_its_own(program):
    keys, source = read(f"{program} {FLAGS}")
    assert (keys["loss"], source.format) == ("trl_sft", "trl")


@pytest.mark.parametrize("flag", [
    "packing", "assistant_only_loss", "completion_only_loss", "dataset_text_field text", "eval-packing", "activation_offloading",
    "dataset_train_split train", "use_bnb_nested_quant"])
def test_an_option_that_only_trl_has_is_refused_by_its_name(flag):
    assert refusal(f"python train.py {FLAGS} --{flag}").startswith(f"the command: what has --{flag.split()[0]} trains with TRL's SFTConfig, ")


@pytest.mark.parametrize("flag", ["use_vllm", "max_completion_length 64"])
def test_an_option_that_only_another_trainer_of_trls_has_is_refused_by_its_name(flag):
    assert refusal(f"python train.py {FLAGS} --{flag}").startswith(f"the command: what has --{flag.split()[0]} trains with another of TRL's")


@pytest.mark.parametrize(("program", "who"), [
    ("torchrun src/open_r1/sft.py", "another of TRL's trainers"), ("accelerate launch scripts/run_sft.py", "TRL's SFTConfig"),
    ("python unsloth-cli.py", "Unsloth"), ("torchrun train_qwen.py", "a trainer of Qwen-VL's own repository"),
    ("torchrun internvl/train/internvl_chat_finetune.py", "a trainer of InternVL's own repository"), ("python -m verl.trainer.fsdp_sft_trainer", "another framework"),
    ("torchrun recipes/lora_finetune_single_device.py", "torchtune's recipes"), ("torchrun pretrain_gpt.py", "Megatron-LM"),
    ("accelerate launch run_clm_no_trainer.py", "a loop of its own, not the Trainer's")])
def test_a_script_of_another_trainer_is_refused_by_its_name(program, who):
    assert refusal(f"{program} {FLAGS}").startswith(f"the command: {program.split()[-1]} trains with {who}")


@pytest.mark.parametrize(("command", "form"), [
    ("python src/train.py --stage sft --template qwen", "llamafactory"), ("python src/llamafactory/launcher.py", "llamafactory"),
    ("python -m swift.cli.pt", "swift"), ("python src/axolotl/cli/train.py", "axolotl")])
def test_what_another_format_reads_is_sent_there(command, form):
    assert f"add --from-format {form}, which reads it" in refusal(f"{command} {FLAGS}")


def test_a_script_that_is_recognised_without_a_flag_of_the_trainer_is_named_too():
    assert "trains with TRL's SFTConfig" in refusal("python sft.py --model_name_or_path gpt2 --dataset_name x")


def test_keys_of_trl_in_a_file_are_refused(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("model_name_or_path: gpt2\nmax_length: 64\noutput_dir: x\ndataset_text_field: text\n")
    with pytest.raises(InputError, match="job.yaml: what has dataset_text_field trains with TRL's SFTConfig"):
        readers.read(path=str(path))


def test_adapters_beside_a_dataset_in_a_file_are_trls_and_those_of_a_script_are_its_own(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("model_name_or_path: gpt2\nmax_length: 64\noutput_dir: x\nuse_peft: true\ndataset_name: y\n")
    with pytest.raises(InputError, match="job.yaml: what has use_peft and dataset_name trains with TRL's SFTConfig"):
        readers.read(path=str(path))
    words = "python train.py --model_name_or_path gpt2 --max_length 64 --output_dir x --use_peft True --dataset_name y"
    assert readers.read(words=words.split())[0]["recipe"] == "lora"


def test_a_gpu_among_the_arguments_of_the_training_is_refused():
    words = "python train.py --model_name_or_path gpt2 --max_length 64 --output_dir x --gpu"
    with pytest.raises(InputError, match="--gpu h100-80gb stands among the training's own arguments: put it before --"):
        readers.read(words=[*words.split(), "h100-80gb"])
    readers.read(words=[*words.split(), "0"])  # a script may have an option of this name


@pytest.mark.parametrize("command", [
    "python train.py", "torchrun --nproc_per_node 2 examples/pytorch/language-modeling/run_clm.py --dataset_name a --dataset_config_name b",
    "python finetune.py --use_peft --lora_target_modules q_proj --dtype bfloat16", "python sft_train.py", "python -m mine.train", "./train.py --my_thing 1"])
def test_a_script_of_which_nothing_says_otherwise_is_the_trainers(command):
    assert read(f"{command} {FLAGS}")[1].format == "transformers"


def test_the_user_may_say_that_a_script_is_the_trainers_but_not_of_trls_own():
    assert read(f"python sft.py {FLAGS}", form="transformers")[0]["sequence_length"] == 512
    assert "--from-format transformers" not in refusal(f"python trl/scripts/sft.py {FLAGS}", form="transformers")


def test_no_option_that_tells_another_trainer_is_one_of_transformers():
    from transformers import Seq2SeqTrainingArguments

    known = {field.name for field in fields(Seq2SeqTrainingArguments)} | FORMAT.fields.keys() | FORMAT.renamed.keys()
    assert not [name for trainer in TRAINERS.values() for name in trainer.flags & known]


@pytest.mark.parametrize("name", ["SFT_VLM", "sft-vlm", "vsft_llava", "finetune_qlora_trl", "run-DPO"])
def test_case_and_hyphens_hide_no_script(name):
    assert "of TRL's trainers" in (said := refusal(f"python {name}.py {FLAGS}")) or "trains with TRL's SFTConfig" in said


@pytest.mark.parametrize("flag", ["--stage 2", "--template plain"])
def test_a_common_option_alone_makes_no_other_trainer(flag):
    assert read(f"python train.py {FLAGS} {flag}")[0]["sequence_length"] == 512
