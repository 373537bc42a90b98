"""What an operator is remembered to return on meta tensors is what it returns."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.events.sizes import Shape
from predictor.trace import known_results
from predictor.trace.known_results import KnownResults
from tests.predictor.small import small_llava, traced_at

aten = torch.ops.aten
PAIRS = [aten.add.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.maximum.default]
DTYPES = st.sampled_from([torch.bfloat16, torch.float32, torch.int64, torch.bool])


def on_meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def layout(out) -> list:
    return [None if one is None else (one.shape, one.stride(), one.dtype, one.untyped_storage().nbytes())
            for one in (out if isinstance(out, tuple) else (out,))]


SHAPES = st.lists(st.integers(1, 3), min_size=3, max_size=3)
ORDERS = st.permutations(range(3))


@settings(deadline=None)
@given(st.sampled_from(PAIRS), SHAPES, st.lists(st.booleans(), min_size=3, max_size=3), ORDERS, ORDERS, DTYPES, DTYPES)
def test_the_second_call_returns_a_new_tensor_of_the_layout_that_the_operator_gives(func, shape, ones, first, second, left, right):
    broadcast = [1 if one else size for one, size in zip(ones, shape)]
    operands = tuple(torch.empty_permuted(size, order, dtype=dtype, device="meta")
                     for size, order, dtype in ((shape, first, left), (broadcast, second, right)))
    known = KnownResults()
    results = [known.call(func, operands, {}) for _ in range(2)]
    assert [layout(one) for one in results] == [layout(func(*operands))] * 2
    assert len({id(one.untyped_storage()) for one in (*operands, *results)}) == 4


@pytest.mark.parametrize("number, dtype", [(1, torch.int64), (1.0, torch.float32), (True, torch.int64)])
def test_equal_numbers_of_other_types_are_other_arguments(number, dtype):
    known, tensor = KnownResults(), on_meta(2, dtype=torch.int64)
    for other in (1, 1.0, True):
        known.call(aten.add.Tensor, (tensor, other), {})
    assert known.call(aten.add.Tensor, (tensor, number), {}).dtype == dtype


def test_a_dtype_given_by_keyword_is_an_argument():
    known, tensor = KnownResults(), on_meta(4)
    assert [known.call(aten._to_copy.default, (tensor,), {"dtype": dtype}).dtype
            for dtype in (torch.bfloat16, torch.float32, torch.bfloat16)] == [torch.bfloat16, torch.float32, torch.bfloat16]


def test_results_that_are_not_computed_stay_so():
    known, gradient, tensor, weight = KnownResults(), on_meta(4, 8), on_meta(4, 8), on_meta(8)
    moments = on_meta(4, 1), on_meta(4, 1)
    call = (gradient, tensor, [8], *moments, weight, None, [True, False, False])
    results = [known.call(aten.native_layer_norm_backward.default, call, {}) for _ in range(2)]
    assert [layout(one) for one in results] == [layout(aten.native_layer_norm_backward.default(*call))] * 2
    assert layout(results[1])[1:] == [None, None]


@pytest.mark.parametrize("func", [aten.view.default, aten._unsafe_view.default])
def test_a_view_shares_the_storage_of_the_tensor_that_it_views(func):
    known = KnownResults()
    for tensor in (on_meta(4), on_meta(4)):
        assert known.call(func, (tensor, [2, 2]), {}).untyped_storage() is tensor.untyped_storage()


def test_an_operator_in_place_returns_its_own_argument():
    known = KnownResults()
    for tensor in (on_meta(4), on_meta(4)):
        assert known.call(aten.add_.Tensor, (tensor, on_meta(4)), {}) is tensor


def test_every_tensor_is_resized():
    known = KnownResults()
    for tensor in (on_meta(4), on_meta(4)):
        known.call(aten.resize_.default, (tensor, [16]), {})
        assert tensor.untyped_storage().nbytes() == 64


def test_tensors_of_the_host_are_computed():
    known = KnownResults()
    assert [known.call(aten.neg.default, (torch.tensor(number),), {}).item() for number in (1, 2)] == [-1, -2]


def test_results_are_forgotten_before_they_are_too_many(monkeypatch):
    monkeypatch.setattr(known_results, "MOST_RESULTS", 3)
    known = KnownResults()
    for rows in range(1, 9):
        assert layout(known.call(aten.neg.default, (on_meta(rows),), {})) == layout(on_meta(rows))
        assert sum(map(len, known._of_operator.values())) < 3


def test_an_error_is_raised_each_time():
    known = KnownResults()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            known.call(aten.mm.default, (on_meta(2, 3), on_meta(2, 3)), {})


@pytest.mark.parametrize("keys", [{}, {"mixed_precision": "bf16"}, {"padding": "right", "sdpa_backend": "math"}], ids=str)
def test_a_trace_is_what_it_is_without_memory_of_results(keys, monkeypatch):
    model = small_llava()
    remembered = traced_at(model, Shape(2, 24, 2), **keys)
    monkeypatch.setattr(KnownResults, "call", lambda self, func, args, kwargs: func(*args, **kwargs))
    assert traced_at(model, Shape(2, 24, 2), **keys) == remembered


def test_lengths_are_results_too():
    known, states = KnownResults(), [on_meta(1, 2, 8, 16, dtype=torch.bfloat16) for _ in range(3)]
    first, second = (known.call(aten._scaled_dot_product_flash_attention.default, (*states, 0.0, True), {}) for _ in range(2))
    assert [one if isinstance(one, int) else layout(one) for one in first] == [
        one if isinstance(one, int) else layout(one) for one in second] and first[4:6] == (8, 8)
