"""Every request of the replay set is answered as it was recorded.

A number moves only with its cause and a measurement in the commit that moves it; wording may be recorded anew:
``python scripts/check.py replay --record``.
"""

from __future__ import annotations

import pytest

from tests.replay import replaying

REQUESTS = {name: request for name, request in replaying.requests().items() if request.layer == "test"}
ANSWERS = replaying.recorded()
ASKING_FOR_MORE = {"--json", "--details", "--help", "--moments", "--layers", "--top", "--worst"}
SHORT_ANSWERS = [name for name, request in REQUESTS.items() if not ASKING_FOR_MORE & set(request.argv)]


def test_every_request_has_an_answer_and_there_are_enough_of_them():
    assert replaying.requests().keys() == ANSWERS.keys()
    assert len(REQUESTS) >= 500


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_answered_as_it_was_recorded(name):
    with replaying.without_tracing():
        answer = replaying.answer(REQUESTS[name])
    assert list(replaying.differences(ANSWERS[name].numbers, answer.numbers)) == []
    assert list(replaying.differences(ANSWERS[name].wording, answer.wording)) == []


def test_the_short_answers_fit_on_one_screen():
    texts = {name: ANSWERS[name].wording["text"].splitlines() for name in SHORT_ANSWERS}
    assert len(texts) > 100
    assert {name: len(lines) for name, lines in texts.items()
            if len(lines) > 40 or any(len(line.rstrip()) > 100 for line in lines)} == {}
