"""Lines, shortened names, and reports that are cut to one screen."""

import io

from hypothesis import given
from hypothesis import strategies as st

from predictor.report.console import console
from predictor.report.layout import SCREEN, counted, details_line, numbered, on_one_screen, shortened

NAMES = st.lists(st.sampled_from(["model", "layers", "{0..31}", "{0,2,4,…}", "self_attn", "7", "a_name_that_is_long"]), min_size=1)


def printed(sizes) -> list[str]:
    stream = io.StringIO()

    def report(console, size):
        for number in range(size):
            console.print(f"{number} of {size}")

    on_one_screen(console(stream, 100), report, sizes)
    return stream.getvalue().splitlines()


@given(st.lists(st.integers(0, 3 * SCREEN), min_size=1))
def test_a_report_has_the_first_size_that_fits_and_else_the_last(sizes):
    expected = next((size for size in sizes if size <= SCREEN), sizes[-1])
    assert printed(sizes) == [f"{number} of {expected}" for number in range(expected)]


@given(NAMES, st.integers(10, 60))
def test_a_shortened_path_ends_as_the_path_does_and_has_room(names, most):
    path = ".".join(names)
    short = shortened(path, most)
    assert len(short) <= most and path.endswith(short.removeprefix("…"))
    assert (short == path) is (len(path) <= most)


def test_a_path_is_shortened_between_its_names():
    assert shortened("model.language_model.layers.{0..31}.mlp", 29) == "…layers.{0..31}.mlp"


def test_the_line_about_details_lists_what_there_is():
    assert details_line("", "all moments") == "--details shows all moments; --json has all as data."
    assert details_line("a", "", "b", "c") == "--details shows a, b and c; --json has all as data."


def test_further_things_are_counted_in_words():
    assert [counted(number, "knob") for number in (-1, 0, 1, 1200)] == ["", "", "one further knob", "1,200 further knobs"]


def test_one_thing_is_singular():
    assert [numbered(number, "sequence") for number in (0, 1, 1000)] == ["0 sequences", "1 sequence", "1,000 sequences"]
