"""Packed batches: samples in one row, separated by position ids."""

from __future__ import annotations

import json

import pytest

from predictor.answer.predict import predict
from predictor.common.errors import InputError
from predictor.events.sizes import Shape
from predictor.jobs import dispatch
from predictor.workload.workload import Workload
from tests.predictor.small import inputs_of, small_config, small_llava


def test_the_row_is_what_transformers_collates():
    from transformers import DataCollatorWithFlattening

    inputs = inputs_of(small_llava())
    alone = inputs.batch(Shape(1, 16, 1), "none")
    sample = {name: alone[name][0].tolist() for name in ("input_ids", "labels")}
    row = inputs.batch(Shape(3, 16, 3), "packed")
    wanted = DataCollatorWithFlattening()([sample] * 3, return_tensors="pt")
    assert {name: row[name].tolist() for name in wanted} == {n: t.tolist() for n, t in wanted.items()}


def test_the_mask_has_a_flag_for_each_pair_of_tokens(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    asked = Workload(model=str(tmp_path), sequence_length=64, per_device_train_batch_size=3, padding="packed")
    sizes = dispatch.prepare(asked).run(None).row_bytes
    assert (3 * 64) ** 2 in sizes.tolist()


def test_a_sliding_window_that_a_row_reaches_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(small_config(model_type="mistral", sliding_window=100)))
    asked = Workload(model=str(tmp_path), sequence_length=64, per_device_train_batch_size=2, padding="packed")
    with pytest.raises(InputError, match="a row of 128 tokens reaches .* sliding window"):
        predict(asked)
