"""Numbers from outside are read within bounds."""

from __future__ import annotations

import math

import pytest

from predictor.common import numbers


@pytest.mark.parametrize("text, number", [("0", 0), ("007", 7), ("9" * 19, 10**19 - 1)])
def test_text_of_digits_is_a_whole_number(text, number):
    assert numbers.whole(text) == number


@pytest.mark.parametrize("text", ["", " 1", "-1", "+1", "1.0", "1_0", "٣", "²", "①", "x", "9" * 20, "9" * 5_000])
def test_other_text_is_none(text):
    assert numbers.whole(text) is None


@pytest.mark.parametrize("value, number", [(1, 1.0), (0.5, 0.5), ("1e3", 1000.0), ("-2", -2.0)])
def test_finite_numbers_are_floats(value, number):
    assert numbers.finite(value) == number


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, "inf", "nan", "1e400", 10**400, "9" * 5_000, True, None, "", "1_0", "x", [1]])
def test_what_is_no_finite_number_is_none(value):
    assert numbers.finite(value) is None
