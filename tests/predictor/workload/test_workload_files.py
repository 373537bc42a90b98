"""Workload files: YAML and JSON with the same keys, and one line for every mistake."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.common.errors import InputError
from predictor.common.files import parse_json, parse_yaml, read_mapping
from predictor.workload.workload import Workload


def error_of(path) -> str:
    with pytest.raises(InputError) as caught:
        Workload.from_file(path)
    return str(caught.value).removeprefix(str(path)).lstrip(": ")


def test_yaml_and_json_say_the_same(tmp_path):
    keys = {"model": "llava-1.5-7b", "sequence_length": 1024, "gradient_checkpointing": False, "trainable": ["a.*"],
            "versions": {"deepspeed": "0.18.5"}}
    (tmp_path / "job.json").write_text(json.dumps(keys))
    (tmp_path / "job.yaml").write_text("""
        model: llava-1.5-7b
        sequence_length: 1024   # tokens
        gradient_checkpointing: false
        trainable: [a.*]
        versions: {deepspeed: 0.18.5}
        gpu:
    """)
    assert Workload.from_file(tmp_path / "job.yaml") == Workload.from_file(tmp_path / "job.json") == Workload(**keys)


def test_an_inline_deepspeed_config_may_write_5e8(tmp_path):
    (tmp_path / "job.yaml").write_text("""
        {model: m, sequence_length: 9, deepspeed: {zero_optimization: {stage: 2, reduce_bucket_size: 5e8}, bf16: {enabled: true}}}
    """)
    assert Workload.from_file(tmp_path / "job.yaml").deepspeed["zero_optimization"]["reduce_bucket_size"] == 5e8


@pytest.mark.parametrize("name, text, message", [
    ("a.yaml", "", "holds nothing, not a mapping of keys to values"),
    ("a.yaml", "- 1", "holds a list, not a mapping of keys to values"),
    ("a.yaml", "a: [", "not valid YAML at line 1, column 5: expected the node content, but found '<stream end>'"),
    ("a.yaml", "model: a\nmodel: b", 'the key "model" is given twice: keep one'),
    ("a.yaml", "a: 2024-99-99", "not valid YAML: month must be in 1..12"),
    ("a.json", "{", "not valid JSON at line 1, column 2: Expecting property name enclosed in double quotes"),
    ("a.json", '{"a": 1, "a": 2}', 'the key "a" is given twice: keep one'),
    ("a.json", "[" * 100_000, "not valid JSON: a number or the nesting is too long"),
    ("a.yaml", "3: 4", "unknown key 3"),
])
def test_a_broken_file_is_one_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    assert error_of(tmp_path / name) == message


def test_a_missing_file_says_so(tmp_path):
    assert error_of(tmp_path / "no.yaml").startswith("no such file: check the path of the workload")


def test_a_directory_is_no_file(tmp_path):
    assert error_of(tmp_path) == "is a directory: name the file that holds the workload"


def test_a_binary_file_is_no_text(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00")
    assert error_of(tmp_path / "a.yaml") == "is not a text file in UTF-8"


def test_a_huge_file_is_not_read(tmp_path):
    (tmp_path / "model.yaml").write_bytes(bytes(5 << 20))
    assert error_of(tmp_path / "model.yaml") == "is larger than 4 MiB: this is not the workload"


def test_json_may_have_what_deepspeeds_reader_accepts():
    text = """{ // a comment
        "a": "http://x # no comment", # another
        /* and
           another */ "b": [1, 2,],
    }"""
    assert parse_json(text, "x") == {"a": "http://x # no comment", "b": [1, 2]}


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="{}[]:,\"'#&*!|>%@-=~ \nab12e.", max_size=40) | st.text(max_size=30))
def test_any_text_is_read_or_is_one_line(text):
    for parse in (parse_json, parse_yaml):
        try:
            parse(text, "x")
        except InputError as error:
            assert str(error).isprintable()


def test_read_mapping_takes_any_path_text():
    with pytest.raises(InputError, match="cannot be read"):
        read_mapping("a\0b", "the workload")
