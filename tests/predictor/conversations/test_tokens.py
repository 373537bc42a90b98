"""A dataset's tokens are those that the processor itself makes of the texts and the pictures."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from PIL import Image

from predictor.cli import main
from predictor.common.errors import InputError
from predictor.conversations import tokens
from predictor.conversations.tokenizer_failures import Failed, failures
from predictor.workload import samples
from tests.predictor.conversations.processors import PROCESSORS, SIZES_MATTER, TEMPLATE, tokenizer

PARTS = [  # pictures' heights and widths, and texts, of each message of the user
    [(300, 200), "what is it?"],
    ["a text alone"],
    [(1024, 768), "and", (97, 411), "compared?"],
    ["first", (448, 448), (448, 448), (61, 59)],
]


@pytest.fixture
def dataset(tmp_path):
    """A file of conversations with pictures beside it."""
    rows = []
    for number, parts in enumerate(PARTS):
        names = [f"{number}-{place}.png" for place, part in enumerate(parts) if not isinstance(part, str)]
        for name, size in zip(names, (part for part in parts if not isinstance(part, str))):
            noise = np.random.default_rng(number).integers(0, 255, (*size, 3), dtype=np.uint8)
            Image.fromarray(noise).save(tmp_path / name)
        asked = "".join(part if isinstance(part, str) else "<image>" for part in parts)
        rows.append({"image": names, "conversations": [
            {"from": "human", "value": asked}, {"from": "gpt", "value": "an answer " * number}]})
    path = tmp_path / "train.json"
    path.write_text(json.dumps(rows))
    return path


def expected(processor, folder) -> list[int]:
    """The lengths of what the processor makes of the same conversations and the whole pictures."""
    found = []
    for number, parts in enumerate(PARTS):
        content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in parts]
        messages = [{"role": "user", "content": content},
                    {"role": "assistant", "content": [{"type": "text", "text": "an answer " * number}]}]
        images = [Image.open(folder / f"{number}-{place}.png") for place, part in enumerate(parts)
                  if not isinstance(part, str)]
        text = processor.apply_chat_template(messages, tokenize=False)
        made = processor(text=[text], images=[images] if images else None, add_special_tokens=False)
        found.append(len(made["input_ids"][0]))
    return found


@pytest.mark.parametrize("make", PROCESSORS, ids=lambda make: make.__name__)
def test_tokens_are_those_that_the_processor_makes(make, dataset, tmp_path):
    processor = make()
    processor.save_pretrained(tmp_path / "processor")
    found = tokens.read(str(dataset), str(tmp_path / "processor"))
    assert found.tokens.tolist() == expected(processor, tmp_path)
    sizes = tuple(tuple(part for part in parts if not isinstance(part, str)) for parts in PARTS)
    assert found.pictures == (sizes if make in SIZES_MATTER else ())
    assert found.images.tolist() == [len(of_sample) for of_sample in sizes]


@pytest.fixture
def letters(tmp_path):
    """The directory of a tokenizer with one token a byte."""
    found = tokenizer()
    found.chat_template = TEMPLATE
    found.save_pretrained(tmp_path / "letters")
    return str(tmp_path / "letters")


@pytest.mark.parametrize("row, count", [
    ({"text": "abc"}, len("abc") + 1),
    ({"text": "abc<|end|>"}, len("abc") + 1),
    ({"prompt": "abc", "completion": "de"}, len("abcde") + 1),
    ({"messages": [{"role": "user", "content": "abc"}]}, len("user\nabc\n") + 2),
    ({"messages": [{"role": "user", "content": "abc"}], "system": "s"}, len("system\ns\nuser\nabc\n") + 4),
    ({"instruction": "ab", "input": "c", "output": "d"}, len("user\nab\nc\nassistant\nd\n") + 4),
    ({"query": "ab", "response": "d", "system": "s"}, len("system\ns\nuser\nab\nassistant\nd\n") + 6)], ids=str)
def test_texts_have_a_token_a_letter_and_those_of_the_template(row, count, letters, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert tokens.read(str(tmp_path / "rows.jsonl"), letters).tokens.tolist() == [count]


def test_parquet_has_the_rows_and_the_bytes_of_pictures(tmp_path):
    from pyarrow import Table, parquet

    make = PROCESSORS[0]
    make().save_pretrained(tmp_path / "processor")
    Image.new("RGB", (50, 40)).save(tmp_path / "a.png")
    picture = {"bytes": (tmp_path / "a.png").read_bytes(), "path": None}
    row = {"images": [picture], "messages": [{"role": "user", "content": "what?"}]}
    parquet.write_table(Table.from_pylist([row, row]), tmp_path / "rows.parquet")
    found = tokens.read(str(tmp_path / "rows.parquet"), str(tmp_path / "processor"))
    assert found.tokens.tolist() == [576 + len("user\nwhat?\n") + 2] * 2 and found.images.tolist() == [1, 1]


def test_what_a_parquet_file_unpacks_to_is_bounded(letters, tmp_path, monkeypatch):
    from pyarrow import Table, parquet

    monkeypatch.setattr("predictor.conversations.rows.LARGEST_FILE_BYTES", 1 << 20)
    parquet.write_table(Table.from_pylist([{"text": "a" * 100_000}] * 20), tmp_path / "rows.parquet")
    with pytest.raises(InputError, match="unpacks to more than 1 MiB"):
        tokens.read(str(tmp_path / "rows.parquet"), letters)


def test_the_dataset_is_not_overwritten(letters, tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n')
    assert main(["samples", str(path), "--processor", letters, "-o", str(path), "--force"]) == 2
    assert "name the same file" in capsys.readouterr().err and path.read_text() == '{"text": "a"}\n'


@pytest.mark.parametrize("ending", samples.FORMS)
def test_the_command_writes_what_samples_reads(ending, dataset, tmp_path, capsys):
    PROCESSORS[2]().save_pretrained(tmp_path / "processor")
    out = str(tmp_path / f"lengths.{ending}")
    assert main(["samples", str(dataset), "--processor", str(tmp_path / "processor"), "-o", out]) == 0
    assert "4 samples: " in capsys.readouterr().out
    counted, read = tokens.read(str(dataset), str(tmp_path / "processor")), samples.read(out)
    assert read.tokens.tolist() == counted.tokens.tolist() and read.pictures == counted.pictures


def test_a_prediction_over_a_dataset_is_that_over_its_lengths(letters, tmp_path, capsys):
    rows = [{"text": "a" * length} for length in (500, 900, 700)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "lengths.csv").write_text("tokens,images\n501,0\n901,0\n701,0\n")
    words = ["predict", "llama-3.1-8b", "--recipe", "lora", "--per-device-train-batch-size", "2", "--json", "--samples"]
    answers = []
    for file, more in (("rows.jsonl", ["--processor", letters]), ("lengths.csv", [])):
        assert main([*words, str(tmp_path / file), *more]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0]["peak_reserved_bytes"] == answers[1]["peak_reserved_bytes"]


@pytest.mark.parametrize("row, words", [
    ({"images": ["no.png"], "messages": [{"role": "user", "content": "x"}]}, "line 1: .*is a tokenizer alone|no.png"),
    ({"images": ["https://x/y.png"], "messages": [{"role": "user", "content": "x"}]}, "not downloaded"),
    ({"text": "\ud800"}, "half a character"), ({"text": "a" * (tokens.LONGEST + 1)}, "must have at most 1,048,576"),
    ({"messages": [{"role": "user", "content": 0.5}]}, "must be a text or a list"),
    ({"messages": []}, "must have a list of messages"), ({"text": None}, "but has no value"),
    ({"messages": [{"role": "user"}]}, "a message has no content"),
    ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "tool_calls, whose tokens are not counted"),
    ({"messages": [{"role": "user", "content": "x"}], "tools": "[{}]"}, "has tools"),
    ({"query": "x", "response": "y", "history": True}, "history must be a list of pairs"),
    ({"messages": [{"role": "poet", "content": "x"}]}, "role must be one of"),
    ({"chosen": "x", "rejected": "y"}, "has chosen"), ({"tokens": 4}, "must have messages, conversations"),
    ({"images": ["a"], "messages": [{"role": "user", "content": "<image><image>"}]}, r"1 picture\(s\), but 2 place"),
    ([1], "must be a mapping")], ids=str)
def test_a_wrong_row_is_named(row, words, letters, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match=words):
        tokens.read(str(tmp_path / "rows.jsonl"), letters)


DAMAGED = [  # parts of tokenizer.json, and how tokenizers 0.23 fails: at once or with the first text, by a panic or not
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "cannot load it: PanicException"),
    ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]],
                "continuing_subword_prefix": "###"}}, "cannot load it: PanicException"),
    ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "fails on the texts: PanicException"),
    ({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
                         "pair": [], "special_tokens": {}}}, "fails on the texts: PanicException"),
    ({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}}, "fails on the texts: Exception: WordLevel"),
]


@pytest.mark.parametrize("parts, words", DAMAGED, ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_a_damaged_tokenizer_is_one_line_of_error_though_rust_prints_its_panic(parts, words, letters, tmp_path, capfd):
    file = tmp_path / "letters/tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | parts))
    (tmp_path / "rows.jsonl").write_text('{"text": "x y"}\n')
    assert main(["samples", str(tmp_path / "rows.jsonl"), "--processor", letters, "--json"]) == 2
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err.startswith("peakcast: error: --processor ") and words in printed.err
    assert printed.err.count("\n") == 1


def test_what_is_printed_where_nothing_fails_is_shown(capfd):
    with failures():
        os.write(2, b"a warning\n")
    with pytest.raises(KeyboardInterrupt), failures():
        raise KeyboardInterrupt
    with pytest.raises(Failed, match="^ValueError: a b$"), failures():
        os.write(2, b"a detail\n")
        raise ValueError("a\nb")
    assert capfd.readouterr().err == "a warning\n"


def test_a_processor_that_is_not_here_is_not_downloaded(tmp_path):
    with pytest.raises(InputError, match="--processor .*: no such directory, and not in the local"):
        tokens.Counter(str(tmp_path / "nothing"))


@pytest.mark.parametrize("words", [["--processor", "x"], ["--samples", "x", "--image-folder", "y"]])
def test_options_of_a_dataset_need_one(words, capsys):
    assert main(["predict", "llama-3.1-8b", *words]) == 2
    assert "is about a dataset: add --" in capsys.readouterr().err
