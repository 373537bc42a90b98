"""Rows of datasets: every row is read as a conversation or refused in one line; pictures keep their order."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from predictor.common.errors import InputError
from predictor.conversations import pictures
from predictor.conversations.rows import KNOWN_ROLES, MARKER, ROLES, conversation

WORDS = st.sampled_from(["messages", "conversations", "role", "from", "content", "value", "image", "images", "text", "type",
                         "prompt", "completion", "instruction", "output", "query", "response", "history", "system", "input",
                         MARKER, "image_url", *KNOWN_ROLES, *ROLES])
ROWS = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | WORDS,
                    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(), inner, max_size=5))


@given(st.dictionaries(WORDS, ROWS, max_size=5) | ROWS)
def test_a_row_is_read_or_refused_in_one_line(row):
    try:
        found = conversation(row, "a row")
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert sum(part is None for _, parts in found.messages for part in parts) == len(found.pictures)


@given(st.lists(st.sampled_from(["a", "b", MARKER])))
def test_pictures_keep_their_places(parts):
    row = {"images": [f"{number}.png" for number in range(parts.count(MARKER))],
           "messages": [{"role": "user", "content": "".join(parts) or "x"}]}
    (_, read), = conversation(row, "a row").messages
    assert "".join(MARKER if part is None else part for part in read) == ("".join(parts) or "x")


@pytest.mark.parametrize("row, kept", [
    ({"image": "a", "conversations": [{"from": "human", "value": "x"}]}, (("user", (None, "x")),)),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image", "image": "a"}]}]},
     (("user", ("x", None)),)),
    ({"images": ["a"], "prompt": [{"role": "user", "content": "x"}], "completion": [
        {"role": "assistant", "content": "y"}]}, (("user", (None, "x")), ("assistant", ("y",))))], ids=str)
def test_each_form_has_its_pictures_and_turns(row, kept):
    found = conversation(row, "a row")
    assert found.messages == kept and found.pictures == ("a",)


@pytest.mark.parametrize("orientation, size", [(1, (30, 50)), (3, (30, 50)), (6, (50, 30)), (8, (50, 30))])
def test_a_picture_that_exif_turns_has_its_turned_size(orientation, size):
    stream, exif = io.BytesIO(), Image.Exif()
    exif[pictures.ORIENTATION] = orientation
    Image.new("RGB", (50, 30)).save(stream, "JPEG", exif=exif)
    assert pictures.size(stream.getvalue(), "", "a row") == size


@pytest.mark.parametrize("said", [b"no picture", "", 5, {"bytes": None}, "data:image/png;base64,!!", "a\0b"], ids=str)
def test_what_is_no_picture_is_refused(said, tmp_path):
    with pytest.raises(InputError, match="a row: "):
        pictures.size(said, str(tmp_path), "a row")
