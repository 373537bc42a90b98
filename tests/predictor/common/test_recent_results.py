"""The latest results of a function are kept up to a size, and others are forgotten before one is computed."""

from __future__ import annotations

import gc
import weakref

from predictor.common.recent_results import RecentResults


class Large:
    pass


def test_equal_arguments_get_the_same_result():
    function = RecentResults(lambda number: [number], size=lambda number: 1, most=1)
    assert function(1) is function(1)


def test_a_result_is_forgotten_before_the_next_is_computed():
    alive: list[weakref.ref] = []

    def large(number: int) -> Large:
        gc.collect()
        assert all(one() is None for one in alive)
        result = Large()
        alive.append(weakref.ref(result))
        return result

    function = RecentResults(large, size=lambda number: 2, most=1)
    for number in range(3):
        function(number)
    assert len(alive) == 3


def test_the_result_that_was_asked_for_longest_ago_is_forgotten():
    computed: list[int] = []
    function = RecentResults(computed.append, size=lambda number: number, most=5)
    for number in (2, 3, 2, 1, 3):  # at 1 there is room for 1 and 2 only
        function(number)
    assert computed == [2, 3, 1, 3]
