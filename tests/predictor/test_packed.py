"""Packed batches: samples in one row, told apart by position ids."""

from __future__ import annotations

import json

import pytest

from predictor import parser, pipeline, twins
from predictor.errors import InputError
from predictor.pipeline import predict
from predictor.sizes import Shape
from predictor.trace import make_batch
from predictor.workload import Workload
from tests.predictor.small import small_config, small_llava


def test_the_row_is_what_transformers_collates():
    from transformers import DataCollatorWithFlattening

    model, values = small_llava(), twins.Twins()
    alone = make_batch(model, parser.describe(model), Shape(1, 16, 1), "none", values)
    sample = {name: values.of(alone[name])[0].tolist() for name in ("input_ids", "labels")}
    row = make_batch(model, parser.describe(model), Shape(3, 16, 3), "packed", values)
    wanted = DataCollatorWithFlattening()([sample] * 3, return_tensors="pt")
    assert {name: values.of(row[name]).tolist() for name in wanted} == {n: t.tolist() for n, t in wanted.items()}


def test_the_mask_has_a_flag_for_each_pair_of_tokens(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    asked = Workload(model=str(tmp_path), sequence_length=64, per_device_train_batch_size=3, padding="packed")
    sizes = pipeline.prepare(asked).run(None).row_bytes
    assert (3 * 64) ** 2 in sizes.tolist()


def test_a_sliding_window_that_a_row_reaches_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(small_config(model_type="mistral", sliding_window=100)))
    asked = Workload(model=str(tmp_path), sequence_length=64, per_device_train_batch_size=2, padding="packed")
    with pytest.raises(InputError, match="a row of 128 tokens reaches .* sliding window"):
        predict(asked)
