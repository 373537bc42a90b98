"""Shell scripts and command lines of any length are read in linear time, or rejected in one line."""

from __future__ import annotations

import json
import os

import pytest

from predictor import readers
from predictor.common.errors import InputError
from predictor.readers import command
from tests.predictor.bounds import bounded_time

TRAIN = "python train.py --model_name_or_path gpt2 --max_length 64 --output_dir x --per_device_train_batch_size 8\n"
DEEP, LONG = "is nested too deeply to be read", "is too long to be read"


def nested(opening: str, closing: str, times: int) -> str:
    return opening * times + "x" + closing * times


@pytest.mark.parametrize("text", [
    "#!/bin/bash\n" + "# c\n" * 600_000 + TRAIN,
    "A=(\n" + "# c\n" * 200_000 + ")\n" + TRAIN,
    TRAIN[:-1] + " \\\n\n" + "# c\n" * 200_000,
    "".join("A=$(date)\n" for _ in range(20_000)) + TRAIN,
    "nohup " * 20_000 + TRAIN,
    "env A=1 " * 5_000 + TRAIN,
], ids=["comments", "in an array", "behind", "commands", "nohup", "environment"])
def test_long_scripts_are_read(text):
    with bounded_time():
        given = command.from_script(text, "job.sh", "job.sh")
    assert given.values["per_device_train_batch_size"] == "8"


@pytest.mark.parametrize("text, message", [
    ("".join(f"for i{n} in a; do\n" for n in range(3000)) + TRAIN + "done\n" * 3000, DEEP),
    ("for i in a\n}\n" * 5_000 + TRAIN, DEEP),
    ("if true; then\n" * 3000 + TRAIN + "fi\n" * 3000, DEEP),
    ("(" * 3000 + "\n" + TRAIN + ")" * 3000, DEEP),
    (f"A={nested('${A:-', '}', 50_000)}\n{TRAIN}", DEEP),
    (f"A={nested('$(expr ', ')', 50_000)}\n{TRAIN}", DEEP),
    (f"A=$(({nested('(', ')', 50_000)}))\n{TRAIN}", DEEP),
    ("A=aaaaaaaa\n" + "A=$A$A\n" * 40 + TRAIN, "line 1[0-9]+: a word grows too long"),
    ("A=(a)\n" + 'A+=("${A[@]}")\n' * 40 + TRAIN, "a word grows too long"),
    ("A=" + "a" * 200_000 + "\n" + "B+=$A\n" * 20_000 + TRAIN, LONG),
    ("A=(" + "a " * 500_000 + ")\n" + TRAIN, LONG),
    ("A=" + "\\ " * 500_000 + "\n" + TRAIN, LONG),
    ("A=" + "'a'" * 500_000 + "\n" + TRAIN, LONG),
    ("A" + '""' * 500_000 + "=1\n" + TRAIN, LONG),
    ("".join(f"A{n}=1\n" for n in range(10_000)) + "case $x in\n" + "a) B=1;;\n" * 10_000 + "esac\n" + TRAIN, LONG),
    ("".join(f"export A{n}=1\n" for n in range(3000)) + "echo hi\n" * 3000 + TRAIN, LONG),
    ("A=" + "a" * 250_000 + "\n" + "echo $A\n" * 3000 + TRAIN, LONG),
    (TRAIN[:-1] + "".join(f" --f{n} 1" for n in range(3000)), "has 3,004 keys"),
], ids=["for", "open", "if", "subshells", "defaults", "expr", "arithmetic", "doubled", "array", "appended", "words",
        "backslashes", "quotes", "pieces", "case", "exported", "echoed", "flags"])
def test_scripts_beyond_any_training_are_refused(tmp_path, text, message):
    (tmp_path / "job.sh").write_text(text)
    with bounded_time(), pytest.raises(InputError, match=message) as caught:
        readers.read(path=str(tmp_path / "job.sh"))
    assert str(caught.value).startswith(str(tmp_path)) and len(str(caught.value)) < 300


@pytest.mark.parametrize("word", ["{" + "," * 200_000, "((" + "a" * 200_000 + "))", "{" + "a{" * 100_000])
def test_what_looks_like_an_expansion_takes_no_longer_than_it_is_long(word):
    with bounded_time():
        given = command.from_script(f"{word}\n{TRAIN}", "job.sh", "job.sh")
    assert given.values["output_dir"] == "x"


