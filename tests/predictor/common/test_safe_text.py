"""Text from files is shown, and never controls the terminal that shows it."""

import io
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from predictor.cli import main
from predictor.common.errors import InputError
from predictor.common.safe_text import markup, printable
from predictor.events.events import Factor
from predictor.report.console import console
from tests.predictor import samples

HOSTILE = "to\x1b]0;title\x07we\x9b31mr\u202e\nFits: all is well"
SHOWN = r"to\x1b]0;title\x07we\x9b31mr\u202e\nFits: all is well"
STEERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")
ENOUGH = ["llava-1.5-7b", "--sequence-length", "1024"]


@pytest.fixture
def hostile(monkeypatch):
    """A prediction whose model has such names wherever there is one."""
    made = samples.prediction()
    tower = {Factor.PARAMETERS: samples.GIB}
    peak = replace(made.peak, module=HOSTILE, operator=HOSTILE)
    made = samples.prediction(
        peak=peak, modules={HOSTILE: tower} | dict(made.modules), layers={HOSTILE: tower} | dict(made.layers),
        moments={moment: dict(point) | {"module": HOSTILE, "operator": HOSTILE} for moment, point in made.moments.items()},
        not_modelled=(HOSTILE,))
    monkeypatch.setattr("predictor.answer.predict.predict", lambda workload, **_: made)


@pytest.mark.parametrize("text, shown", [
    ("\x1b[31mred", r"\x1b[31mred"), ("a\0b\rc\bd\x7f", r"a\x00b\rc\x08d\x7f"), ("\x9b31m\x85", r"\x9b31m\x85"),
    ("a\nb\tc", r"a\nb\tc"), ("\u202egnp.exe\u2069", r"\u202egnp.exe\u2069"), ("a\u2028b\u200bc", r"a\u2028b\u200bc"),
    ("name\udcff", r"name\udcff"), ("x\U000e0041", r"x\U000e0041"),
])
def test_what_steers_a_terminal_is_written_out(text, shown):
    assert printable(text) == shown == printable(shown)


@pytest.mark.parametrize("text", [
    "llava-1.5-7b", "C:\\models\\x", "模型 é ω ñ", "נמל شبكة हिन्दी می\u200cخواهم", "👩\u200d👩\u200d👧", "a\xa0b … · ±", "[bold]not markup[/]",
])
def test_letters_of_every_language_stay(text):
    assert printable(text) == text


def test_breaks_of_the_line_stay_where_they_are_asked_for():
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


def test_in_markup_it_is_neither_an_element_nor_a_control_character():
    assert markup("<b>\x1b&") == r"&lt;b&gt;\x1b&amp;"


@pytest.mark.parametrize("command", ["predict", "explain"])
def test_names_in_a_report_are_shown_on_their_line(hostile, tmp_path, capsys, command):
    assert main([command, *ENOUGH]) == 0
    out = capsys.readouterr().out
    assert not STEERS.search(out) and not re.search("^ *Fits: all is well", out, re.MULTILINE)
    assert r"\x1b]0;title\x07" in out
    assert main([command, *ENOUGH, "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text() == out


def test_a_picture_with_such_a_name_is_well_formed(hostile, tmp_path):
    assert main(["explain", *ENOUGH, "--picture", str(tmp_path / "x.svg")]) == 0
    text = (tmp_path / "x.svg").read_text()
    assert ElementTree.fromstring(text) is not None and r"\x1b]0;title" in text and "\u202e" not in text


def test_json_says_the_name_itself_without_a_control_character(hostile, capsys, monkeypatch):
    made = samples.prediction(modules={HOSTILE + "\x7f": {Factor.PARAMETERS: 1}})
    monkeypatch.setattr("predictor.answer.predict.predict", lambda workload, **_: made)
    assert main(["predict", *ENOUGH, "--json"]) == 0
    out = capsys.readouterr().out
    assert not STEERS.search(out) and HOSTILE + "\x7f" in json.loads(out)["modules"]


def test_an_error_that_quotes_a_file_is_one_plain_line(capsys, monkeypatch):
    def predict(workload, **_):
        raise InputError(f"model x: {HOSTILE}")

    monkeypatch.setattr("predictor.answer.predict.predict", predict)
    assert main(["predict", *ENOUGH]) == 2
    assert capsys.readouterr() == ("", f"peakcast: error: model x: {SHOWN.replace(chr(92) + 'n', ' ')}\n")


def test_what_transformers_says_of_a_configuration_is_plain(tmp_path, capsys):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": HOSTILE, "architectures": ["X"]}))
    assert main(["predict", str(tmp_path), "--sequence-length", "9"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and not STEERS.search(err) and r"\x1b]0;title" in err


@pytest.mark.parametrize("text", ["bold \x1b[2J", "bold נמל"])
def test_on_a_terminal_our_styles_are_all_that_steers(monkeypatch, text):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = io.StringIO()
    stream.isatty = lambda: True
    console(stream, width=80).print(text, style="bold")
    assert stream.getvalue() == f"\x1b[1m{printable(text)}\x1b[0m\n"
