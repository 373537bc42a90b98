"""The table of contradictions names existing keys, and its order decides which message comes first."""

from __future__ import annotations

import pytest

from predictor.workload.completion import complete
from predictor.workload.contradictions import CONTRADICTIONS, IN_A_DEEPSPEED_CONFIG, KEY_FROM_DETAIL, check
from predictor.workload.deepspeed_keys import READ, SECTIONS, known
from predictor.workload.key_problem import KeyProblem
from predictor.workload.keys import KEYS

OF_A_CONFIG = {*READ, *SECTIONS, *known(""), *known("zero_optimization")}
DEFAULTS = {name: entry.metadata["default"] for name, entry in KEYS.items()}


@pytest.mark.parametrize("line", CONTRADICTIONS, ids=lambda line: "-".join(filter(None, line.keys)))
def test_every_key_of_a_line_is_one_of_a_workload_or_of_a_deepspeed_config(line):
    assert set(line.keys) - {KEY_FROM_DETAIL} <= KEYS.keys() | OF_A_CONFIG


def test_a_config_alone_is_checked_by_the_same_lines():
    assert set(IN_A_DEEPSPEED_CONFIG) < set(CONTRADICTIONS)


def test_keys_that_contradict_each_other_are_completed_before_they_are_refused():
    case = complete({"model": "m", "recipe": "full", "lora": {"r": 4}, "engine": "deepspeed", "zero_stage": 0,
                     "offload": "all", "optim": "sgd", "optim_args": {"nesterov": "x"}}, DEFAULTS, "deepspeed")
    assert case.values.keys() == KEYS.keys()
    with pytest.raises(KeyProblem, match="lora is given, but recipe is full"):
        check(case, CONTRADICTIONS)


def test_the_first_line_that_finds_something_decides():
    wrong = {"trainable": ("a",), "frozen": ("a",), "rank": 9}
    with pytest.raises(KeyProblem, match="model is not given"):
        check(complete(wrong, DEFAULTS, "deepspeed"), CONTRADICTIONS)
    with pytest.raises(KeyProblem, match='frozen names "a", and so does trainable'):
        check(complete({"model": "m"} | wrong, DEFAULTS, "deepspeed"), CONTRADICTIONS)
