"""Chat templates are rendered as transformers does, or refused within bounds of time and memory."""

from __future__ import annotations

import json

import pytest

from predictor.conversations import templates
from predictor.conversations.templates import Refused, Renderer
from tests.predictor.bounds import bounded_time
from tests.predictor.conversations.processors import TEMPLATE, tokenizer

MESSAGES = [{"role": "user", "content": "a\ud800ü"}, {"role": "assistant", "content": "b"}]
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def renderer():
    found = Renderer(longest=1_000)
    yield found
    found.close()


@pytest.mark.parametrize("template", [TEMPLATE, "{{ bos_token }}{{ messages | tojson }}", "{% generation %}x{% endgeneration %}"])
def test_a_text_is_that_of_transformers(template, renderer):
    letters = tokenizer()
    expected = letters.apply_chat_template(MESSAGES, chat_template=template, tokenize=False)
    assert renderer.render(template, MESSAGES, letters.special_tokens_map) == expected


@pytest.mark.parametrize("template, words", [
    (LOOPS, "takes more than 1 s"), ("{% for i in range(10**12) %}{% endfor %}", "refuses it: OverflowError"),
    ("{{ 'a' * 10**10 }}", "refuses it: MemoryError|takes more than"), ("{{ 10**(10**10) }}", "takes more than 1 s|refuses it"),
    ("{{ 'a' * 1001 }}", "a text of 1,001 characters: must have at most 1,000"), ("{% if", "refuses it: TemplateSyntaxError"),
    ("{{ raise_exception('no poets') }}", "refuses it: TemplateError: no poets"), ("{{ ''.__class__.__mro__ }}", "refuses it: SecurityError"),
    (3, "refuses it: "), (None, "refuses it: ")], ids=str)
def test_a_template_without_an_end_or_with_a_mistake_is_refused(template, words, renderer, monkeypatch):
    monkeypatch.setattr(templates, "SECONDS", 1.0)
    with bounded_time(), pytest.raises(Refused, match=words):
        renderer.render(template, MESSAGES, {})
    monkeypatch.undo()
    assert renderer.render("{{ messages[1]['content'] }}", MESSAGES, {}) == "b"  # it goes on afterwards


def test_a_dataset_with_such_a_template_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    from predictor.cli import main

    monkeypatch.setattr(templates, "SECONDS", 1.0)
    letters = tokenizer()
    letters.chat_template = LOOPS
    letters.save_pretrained(tmp_path / "letters")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": MESSAGES[1:]}) + "\n")
    assert main(["samples", str(tmp_path / "rows.jsonl"), "--processor", str(tmp_path / "letters")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "rows.jsonl: line 1: " in line and "its chat template takes more than 1 s" in line
