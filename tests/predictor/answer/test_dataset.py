"""Batches of a dataset: the worst batch, and the probability that a batch fits."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from functools import cache
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import cli
from predictor.answer import random_batches
from predictor.answer.dataset import Dataset
from predictor.answer.predict import predict
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.events import workspaces
from predictor.events.sizes import Shape
from predictor.model import parser
from predictor.model.model_config import ModelConfig
from predictor.report.samples import sentences
from predictor.workload import samples
from predictor.workload.samples import Samples
from predictor.workload.workload import Workload
from tests.predictor.formula.test_formula import key, made
from tests.predictor.small import small_config, traced_at

H100 = gpus.find("h100-80gb")
IMAGE = 576
MIB = 1 << 20


def of(*rows: tuple[int, int]) -> Samples:
    return Samples(*np.array(rows, dtype=np.int64).T)


def every_batch(drawn: Samples, size: int) -> list[tuple[int, int]]:
    """Tokens and images of each, one by one."""
    return [(int(drawn.tokens[list(chosen)].max()), int(drawn.images[list(chosen)].sum()))
            for chosen in combinations(range(len(drawn)), size)]


datasets = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), min_size=4, max_size=9).map(lambda rows: of(*rows))


@settings(max_examples=80, deadline=None)
@given(drawn=datasets, size=st.integers(1, 4))
def test_the_largest_batches_are_those_that_no_other_exceeds(drawn, size):
    found = every_batch(drawn, size)
    front = {one for one in found if not any(other != one and other[0] >= one[0] and other[1] >= one[1] for other in found)}
    assert set(random_batches.largest(drawn, size)) == front


@settings(max_examples=80, deadline=None)
@given(drawn=datasets, size=st.integers(1, 4), limits=st.lists(st.integers(0, 6), min_size=1, max_size=13))
def test_a_probability_is_the_share_of_all_batches(drawn, size, limits):
    found = every_batch(drawn, size)
    within = sum(images < len(limits) and tokens <= limits[images] for tokens, images in found)
    assert random_batches.probability(drawn, size, limits) == pytest.approx(within / len(found), abs=1e-12)


def test_a_rare_long_sample_among_a_million_is_in_a_batch_of_512_as_often_as_it_should():
    drawn = of((2048, 1), *[(700, 1)] * 999_999)
    share = 1 - random_batches.probability(drawn, 512, [0] * 512 + [700])
    assert share == pytest.approx(512 / 1_000_000, rel=1e-9)


def workload(**changes) -> Workload:
    return Workload(**{"model": "llava-1.5-7b", "recipe": "pretrain", "sequence_length": 2048, "zero_stage": 2,
                       "data_parallel_size": 8, "profile": "none", "per_device_train_batch_size": 4} | changes)


DRAWN = of(*[(IMAGE + 100 * step, 1) for step in (1, 2, 5, 8)], (900, 0), (1700, 2))
SAME_LENGTHS = {"padding": "none"}
"""Its formulas are shipped; where padding is hidden they would have to be traced."""


def test_the_answer_is_of_the_batch_that_needs_most():
    jobs = Dataset.of(workload(**SAME_LENGTHS), DRAWN)
    answer = predict(jobs.workload, samples=DRAWN)
    peaks = [jobs.job(*batch).run(None).peak for batch in set(every_batch(DRAWN, 4))]
    assert answer.peak_requested_bytes == max(peaks)
    assert (answer.samples.tokens, answer.samples.images) == (1700, 5)
    assert answer.workload["sequence_length"] == 1700 and answer.workload["images_per_sample"] == 5 / 4


def test_median_and_probability_are_those_of_all_batches_one_by_one():
    jobs, drawn = Dataset.of(workload(**SAME_LENGTHS), DRAWN), every_batch(DRAWN, 4)
    found = predict(jobs.workload, samples=DRAWN).samples
    peaks = sorted(jobs.job(*batch).run(None).peak for batch in drawn)
    assert found.median_peak_requested_bytes == peaks[len(drawn) // 2 - 1]
    assert found.probability == pytest.approx(sum(batch == (1700, 5) for batch in drawn) / len(drawn))


def test_batches_fit_as_often_as_they_are_judged_to():
    jobs = Dataset.of(workload(capacity_bytes="18.5GiB", **SAME_LENGTHS), DRAWN)
    judge = cache(lambda *batch: jobs.job(*batch).judge().verdict)
    judged = [judge(*batch) for batch in every_batch(DRAWN, 4)]
    found = predict(jobs.workload, samples=DRAWN).samples.verdicts
    assert len(set(judged)) > 1
    assert found == pytest.approx({verdict: judged.count(verdict) / comb(6, 4) for verdict in found}, abs=1e-9)


def test_samples_are_cut_to_the_sequence_length():
    answer = predict(workload(sequence_length=1200, **SAME_LENGTHS), samples=DRAWN)
    assert answer.samples.tokens == 1200


def test_batches_of_one_sample_hide_no_padding():
    alone = workload(per_device_train_batch_size=1)
    assert Dataset.of(alone, DRAWN).workload.padding == "none"
    assert Dataset.of(workload(), DRAWN).workload.padding == "right"


def test_images_that_samples_do_not_share_evenly_are_traced_as_the_formula_says():
    k, shape = key(), Shape(5, 61, 8)  # 2, 2, 2, 1 and 1 images of 4 tokens
    model = parser.build(ModelConfig("small", small_config()), attn_implementation="sdpa", recipe="finetune")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    recording = traced_at(model, shape, padding="none", sdpa_backend="cudnn")
    micro = made(k).micro
    true = [b.size if isinstance(b.size, int) else int(workspaces.FUNCTIONS[b.size[0]](H100, *b.size[1]))
            for b in recording.buffers]
    assert (micro.events.kind * (micro.events.buffer + 1)).tolist() == recording.events
    assert micro.events.sizes.at(shape, H100)[micro.events.buffers.size].tolist() == true


@pytest.mark.parametrize("name", workspaces.FUNCTIONS)
def test_a_workspace_of_many_shapes_is_that_of_each(name):
    function = workspaces.FUNCTIONS[name]
    rng = np.random.default_rng(0)
    most = {"along_rows": 2, "all_of_it": 2, "accumulator_bytes": 9}
    one = {"width": 300, "itemsize": 300, "cub": workspaces.NEWEST_CUB}
    columns = [int(rng.integers(1, one[parameter])) if parameter in one else
               rng.integers(0 if parameter in most else 1, most.get(parameter, 300), 40)
               for parameter in list(inspect.signature(function).parameters)[1:]]
    rows = list(zip(*(np.broadcast_to(column, 40).tolist() for column in columns)))
    for gpu in map(gpus.find, ("h100-80gb", "a100-80gb")):
        together = np.broadcast_to(function(gpu, *columns), 40)
        assert not columns or together.tolist() == [int(function(gpu, *row)) for row in rows]


# --- files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, text", [
    ("a.json", '[812, {"tokens": 700, "images": 0}]'),
    ("a.jsonl", '812\n\n{"tokens": 700, "images": 0}\n'),
    ("a.csv", "tokens, images\n812,\n\n700, 0\n"),
])
def test_samples_are_read_from_each_form(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    found = samples.read(str(tmp_path / name))
    assert found.tokens.tolist() == [812, 700] and found.images.tolist() == [1, 0]


@pytest.mark.parametrize("name, text, said", [
    ("a.txt", "812", "must end in .jsonl, .csv, .json"),
    ("a.json", "{}", "must be a list of samples"),
    ("a.json", "[]", "holds no sample"),
    ("a.json", "[812, 0]", "sample 2: tokens must be a whole number from 1 to 4,194,304, not 0"),
    ("a.jsonl", '812\n{"tokens": ', "line 2: not valid JSON"),
    ("a.jsonl", '{"tokens": 812, "images": 1.5}', "line 1: images must be a whole number"),
    ("a.jsonl", '812\n{"tokens": 800, "num_images": 3}', 'line 2: unknown name "num_images" (did you mean "images"?)'),
    ("a.json", '[812, {"tokens": 800, "image": 3}]', 'sample 2: unknown name "image" (did you mean "images"?)'),
    ("a.csv", "812,1\n", "first line must name the columns"),
    ("a.csv", "tokens,imgs,images\n", 'line 1: unknown name "imgs"'),
    ("a.csv", "tokens,images,images\n800,1,3\n", "line 1: images is named twice"),
    ("a.csv", "tokens,images\n812,1\n800,1,3,4\n", "line 3: has 4 value(s), but the first line names 2"),
    ("a.csv", "tokens,images\n812\n", "line 2: has 1 value(s), but the first line names 2"),
    ("a.csv", "tokens\n812\nmany\n", 'line 3: tokens must be a whole number from 1 to 4,194,304, not "many"'),
])
def test_a_wrong_file_is_one_clear_line(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as caught:
        samples.read(str(tmp_path / name))
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("changes, drawn, said", [
    ({"images_per_sample": 1}, DRAWN, "images_per_sample: the samples say"),
    ({"model": "toy.npz"}, DRAWN, 'model "toy.npz": a learned formula predicts one shape'),
    ({"padding": "packed"}, DRAWN, 'padding "packed": not predicted with samples yet: leave one of them out'),
    ({"recipe": "lora", "quantization": {"load_in_4bit": True}}, DRAWN, "not predicted with samples yet"),
    ({"image_size": "336,448"}, DRAWN, "image_size 336,448: samples do not say which size each has"),
    ({"per_device_train_batch_size": 11}, DRAWN, "there are only 6 samples"),
    ({}, of(*[(500, 1)] * 4), "sample 1: 500 tokens have no room for 1 image(s) of 576"),
])
def test_what_no_batch_can_be_drawn_from_is_refused(changes, drawn, said):
    with pytest.raises(InputError) as caught:
        predict(workload(**SAME_LENGTHS | changes), samples=drawn)
    assert said in str(caught.value)


def test_the_command_says_how_likely_a_batch_fits(tmp_path, capsys):
    (tmp_path / "a.json").write_text(json.dumps(list(map(int, DRAWN.tokens[:4]))))
    words = ["predict", "llava-1.5-7b", "--sequence-length", "2048", "--per-device-train-batch-size", "2",
             "--zero-stage", "2", "--data-parallel-size", "8", "--profile", "none", "--recipe", "pretrain",
             "--padding", "none", "--capacity-bytes", "15GiB",
             "--samples", str(tmp_path / "a.json")]
    code = cli.main([*words, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 1 and document["samples"]["verdicts"]["does_not_fit"] > 0
    cli.main(words)
    text = capsys.readouterr().out
    assert "This is the worst batch of 4 samples" in text and "of random batches do not fit: nearly every optimizer" in text
    assert "padding included, which no mask hides" in " ".join(text.split()) and "images_per_sample" not in text


def test_batches_of_one_image_are_said_to_be_answered_with_two():
    drawn = of(*[(700, 0)] * 3, (700, 1))
    text = " ".join(sentences(predict(workload(**SAME_LENGTHS), samples=drawn)))
    assert text == ("This is the worst batch of 4 samples: 4 of 700 tokens, with 1 image (predicted as if with 2: "
                    "formulas need at least that many images in a batch). Every random batch needs as much.")


def test_the_median_is_left_out_if_it_reads_as_the_99th_percentile():
    found = predict(workload(**SAME_LENGTHS), samples=of(*[(700, 1)] * 4))
    chances = replace(found.samples, probability=0.5, median_peak_requested_bytes=3 << 30,
                      percentile_99_peak_requested_bytes=(3 << 30) + 1)
    text = " ".join(sentences(replace(found, samples=chances)))
    assert text.endswith("One in 2.0 random batches needs as much; 99 of 100 request at most 3.00 GiB.")
