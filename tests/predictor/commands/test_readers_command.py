"""``--from`` and ``-- COMMAND`` on the command line: output, options that override, and rejected input."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from predictor import cli
from tests.calibrate.small_jobs import SEQUENCE, model_file

TRAIN = ["train.py", "--output_dir", "out", "--bf16", "True", "--torch_dtype", "bfloat16", "--my_thing", "1"]


def answer(capsys, *words: str) -> tuple[int, str, str]:
    code = cli.main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(autouse=True)
def formula_cache(monkeypatch, traced_formulas):
    """One for all."""
    monkeypatch.setenv("PEAKCAST_CACHE", str(traced_formulas))


@pytest.fixture
def command(tmp_path) -> list[str]:
    """A training of the tiny LLaVA; its tower is frozen, as DDP stops at parameters without gradients."""
    return ["--frozen", "*vision_tower*", "--", "torchrun", "--nproc_per_node", "2", *TRAIN, "--model_name_or_path", model_file(tmp_path),
            "--model_max_length", str(SEQUENCE)]


def test_json_says_where_each_value_came_from(capsys, command):
    code, out, _ = answer(capsys, "predict", "--json", "--per_device_train_batch_size", "2", *command)
    source = json.loads(out)["source"]
    rows = {row["key"]: row for row in source["values"]}
    assert (code, source["format"], source["file"]) == (0, "transformers", "the command")
    assert rows["mixed_precision"] == {"key": "mixed_precision", "value": "bf16", "origin": "read", "where": "the command",
                                       "names": ["--bf16"], "because": ""}
    assert (rows["per_device_train_batch_size"]["origin"], rows["per_device_train_batch_size"]["value"]) == ("overridden", 8)
    assert json.loads(out)["workload"]["per_device_train_batch_size"] == 2
    assert "what the script does with its own --my_thing" in json.loads(out)["not_modelled"]


def test_the_report_lists_what_was_read_and_what_was_filled_in(capsys, command):
    code, out, _ = answer(capsys, "explain", "--details", *command)
    text = " ".join(out.split())
    assert code == 0 and "Read from the command, as transformers 5.17.0" in text
    assert "Default of transformers 5.17.0: per_device_train_batch_size 8" in text
    assert "Without effect on memory: output_dir" in text


def test_without_a_framework_there_is_no_source(capsys, tmp_path):
    _, out, _ = answer(capsys, "predict", model_file(tmp_path), "--sequence-length", str(SEQUENCE), "--json")
    assert json.loads(out)["source"] is None


def test_an_engine_that_is_asked_for_replaces_the_one_that_was_read(capsys, command):
    code, out, _ = answer(capsys, "predict", "--json", "--zero-stage", "2", "--mixed-precision", "none", *command)
    assert (code, json.loads(out)["workload"]["engine"]) == (0, "deepspeed")


def test_checkpointing_that_is_turned_off_takes_along_how_it_was_done(capsys, command):
    words = [*command, "--gradient_checkpointing", "True", "--gradient_checkpointing_kwargs", '{"use_reentrant": true}']
    code, out, _ = answer(capsys, "predict", "--json", "--no-gradient-checkpointing", *words)
    assert code == 0 and json.loads(out)["workload"]["gradient_checkpointing_kwargs"] == {"use_reentrant": False}


def test_a_contradiction_names_the_key_as_it_was_read(capsys, command):
    code, _, err = answer(capsys, "predict", "--zero-stage", "2", *command)
    assert (code, err) == (2, "peakcast: error: the command: --bf16: mixed_precision is bf16, but DeepSpeed trains without autocast: "
                              "leave it out and give dtype bf16\n")


RUN = ["python", "run.py", "--output_dir", "x", "--model_name_or_path", "gpt2"]
QWEN = ["--model", "Qwen/Qwen2.5-VL-3B-Instruct", "--dataset", "x"]
LLAVA = ["python", "llava/train/train_mem.py", "--model_name_or_path", "lmsys/vicuna-7b-v1.5", "--mm_projector_type", "mlp2x_gelu", "--vision_tower"]
FLASH = 'dtype is fp32, but flash_attention_2 takes only fp16 and bf16: make it bf16, or use sdpa'
ABSENT = "sequence_length is not given: add --sequence-length, the tokens of a sample with its images"


@pytest.mark.parametrize("words, message", [
    ([*RUN, "--block_size", "64", "--optim", "adem"], "--optim must be one of adamw_torch,*"),
    ([*RUN, "--block_size", "4000000", "--per_device_train_batch_size", "999"],
     "--per_device_train_batch_size, --block_size: sequence_length x per_device_train_batch_size is *"),
    ([*RUN[:-1], "gpt22", "--block_size", "64"], "--model_name_or_path: model 'gpt22': not a known name*"),
    ([*RUN, "--block_size", "64", "--fp16", "--torch_dtype", "float16"],
     "--fp16, --torch_dtype: dtype is fp16, but mixed_precision fp16 needs fp32 weights: leave one of them out"),
    (["swift", "sft", *QWEN, "--padding_free", "true", "--attn_impl", "flash_attn", "--max_length", "64"],
     "--padding_free: padding packed: not predicted for model_type qwen2_5_vl yet*"),
    (["swift", "sft", *QWEN], f"{ABSENT} (by --max_length)"),
    (RUN, f"{ABSENT} (by one of --sequence_length, --model_max_length, *--block_size, *)"),
    (RUN[:-2], "model is not given: name one, such as llava-1.5-7b (by one of --model_name_or_path, --model_id)"),
    ([*LLAVA, "openai/clip-vit-large-patch14-336"], f"{FLASH} (*; dtype fp32: default of LLaVA 1.2 (transformers 4.37), as bf16 is not given)*"),
    ([*LLAVA, "google/siglip-so400m-patch14-384"], '--vision_tower is "google/siglip-so400m-patch14-384": beside *'),
    (["swift", "sft", *QWEN, "--torch_dtype", "float16", "--max_length", "64"], "--torch_dtype is fp16: ms-swift then trains under fp16 autocast*"),
    (["swift", "rlhf", "--rlhf_type", "dpo", *QWEN], "swift rlhf is not supported: supervised training *"),
])
def test_an_error_about_a_key_names_the_one_that_the_user_wrote_or_left_out(capsys, words, message):
    code, _, err = answer(capsys, "predict", "--", *words)
    assert code == 2 and fnmatchcase(err, f"peakcast: error: the command: {message}\n")


def test_an_error_behind_a_file_names_it_with_its_key(capsys, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("stage: sft\nfinetuning_type: full\ncutoff_len: 64\nmodel_name_or_path: gpt2\npure_bf16: true\n"
                    "enable_liger_kernel: true\n")
    err = answer(capsys, "predict", "--from", str(path))[2]
    assert err.startswith(f"peakcast: error: {path}: enable_liger_kernel: use_liger_kernel: not predicted for model_type gpt2 yet")


def test_what_a_page_has_not_is_refused_with_the_key_that_asked_for_it(capsys, tmp_path):
    err = answer(capsys, "explore", "-o", str(tmp_path / "page.html"), "--", *RUN, "--block_size", "64", "--optim", "adafactor")[2]
    assert err.startswith("peakcast: error: the command: --optim: explore: optim adafactor allocates by the GPU's size")


def test_an_error_about_what_an_option_says_names_no_file(capsys):
    err = answer(capsys, "predict", "--sequence-length", "4000000", "--per-device-train-batch-size", "999", "--", *RUN, "--block_size", "64")[2]
    assert err.startswith("peakcast: error: --sequence-length x per_device_train_batch_size is ")


def test_auto_of_a_config_alone_is_not_called_absent(capsys, tmp_path):
    path = tmp_path / "ds.json"
    path.write_text('{"fp16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}')
    err = answer(capsys, "predict", "gpt2", "--sequence-length", "64", "--from", str(path))[2]
    assert err == f'peakcast: error: {path}: fp16.enabled is "auto", and nothing says what it becomes: give dtype fp16 or fp32\n'


@pytest.mark.parametrize("words, message", [
    (["--from", "a.sh", "--workload", "b.yaml"], "--from and --workload are both given: keep one"),
    (["--from", "a.sh", "--", "python"], "--from and -- COMMAND are both given: keep one"),
    (["--from-format", "llava"], "--from-format names the format of the --from file: add --from FILE"),
    (["--"], "a command is missing after --"),
    (["--from", "missing.sh"], "missing.sh: no such file"),
    (["--from-format", "lava", "--", "python", *TRAIN], '--from-format "lava": known are llava, llamafactory, swift, axolotl, qwenvl, qwen_series, '
                                                        'deepspeed, trl, transformers (did you mean "llava"?)'),
])
def test_a_mistake_is_one_line(capsys, words, message):
    code, out, err = answer(capsys, "predict", *words)
    assert (code, out) == (2, "") and err.startswith(f"peakcast: error: {message}") and err.count("\n") == 1


def test_a_stage_as_an_option_keeps_the_rest_of_the_users_config(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    zero = {"stage": 3, "reduce_bucket_size": 12_345_678}
    (tmp_path / "ds.json").write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": zero}))
    (tmp_path / "job.json").write_text(json.dumps({
        "model_name_or_path": "llava-hf/llava-1.5-7b-hf", "deepspeed": "ds.json", "bf16": True, "output_dir": "out",
        "per_device_train_batch_size": 4, "gradient_checkpointing": True}))
    words = ["predict", "--from", "job.json", "--sequence-length", "1024", "--data-parallel-size", "8", "--zero-stage", "2"]
    _, out, _ = answer(capsys, *words, "--json")
    assert json.loads(out)["workload"]["deepspeed"]["zero_optimization"] == {**zero, "stage": 2}
    _, out, _ = answer(capsys, *words, "--details")
    assert "stage 3 (overridden by an option)" in " ".join(out.split())


AXOLOTL, WORKLOAD, GPT2 = "base_model: x", "model: gpt2\nrecipe: full\n", '{"model_type": "gpt2", "n_layer": 2}'
ZERO = '{"zero_optimization": {"stage": 2}}'
IS = {"a.sh": "a shell script: give it as --from a.sh",
      "a.yaml": "a training framework's configuration (key base_model): give it as --from a.yaml",
      "a.json": "a training framework's configuration (key output_dir): give it as --from a.json",
      "job.yaml": "a workload: give it as --workload job.yaml",
      "zero.json": "a DeepSpeed config (key zero_optimization): give it as --deepspeed zero.json",
      "gpt2.json": "the configuration of a model: give it as MODEL, without an option, or name it in a workload (key model)",
      "train.py": "a Python script: put its command after --: peakcast predict … -- python train.py"}


@pytest.fixture
def given_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in (("a.sh", "python train.py --output_dir x"), ("a.yaml", AXOLOTL), ("a.json", '{"output_dir": "x"}'),
                       ("job.yaml", WORKLOAD), ("zero.json", ZERO), ("gpt2.json", GPT2), ("train.py", "import torch\n")):
        Path(name).write_text(text)


@pytest.mark.parametrize("words", [
    ["a.sh"], ["a.yaml"], ["a.json"], ["job.yaml"], ["zero.json"], ["train.py"],
    ["--from", "job.yaml"], ["--from", "gpt2.json"], ["--from", "train.py"],
    ["--workload", "a.sh"], ["--workload", "a.yaml"], ["--workload", "a.json"], ["--workload", "zero.json"],
    ["--workload", "gpt2.json"], ["--workload", "train.py"]], ids=" ".join)
def test_a_file_that_is_given_as_something_else_says_what_it_is_and_which_option_takes_it(words, given_files, capsys):
    code, _, err = answer(capsys, "predict", *words)
    assert (code, err) == (2, f"peakcast: error: {words[-1]}: is {IS[words[-1]]}\n")


def test_a_command_without_from_says_which_command_reads_a_frameworks_file(given_files, capsys):
    assert "peakcast predict reads it, as --from a.yaml" in answer(capsys, "models", "--workload", "a.yaml")[2]


def test_a_workload_with_a_key_too_many_is_still_a_workload(given_files, capsys):
    Path("job.yaml").write_text(WORKLOAD + "learning_rate: 1\n")
    assert 'job.yaml: unknown key "learning_rate"' in answer(capsys, "predict", "--workload", "job.yaml")[2]


def test_a_script_that_holds_its_settings_is_to_be_run(given_files, capsys):
    code, _, err = answer(capsys, "predict", "--gpu", "l4", "--", "python", "train.py", "--batch", "8")
    assert code == 2 and err.startswith(
        "peakcast: error: the command: only the settings on the command line are read, not those in train.py, and none of "
        "them is known; peakcast predict --run --gpu l4 -- python train.py --batch 8 would run it on an emulated GPU; or ")


@pytest.mark.parametrize("option", ["--from", "--workload"])
def test_a_second_file_is_an_error(capsys, option):
    code, _, err = answer(capsys, "predict", option, "a.yaml", option, "b.yaml")
    assert code == 2 and f"{option} is given twice, and one file is read: keep one" in err
