"""The timeline's pictures: columns, characters and SVG."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.answer.prediction import Timeline
from predictor.events.events import Factor, Moment
from predictor.report.svg import draw
from predictor.report.text_chart import picture
from predictor.report.timeline_columns import columns
from tests.predictor import samples
from tests.predictor.samples import GIB

MOMENTS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(Moment), st.integers(0, 9)), min_size=1, max_size=60)


@settings(max_examples=150, deadline=None)
@given(MOMENTS, st.integers(1, 120), st.integers(1, 9))
def test_columns_fill_the_width_and_keep_every_peak_that_is_drawn(points, width, least):
    points = sorted(points, key=lambda point: point[0])
    timeline = Timeline(list(range(len(points))), [p[1] for p in points], [p[0] for p in points],
                        {Factor.PARAMETERS: [p[2] for p in points]})
    drawn, stretches = columns(timeline, width, least)
    assert len(drawn) == width
    assert [s.start for s in stretches] == [0, *(s.stop for s in stretches[:-1])] and stretches[-1].stop == width
    if width >= 4:
        assert max(column.bytes for column in drawn) == max(p[2] for p in points)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 90))
def test_columns_keep_the_reserved_peak_and_stack_up_to_the_allocated_one(reserved, width):
    points = len(reserved)
    timeline = Timeline(list(range(points)), [Moment.FORWARD] * points, [1] * points, {Factor.PARAMETERS: [1] * points},
                        [3] * points, reserved)
    drawn, _ = columns(timeline, width, 1)
    assert max(column.reserved_bytes for column in drawn) == max(reserved)
    assert {column.bytes for column in drawn} == {3} and drawn[0].bytes_by_factor[Factor.ALLOCATOR] == 2


def held() -> Timeline:
    """The sample timeline, of which the allocator reserves 45 GiB from the first backward on."""
    curve = samples.timeline()
    allocated = [sum(sizes) for sizes in zip(*curve.bytes_by_factor.values())]
    first = curve.moment.index(Moment.BACKWARD)
    return replace(curve, allocated_bytes=allocated, reserved_bytes=[
        size if place < first else 45 * GIB for place, size in enumerate(allocated)])


def test_reserved_bytes_are_a_line_above_the_characters():
    lines = picture(samples.prediction(curve=held()), 72, height=8).plain.splitlines()
    assert lines[0].rstrip() == "  45.0 ┤              ━━━━━━━━━━━━━━━━━━━━━░━━━━━━━━━━━━━━━━━━░━━━━━━━━━"
    assert lines[-1].endswith("░ activations  ━ reserved  ")
    assert picture(samples.prediction(curve=held()), 72, ascii_only=True).plain.isascii()


def test_the_svg_has_a_line_of_reserved_bytes_with_its_legend():
    text = draw(samples.prediction(curve=held()))
    assert "<title>reserved</title>" in text and "at most 45.00 GiB</text>" in text
    assert "allocated by factor, and reserved, GiB" in text
    assert "reserved" not in draw(samples.prediction()).split("</text>", 2)[2]


def test_the_svg_names_another_rank_that_reserves_more():
    assert "at most 45.00 GiB; rank 3 reserves the most, 45.00 GiB" in draw(samples.prediction(
        curve=held(), peak=replace(samples.prediction().peak, reserved_rank=3)))


def test_a_short_moment_gets_its_least_width():
    drawn, stretches = columns(samples.timeline(), 92, 6)
    assert {s.stop - s.start for s in stretches if s.moment is Moment.OPTIMIZER_STEP} <= {6, 7}


def test_many_moments_are_drawn_by_step():
    points = 1000
    timeline = Timeline(list(range(points)), [Moment.FORWARD, Moment.BACKWARD] * (points // 2), [1] * 500 + [2] * 500,
                        {Factor.PARAMETERS: [1] * points})
    assert [(s.step, s.start, s.stop) for s in columns(timeline, 90, 6)[1]] == [(1, 0, 45), (2, 45, 90)]


def test_the_picture_of_characters():
    text = picture(samples.prediction(samples.workload(gpu="a40")), 72, height=8).plain
    assert [line.rstrip() for line in text.splitlines()] == """\
  44.3 ┤ capacity 44.35 GiB -------------░░░----------------░░░---------
       │                ░               ░░░░               ░░░░
       │             ░░░░             ░░░░░░░            ░░░░░░░
       │           ░░░░░░░  ░░░░░░  ░░░░░░░░░░ ░░░░░░  ░░░░░░░░░░ ░░░░░░
  22.2 ┤         ░░░░░░░░░░ ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
       │       ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
       │    ████████████████████████████████████████████████████████████
       │ ███████████████████████████████████████████████████████████████
                                           ^ peak
        |init  |fwd   |bwd  |opt  |fwd   |bwd  |opt  |fwd   |bwd  |opt
        |start |step 1            |step 2            |step 3
        █ parameters  ▓ optimizer_states  ░ activations""".splitlines()


def test_the_peak_is_marked_under_its_column():
    lines = picture(samples.prediction(), 100).plain.splitlines()
    mark = next(line for line in lines if "^ peak" in line).index("^")
    assert lines[0][mark] == "░" and lines[0][:8] == "  43.0 ┤"


def test_moments_and_steps_are_named_under_the_picture():
    text = picture(samples.prediction(), 100).plain
    assert "|init" in text and text.count("|fwd") == text.count("|bwd") == text.count("|opt") == 3
    assert "|step 1" in text and "|step 3" in text


def test_a_capacity_near_the_peak_is_a_line():
    near = picture(samples.prediction(samples.workload(gpu="a40")), 100).plain
    assert near.splitlines()[0].startswith("  44.3 ┤ capacity 44.35 GiB ---")
    assert "capacity" not in picture(samples.prediction(samples.workload(gpu="b200")), 100).plain


def test_ascii_stands_in_for_blocks():
    assert picture(samples.prediction(), 100, ascii_only=True).plain.isascii()


@pytest.mark.parametrize("gpu", [None, "a40", "b200", "l4"])
def test_the_svg_is_well_formed_and_names_every_factor_drawn(gpu):
    root = ElementTree.fromstring(draw(samples.prediction(samples.workload(gpu=gpu, model="a <b> & c"))))
    titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0].startswith("a <b> & c · finetune") and set(titles[1:]) == {"parameters", "optimizer_states", "activations"}


def test_the_svg_shows_the_capacity_only_where_it_is_near():
    assert "capacity 44.35 GiB" in draw(samples.prediction(samples.workload(gpu="a40")))
    assert "capacity" not in draw(samples.prediction(samples.workload(gpu="b200"))).split("</text>", 2)[2]


def test_an_svg_area_is_as_high_as_its_bytes():
    flat = Timeline([0, 1], [Moment.INIT, Moment.INIT], [0, 0],
                    {Factor.PARAMETERS: [10 * GIB] * 2, Factor.INPUTS: [10 * GIB] * 2})
    text = draw(samples.prediction(curve=flat))
    # the axis is 336 units high and ends 4 % above 20 GiB
    assert 'd="M64,258.5 L984,258.5 L984,420.0 L64,420.0 Z" fill="#0072b2"' in text
