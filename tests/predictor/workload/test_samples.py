"""Samples whose pictures differ in size: read from every form, and wrong ones named."""

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from predictor.common.errors import InputError
from predictor.workload import samples

SIZES = (((768, 1024), (640, 640)), ((480, 640),), ())
FILES = {
    "a.jsonl": '{"tokens": 900, "image_sizes": ["768x1024", 640]}\n{"tokens": 400, "image_sizes": ["480x640"]}\n'
               '{"tokens": 30, "images": 0}\n',
    "a.csv": "tokens,image_sizes\n900,768x1024 640\n400,480x640\n30,\n",
    "a.json": '[{"tokens": 900, "image_sizes": ["768x1024", "640x640"]}, {"tokens": 400, "images": 1, "image_sizes": '
              '["480x640"]}, {"tokens": 30, "image_sizes": []}]',
}


@pytest.mark.parametrize("name", FILES)
def test_sizes_are_read_and_counted(tmp_path, name):
    path = tmp_path / name
    path.write_text(FILES[name])
    found = samples.read(str(path))
    assert (found.pictures, found.images.tolist(), found.tokens.tolist()) == (SIZES, [2, 1, 0], [900, 400, 30])
    assert found.cut(500).tokens.tolist() == [500, 400, 30] and found.cut(500).pictures == SIZES


def test_sizes_of_some_samples_with_images_are_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"tokens": 900, "image_sizes": ["768x1024"]}\n{"tokens": 400, "images": 1}\n')
    with pytest.raises(InputError, match="sample 2: has no image_sizes, but others have"):
        samples.read(str(path))


def test_a_sample_without_pictures_says_so_in_csv(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("tokens,images,image_sizes\n900,2,768x1024 640\n30,0,\n")
    assert samples.read(str(path)).pictures == (SIZES[0], ())


@pytest.mark.parametrize("row, words", [
    ('{"tokens": 9, "images": 2, "image_sizes": ["1x1"]}', "images is 2, but image_sizes has 1: leave images out"),
    ('{"tokens": 9, "image_sizes": 5.5}', "image_sizes must be a list"),
    ('{"tokens": 9, "image_sizes": [[448, 448]]}', "image_sizes has one size for each picture"),
    ('{"tokens": 9, "image_sizes": ["448x448,448x448"]}', "image_sizes has one size for each picture"),
    ('{"tokens": 9, "image_sizes": ["axb"]}', "image_sizes must be pixels of a side"),
    ('{"tokens": 9, "image_size": ["1x1"]}', 'unknown name "image_size"'),
])
def test_a_wrong_sample_is_named(tmp_path, row, words):
    path = tmp_path / "a.jsonl"
    path.write_text(row + "\n")
    with pytest.raises(InputError, match=words):
        samples.read(str(path))


CELLS = st.one_of(st.integers(0, 5).map(str), st.sampled_from(["4194304", "4194305", "4096", "4097", "007", "", " 3", "x", "12345678"]))


@given(st.lists(st.lists(CELLS, min_size=1, max_size=3).map(",".join), min_size=1, max_size=4).map("\n".join))
@example("5,1")
@example("5,1\n\n7,2")
def test_a_plain_file_is_read_as_line_by_line(body):
    """What the fast reading answers is what the careful one does; and it answers nothing that this one refuses."""
    text = f"tokens,images\n{body}\n"
    careful = None
    with suppress(InputError):
        careful = [samples._row(row, where)[:2] for where, row in samples._csv(text, "f")]
    plain = samples._plain(text, "f")
    assert plain is None or [*zip(plain.tokens.tolist(), plain.images.tolist())] == careful


@pytest.mark.parametrize("line", ["5,1\n", "5, 1\n"])
def test_too_many_samples_are_refused(tmp_path, monkeypatch, line):
    monkeypatch.setattr(samples, "MOST_IN_A_FILE", 3)
    path = tmp_path / "a.csv"
    path.write_text("tokens,images\n" + 3 * line)
    assert len(samples.read(str(path))) == 3
    path.write_text("tokens,images\n" + 4 * line)
    with pytest.raises(InputError, match="more than 3 samples"):
        samples.read(str(path))


def test_one_number_is_the_size_of_one_square_picture(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("tokens,image_sizes\n900,448\n300,\n")
    assert samples.read(str(path)).pictures == (((448, 448),), ())


def test_parquet_is_a_dataset_of_texts(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1\xff")
    with pytest.raises(InputError, match="for a dataset of texts, add --processor DIR"):
        samples.read(str(path))
