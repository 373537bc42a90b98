"""``--from`` and ``-- COMMAND`` on the command line: what is shown, what options override, what is refused."""

from __future__ import annotations

import json

import pytest

from predictor import cli
from tests.calibrate.small_jobs import SEQUENCE, model_file

TRAIN = ["train.py", "--output_dir", "out", "--bf16", "True", "--torch_dtype", "bfloat16", "--my_thing", "1"]


def answer(capsys, *words: str) -> tuple[int, str, str]:
    code = cli.main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(autouse=True)
def formula_cache(monkeypatch, tmp_path_factory):
    """One for all."""
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path_factory.getbasetemp() / "formulas"))


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
    code, out, _ = answer(capsys, "explain", *command)
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


def test_a_contradiction_names_the_key_as_it_was_read(capsys, command):
    code, _, err = answer(capsys, "predict", "--zero-stage", "2", *command)
    assert (code, err) == (2, "peakcast: error: the command: --bf16 is bf16, but DeepSpeed trains without autocast: leave it out and give "
                              "dtype bf16\n")


@pytest.mark.parametrize("words, message", [
    (["--from", "a.sh", "--workload", "b.yaml"], "--from and --workload are both given: keep one"),
    (["--from", "a.sh", "--", "python"], "--from and -- COMMAND are both given: keep one"),
    (["--from-format", "llava"], "--from-format says what --from is: add --from FILE"),
    (["--"], "a command is missing after --"),
    (["--from", "missing.sh"], "missing.sh: no such file"),
    (["--from-format", "lava", "--", "python", *TRAIN], '--from-format "lava": known are llava, llamafactory, swift, axolotl, deepspeed, '
                                                        'transformers (did you mean "llava"?)'),
])
def test_a_mistake_is_one_line(capsys, words, message):
    code, out, err = answer(capsys, "predict", *words)
    assert (code, out) == (2, "") and err.startswith(f"peakcast: error: {message}") and err.count("\n") == 1


@pytest.mark.parametrize(("name", "text"), [("job.sh", "python train.py --output_dir x"), ("job.yaml", "base_model: x"),
                                            ("job.json", '{"output_dir": "x"}')])
def test_a_training_where_a_model_is_expected_is_pointed_to_from(capsys, tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    code, _, err = answer(capsys, "predict", str(path))
    assert code == 2 and f"if a training is configured there, give it as --from {path}" in " ".join(err.split())
