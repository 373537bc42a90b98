"""Rows that samples are packed into are TRL's."""

from __future__ import annotations

import numpy as np
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.data_utils import pack_dataset

from predictor.course import packing
from predictor.course.sampler import Sampler, Sampling

LONGEST = 40


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, LONGEST), min_size=1, max_size=60))
def test_rows_are_those_of_trl(lengths):
    packed = pack_dataset(Dataset.from_dict({"input_ids": [[0] * length for length in lengths]}), LONGEST, "bfd")
    assert [[lengths[index] for index in row] for row in packing.rows(np.array(lengths), LONGEST)] == [
        list(row) for row in packed["seq_lengths"]]


def test_a_thousand_samples_are_packed_together():
    lengths = np.random.default_rng(0).integers(1, LONGEST, 2 * packing.TOGETHER + 7)
    packed = pack_dataset(Dataset.from_dict({"input_ids": [[0] * length for length in lengths.tolist()]}), LONGEST, "bfd")
    assert [lengths[row].tolist() for row in packing.rows(lengths, LONGEST)] == [list(row) for row in packed["seq_lengths"]]


def test_a_batch_has_all_samples_of_its_rows():
    lengths = np.array([30, 30, 10, 10, 25])
    sampler = Sampler(lengths, 2, 1, 1, Sampling("sequential"), rows=packing.rows(lengths, LONGEST))
    assert [[sorted(batch.tolist()) for batch in step.batches[0]] for step in sampler.steps(2)] == [[[0, 1, 2, 3]], [[4]]]
    assert sampler.steps_per_epoch == 2
