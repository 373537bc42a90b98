"""Error messages convert no more of a value to text than they show."""

import pytest

from predictor.common.suggestions import quoted
from tests.predictor.bounds import bounded_time

ITSELF: list = [1]
ITSELF.append(ITSELF)


def shared() -> list:
    """Ten elements, each of which is the list before: 10^30 in all."""
    value = ["x" * 1000]
    for _ in range(30):
        value = [value] * 10
    return value


@pytest.mark.parametrize("value", [shared(), {"a": shared()}, (shared(), 1)], ids=["list", "dict", "tuple"])
def test_what_is_shared_is_shown_in_part(value):
    with bounded_time():
        text = quoted(value, 200)
    assert len(text) == 200 and text.endswith("…")


@pytest.mark.parametrize("value", [
    {}, [], (), (1,), (1, 2), {"a": [1, 2, {"b": (None,)}], 3: b"x"}, ITSELF, {1}, frozenset([1]), set(), [1.5, "a'b"],
    {(1,): 2}, [bytearray(b"x")], 10**50, None], ids=repr)
def test_short_values_are_shown_as_python_does(value):
    assert quoted(value, 500) == repr(value)


def test_long_values_are_cut_where_they_were():
    for value in (list(range(1000)), ["a" * 1000], {"k" * 100: 1}, [b"z" * 1000]):
        assert quoted(value) == repr(value)[:59] + "…"
