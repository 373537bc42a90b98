"""The message of an error is one line, whatever names it holds."""

import pytest

from predictor.common.errors import InputError
from predictor.model import models
from predictor.readers import read


def test_characters_that_would_break_the_line_are_escaped():
    assert str(InputError("c.yaml: a\nb\x1b[31m: no such key")) == "c.yaml: a b\\x1b[31m: no such key"


def test_a_key_with_a_line_break_is_named_on_one_line(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text('{"model_name_or_path": "x", "a\\nb": 1, "finetuning_type": "lora"}')
    with pytest.raises(InputError) as caught:
        read(path=str(path))
    assert str(caught.value).startswith(f"{path}: a b: LLaMA-Factory")


def test_a_key_of_any_length_is_named_by_its_beginning(tmp_path):
    path = tmp_path / "c.json"
    path.write_text('{"model_name_or_path": "gpt2", "finetuning_type": "lora", "' + "y" * 5_000 + '": 1}')
    with pytest.raises(InputError) as caught:
        read(path=str(path))
    assert str(caught.value).startswith(f"{path}: {'y' * 399}…: LLaMA-Factory") and len(str(caught.value)) < 700


@pytest.mark.parametrize("value, message", [
    ("[" * 30 + "]" * 30, "optim_args is nested too deeply"), ("{1: 2}", "optim_args has the key 1, which is not text")])
def test_a_value_that_no_workload_can_hold_is_refused(tmp_path, value, message):
    path = tmp_path / "c.yaml"
    path.write_text(f"model_name_or_path: gpt2\nfinetuning_type: lora\noptim_args: {value}\n")
    with pytest.raises(InputError, match=message):
        read(path=str(path))


def test_a_model_with_a_name_that_no_file_can_have_is_refused(tmp_path):
    path = tmp_path / "c.json"
    path.write_text('{"model_name_or_path": "' + "9" * 5_000 + '", "max_length": 64, "output_dir": "o", "bf16": true}')
    values, _ = read(path=str(path), form="trl")
    with pytest.raises(InputError, match="not a known name"):
        models.find(values["model"])


def test_long_words_of_a_message_lose_their_middle():
    text = str(InputError("x.yaml: " + "a" * 5_000 + " is no key"))
    assert text == "x.yaml: " + "a" * 50 + "…" + "a" * 49 + " is no key"


def test_a_long_message_keeps_its_start_and_its_end():
    text = str(InputError("x.yaml: " + "a b " * 5_000 + ": leave it out"))
    assert len(text) == 2_500 and text.startswith("x.yaml: a b ") and text.endswith("a b : leave it out")