def test_a_message_names_some_of_many_lines():
    with pytest.raises(InputError) as caught:
        command.from_script("A=$(date)\n" * 500 + "$A train.py --output_dir $(date)\n", "job.sh", "job.sh")
    assert "$(date) in line 1 and 2 and 3" in str(caught.value).replace('"', "")
    assert "and 8 and others is not understood" in str(caught.value)


def test_a_sourced_pipe_or_device_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with bounded_time():
        given = command.from_script(f"source {tmp_path}/pipe\nsource /dev/zero\n{TRAIN}", str(tmp_path / "job.sh"), "x")
    assert given.values["output_dir"] == "x"


ACCELERATE = ("accelerate launch --config_file {} train.py --model_name_or_path llava-hf/llava-1.5-7b-hf --output_dir o "
              "--max_length 1024 --bf16 True")


@pytest.mark.parametrize("key", ["gradient_accumulation_steps", "gradient_clipping"])
@pytest.mark.parametrize("written", [".inf", "-.inf", ".nan", "1e400", "9" * 401, "'" + "9" * 5_000 + "'", "'٣٣x'", "1_0x", "true", "[1]"])
def test_numbers_of_accelerates_file_are_finite(key, written, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(f"distributed_type: DEEPSPEED\nnum_processes: 1\ndeepspeed_config: {{zero_stage: 2, {key}: {written}}}\n")
    with pytest.raises(InputError, match=f"deepspeed_config: {key} is .* number is needed, or auto"):
        readers.read(words=ACCELERATE.format(file).split())


@pytest.mark.parametrize("written", ["9" * 5_000, "٣", "²"])
def test_a_sharding_strategy_is_a_name_or_its_place(written, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_version: 1, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, "
                    f"fsdp_sharding_strategy: '{written}'}}\n")
    with pytest.raises(InputError, match="has sharding_strategy"):
        readers.read(words=ACCELERATE.format(file).split())


@pytest.mark.parametrize("written", ["four", "٣", "9" * 5_000, ""])
def test_a_number_of_processes_that_is_none_is_asked_for(written):
    words = f"NPROC_PER_NODE={written} swift sft --model Qwen/Qwen2.5-VL-7B-Instruct --max_length 2048".split()
    with pytest.raises(InputError, match="NPROC_PER_NODE is .*: a number of GPUs or nodes is needed"):
        readers.read(words=words)


AXOLOTL = {"base_model": "Qwen/Qwen2.5-VL-7B-Instruct", "sequence_len": 8192, "micro_batch_size": 1, "adapter": "lora", "lora_r": 8, "lora_target_linear": True, "bf16": True}
HUGGING_FACE = {"model_name_or_path": "gpt2", "output_dir": "o", "max_length": 64, "per_device_train_batch_size": 1}


@pytest.mark.parametrize("keys, message", [
    (AXOLOTL | {"processor_kwargs": {"max_pixels": 0}}, "processor_kwargs has 0: a number of pixels must be at least 1"),
    (AXOLOTL | {"processor_kwargs": {"max_pixels": -5}}, "processor_kwargs has -5: a number of pixels must be at least 1"),
    (AXOLOTL | {"processor_kwargs": {"max_pixels": 10**400}}, "processor_kwargs has 1000.*: a number of pixels must be at most"),
    (AXOLOTL | {"processor_kwargs": {"max_pixels": True}}, "processor_kwargs has True: a number of pixels must be a whole number"),
    (AXOLOTL | {"image_size": -3}, "image_size has -3: a number of pixels must be at least 1"),
    (AXOLOTL | {"lora_target_linear": False, "lora_target_modules": True}, "lora_target_modules is True: a list of names of layers is needed"),
    *((HUGGING_FACE | {"accelerator_config": {"gradient_accumulation_kwargs": item}}, "gradient_accumulation_kwargs .*: a section of keys is needed")
      for item in (5, "abc", [1], True)),
])
def test_values_inside_sections_have_their_type(keys, message, tmp_path):
    file = tmp_path / "c.json"
    file.write_text(json.dumps(keys))
    with pytest.raises(InputError, match=message):
        readers.read(path=str(file), options={"image_size": "768x1024"} if "base_model" in keys else None)
