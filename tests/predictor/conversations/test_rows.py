"""Rows of datasets: every row is read as a conversation or refused in one line; pictures keep their order."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from predictor.common.errors import InputError
from predictor.conversations import pictures, rows
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


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation, size", [(1, (30, 50)), (3, (30, 50)), (6, (50, 30)), (8, (50, 30))])
def test_a_picture_that_exif_turns_has_its_turned_size(orientation, size, form):
    stream, exif = io.BytesIO(), Image.Exif()
    exif[pictures.ORIENTATION] = orientation
    Image.new("RGB", (50, 30)).save(stream, form, exif=exif)
    assert pictures.size(stream.getvalue(), "", "a row") == size


@pytest.mark.parametrize("form, header_bytes", [("JPEG", 700), ("PNG", 60)])
def test_of_a_picture_only_the_header_is_read(form, header_bytes):
    stream = io.BytesIO()
    Image.effect_noise((500, 300), 50).save(stream, form)
    assert pictures.size(stream.getvalue()[:header_bytes], "", "a row") == (300, 500)


@pytest.mark.parametrize("said", [b"no picture", "", 5, {"bytes": None}, {"bytes": "iVBORw0K"}, "data:image/png;base64,!!", "a\0b"], ids=str)
def test_what_is_no_picture_is_refused(said, tmp_path):
    with pytest.raises(InputError, match="a row: "):
        pictures.size(said, str(tmp_path), "a row")


@pytest.mark.parametrize("size", [(201, 1), (1, 65_000), (8_000, 8_000)], ids=str)
def test_a_picture_that_no_processor_can_scale_is_refused(size, monkeypatch):
    """Of one as thin as a pixel CLIP's processor would make 22 GB."""
    stream = io.BytesIO()
    Image.new("1", size).save(stream, "PNG")
    with pytest.raises(InputError, match="a row: the picture in the row: has .* pixels: must have 50,000,000 in all"):
        pictures.size(stream.getvalue(), "", "a row")


@pytest.mark.parametrize("piece", [b"\xff", b"\xff\xe1\0\4ab"], ids=["fill-bytes", "empty-segments"])
def test_a_header_that_does_not_end_is_refused(piece):
    with pytest.raises(InputError, match="a row: the picture in the row: is no picture that can be read: its header is too long"):
        pictures.size(b"\xff\xd8" + piece * (1 << 20), "", "a row")


def test_what_a_library_raises_of_a_damaged_picture_is_one_line():
    stream = io.BytesIO()
    Image.new("RGB", (24, 48)).save(stream, "DDS")
    data = bytearray(stream.getvalue())
    data[80:84] = (1 << 22).to_bytes(4, "little")  # flags that Pillow has not: NotImplementedError
    with pytest.raises(InputError, match="no picture that can be read: Unknown pixel format"):
        pictures.size(bytes(data), "", "a row")


@pytest.mark.parametrize("column", [[2**62], [[]]], ids=str)
def test_parquet_with_values_that_python_has_not_is_refused(column, tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    kind = pa.duration("s") if column == [2**62] else pa.list_(pa.string())
    parquet.write_table(pa.table({"x": pa.array(column, kind)}), tmp_path / "d.parquet")
    with pytest.raises(InputError, match="d.parquet: (is no Parquet file that can be read|row 1: must have)"):
        rows.read(str(tmp_path / "d.parquet"))


@pytest.mark.parametrize("as_dictionary", [True, False])
def test_a_few_bytes_of_parquet_do_not_unpack_to_gigabytes(as_dictionary, tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.int32()), pa.array(["a" * 1_000_000]))
    parquet.write_table(pa.table({"text": texts}), tmp_path / "d.parquet", store_schema=as_dictionary)
    with pytest.raises(InputError, match="unpacks to more than 6. MiB"):
        rows.read(str(tmp_path / "d.parquet"))


def test_a_few_bytes_of_parquet_do_not_unpack_to_millions_of_rows(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": pa.array(["x"] * 300_000)}), tmp_path / "d.parquet")
    with pytest.raises(InputError, match=r"d.parquet: has 300,000 rows in .* bytes: give fewer rows"):
        rows.read(str(tmp_path / "d.parquet"))


def test_parquet_with_a_group_for_each_row_is_refused(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": pa.array(["x"] * 10_001)}), tmp_path / "d.parquet", row_group_size=1)
    with pytest.raises(InputError, match=r"d.parquet: has 10,001 row groups: write it with at most 10,000"):
        rows.read(str(tmp_path / "d.parquet"))
