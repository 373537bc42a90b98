"""One request's calls go only downwards through the packages, from the command line to the answer."""

from __future__ import annotations

import shlex

import pytest

from calibrate.checks import walk


@pytest.mark.parametrize("request_words", (walk.REQUESTS[0], walk.REQUESTS[-1]), ids=lambda words: words.split()[0])
def test_a_request_only_goes_down_but_to_functions_that_were_handed_down(request_words):
    calls, order = walk.walked(shlex.split(request_words)), walk.layers("predictor")
    assert len(calls) > 20
    assert not [call for call in calls if call.is_up(order) and not call.is_inner]
