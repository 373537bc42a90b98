"""Batches are drawn as transformers' samplers and accelerate's shards draw them."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.common.errors import InputError
from predictor.course.permutation import LARGEST, randperm
from predictor.course.sampler import Sampler, Sampling


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**40))
def test_a_permutation_is_pytorchs(count, seed):
    torch = pytest.importorskip("torch")
    expected = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    assert randperm(count, seed).tolist() == expected.tolist()


def test_a_permutation_has_a_limit():
    with pytest.raises(ValueError, match="at most"):
        randperm(LARGEST, 0)


def accelerates(count: int, size: int, ranks: int, sampling: Sampling, epochs: int) -> list[list[list[int]]]:
    """For each rank its batches of all epochs, as accelerate shards those of PyTorch's samplers."""
    data_loader, torch = pytest.importorskip("accelerate.data_loader"), pytest.importorskip("torch")
    sampler = torch.utils.data.SequentialSampler(range(count)) if sampling.strategy == "sequential" else \
        data_loader.SeedableRandomSampler(range(count), data_seed=sampling.seed)
    batches = torch.utils.data.BatchSampler(sampler, size, sampling.drop_last)
    result: list[list[list[int]]] = [[] for _ in range(ranks)]
    for rank in range(ranks):
        for epoch in range(epochs):
            if sampling.strategy == "random":
                sampler.set_epoch(epoch)
            result[rank] += batches if ranks == 1 else data_loader.BatchSamplerShard(batches, ranks, rank)
    return result


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 60), size=st.integers(1, 5), ranks=st.integers(1, 4), drop_last=st.booleans(),
       strategy=st.sampled_from(("random", "sequential")), micro_steps=st.integers(1, 3))
def test_each_rank_gets_the_batches_that_accelerate_gives_it(count, size, ranks, drop_last, strategy, micro_steps):
    sampling = Sampling(strategy, 7, drop_last)
    expected = accelerates(count, size, ranks, sampling, epochs=2)
    if not expected[0]:
        with pytest.raises(InputError, match="fewer than"):
            Sampler(np.ones(count, int), size, ranks, micro_steps, sampling)
        return
    sampler = Sampler(np.ones(count, int), size, ranks, micro_steps, sampling)
    steps = sampler.steps(2 * sampler.steps_per_epoch)
    for rank in range(ranks):
        drawn = [batches[rank].tolist() for step in steps for batches in step.batches]
        assert drawn == expected[rank]
    assert [step.epoch for step in steps] == [0] * sampler.steps_per_epoch + [1] * sampler.steps_per_epoch
    assert sampler.batches_per_epoch == len(expected[0]) // 2


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=300), st.integers(1, 4))
def test_grouped_batches_are_those_of_transformers_for_the_same_permutation(lengths, size):
    torch, utilities = pytest.importorskip("torch"), pytest.importorskip("transformers.trainer_pt_utils")
    expected = utilities.get_length_grouped_indices(lengths, size, generator=torch.Generator().manual_seed(42))
    steps = Sampler(np.array(lengths), size, 1, 1, Sampling("group_by_length")).steps(-(-len(lengths) // size))
    drawn = [index for step in steps for index in step.batches[0][0].tolist()]
    assert [lengths[index] for index in drawn] == [lengths[index] for index in expected]


def test_the_longest_batch_comes_first_if_asked_for():
    lengths = np.array([5, 1, 1, 9, 2, 2])
    sampler = Sampler(lengths, 2, 1, 1, Sampling("sequential", longest_first=True))
    assert [step.batches[0][0].tolist() for step in sampler.steps(3)] == [[2, 3], [0, 1], [4, 5]]
    assert [step.number for step in islice(sampler.steps(3), 3)] == [1, 2, 3]


def test_an_unknown_strategy_is_rejected():
    with pytest.raises(InputError, match="must be random, group_by_length, sequential"):
        Sampling("grouped")
