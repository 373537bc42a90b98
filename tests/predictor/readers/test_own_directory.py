"""A user's changed files in a directory of their own read back as the training that was meant, from anywhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from predictor import Workload, readers

CONFIGURATIONS = Path(__file__).parents[1] / "configurations"
BATCH = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 5}
GIVEN = {"gpu": "h100-80gb", "sequence_length": 1024}
FLAGS = ("accelerate launch --num_processes 2 --config_file fleet.yaml train.py --model_name_or_path "
         "llava-hf/llava-1.5-7b-hf --output_dir out --bf16 true --per_device_train_batch_size 4\n")
FLEET = "distributed_type: DEEPSPEED\nnum_machines: 1\nnum_processes: 2\ndeepspeed_config:\n  deepspeed_config_file: zero.json\n"
ZERO = {"bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
TRAINER = {"output_dir": "out", "model_name_or_path": "llava-hf/llava-1.5-7b-hf", "deepspeed": "zero.json", "bf16": True}
KINDS = {
    "a LLaVA script": ("llava/scripts/v1_5/finetune.sh", BATCH),
    "a LLaVA script's DeepSpeed config": ("llava/scripts/v1_5/finetune.sh", {**BATCH, "zero_stage": 2}),
    "LLaMA-Factory's YAML": ("llamafactory.yaml", BATCH),
    "LLaMA-Factory's YAML started by a script": ("factory.sh", {**BATCH, "data_parallel_size": 2}),
    "an ms-swift script": ("swift.sh", BATCH),
    "axolotl's YAML": ("axolotl.yml", BATCH),
    "arguments of the Trainer": ("arguments.json", BATCH),
    "flags of the Trainer below accelerate's config": ("flags.sh", BATCH),
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A copy of the configurations, where the user stands."""
    shutil.copytree(CONFIGURATIONS, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    for name, text in (("flags.sh", FLAGS), ("fleet.yaml", FLEET), ("zero.json", json.dumps(ZERO)), ("arguments.json", json.dumps(TRAINER)),
                       ("factory.sh", "NPROC_PER_NODE=4 llamafactory-cli train llamafactory.yaml\n")):
        Path(name).write_text(text)
    return tmp_path / "home"


def read(path: str) -> Workload:
    values, source = readers.read(path=path, options=GIVEN)
    return Workload.from_mapping(values | GIVEN).read_from(source)


def put(texts: dict[str, str], folder: Path) -> str:
    """Writes the files and returns the one that starts the training."""
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text)
    return str(folder / next(iter(texts)))


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_reads_back_as_the_changed_training(kind, outside, home, tmp_path, monkeypatch):
    path, changes = KINDS[kind]
    present = read(path)
    if "zero_stage" in changes:
        changes = {key: item for key, item in changes.items() if key != "zero_stage"} | {
            "deepspeed": {**present.deepspeed, "zero_optimization": {**present.deepspeed["zero_optimization"], "stage": 2}}}
    own, texts = present.source.in_own_words(changes), readers.files(present.source, changes)
    folder = tmp_path / "job" if outside else home / "job"
    started = put(readers.in_directory(present.source, texts, str(folder)), folder)
    wanted = present.replace(**own.workload).resolved()
    assert read(started).resolved() == wanted
    if not outside:
        return
    monkeypatch.chdir(tmp_path)
    assert read(started).resolved() == wanted


def test_files_name_each_other_by_the_paths_from_where_the_training_starts(home):
    present = read("arguments.json")
    texts = readers.in_directory(present.source, readers.files(present.source, BATCH), "job")
    assert json.loads(texts["arguments.json"])["deepspeed"] == "job/zero.json" and json.loads(texts["zero.json"]) == ZERO
