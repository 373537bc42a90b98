"""Every request of the replay set is answered as it was recorded.

A number moves only with its cause and a measurement in the commit that moves it; wording may be recorded anew:
``python scripts/check.py replay --record``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from unittest import mock

import pytest

from predictor import cli
from predictor.workload import compared, contradictions
from predictor.workload.contradictions import Contradiction
from predictor.workload.workload import Workload
from predictor.workload.workload_draft import Draft
from tests.replay import replaying

REQUESTS = {name: request for name, request in replaying.requests().items() if request.layer == "test"}
ANSWERS = replaying.recorded()
ASKING_FOR_MORE = {"--json", "--details", "--help", "--moments", "--layers", "--top", "--worst"}
SHORT_ANSWERS = [name for name, request in replaying.requests().items()
                 if not ASKING_FOR_MORE & set(request.argv) and request.argv[:1] not in (("schema",), ("fits",))
                 and request.argv != ("models",)]
"""Without those of ``fits``, which prints one line for each file, as linters do, and the list of all models."""
TABLES = (*contradictions.CONTRADICTIONS, *contradictions.NOT_PREDICTED)
SAID_BY_A_CONTRADICTION = {"a conversation", "sharded parameters"}
"""Features whose only combinations have lines in ``contradictions.NOT_COMPARED``, which come first."""


def known_models() -> Iterator[tuple[str, str]]:
    """Name and ``model_type`` of each shipped configuration."""
    for path in (replaying.ROOT / "predictor/model/configs").glob("*.json"):
        yield path.stem, json.loads(path.read_text())["model_type"]


@pytest.fixture(scope="module")
def refused_by() -> set[int | str]:
    """Indices in ``TABLES``, and features of ``compared``, by which requests of the set are refused."""
    found: set[int | str] = set()
    compare = compared.check

    def check(draft: Draft, table: Iterable[Contradiction]) -> None:
        for line in table:
            detail = line.detail(draft)
            if detail is not None and detail is not False:
                found.update(number for number, other in enumerate(TABLES) if other is line)
                raise line.error(draft, detail)

    def check_compared(workload: Workload) -> None:
        found.update([feature for feature, line in compared.FEATURES.items() if [*line.unseen(vars(workload))]][:1])
        compare(workload)

    with mock.patch.object(contradictions, "check", check), mock.patch.object(compared, "check", check_compared), \
            replaying.without_tracing():
        for name, request in REQUESTS.items():
            if request.argv[:1] == ("predict",) and (name not in ANSWERS or ANSWERS[name].numbers["exit_code"] == 2):
                replaying.answer(request)
    return found


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


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_is_asked(command):
    assert any(request.argv[:1] == (command,) and "--help" not in request.argv
               for request in replaying.requests().values())


@pytest.mark.parametrize("model_type", sorted({of for _, of in known_models()}))
def test_every_type_of_a_known_model_is_predicted(model_type):
    names = {name for name, of in known_models() if of == model_type}
    assert any(request.argv[:1] == ("predict",) and names & set(request.argv)
               for request in replaying.requests().values())


@pytest.mark.parametrize("number", range(len(TABLES)), ids=lambda number: "-".join(filter(None, TABLES[number].keys)))
def test_every_line_of_the_contradictions_refuses_a_request(refused_by, number):
    assert number in refused_by


@pytest.mark.parametrize("feature", [name for name, line in compared.FEATURES.items()
                                     if line.seen and name not in SAID_BY_A_CONTRADICTION])
def test_every_line_of_the_compared_combinations_refuses_a_request(refused_by, feature):
    assert feature in refused_by
