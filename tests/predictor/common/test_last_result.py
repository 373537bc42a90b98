"""The last result of a function is kept, and forgotten before another is computed."""

from __future__ import annotations

import gc
import weakref

from predictor.common.last_result import last_result


class Large:
    pass


def test_equal_arguments_get_the_last_result():
    function = last_result(lambda number: [number])
    assert function(1) is function(1)


def test_a_result_is_forgotten_before_the_next_is_computed():
    alive: list[weakref.ref] = []

    @last_result
    def function(number: int) -> Large:
        gc.collect()
        assert all(one() is None for one in alive)
        result = Large()
        alive.append(weakref.ref(result))
        return result

    for number in range(3):
        function(number)
    assert len(alive) == 3
