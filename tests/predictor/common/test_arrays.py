"""Files of arrays: too large or inconsistent arrays are rejected before memory is allocated."""

import io
import zipfile

import numpy as np
import pytest

from predictor.common import arrays
from predictor.common.errors import InputError
from predictor.formula import learned

HEADER = np.frombuffer(b'{"source": "recorded jobs"}', dtype=np.uint8)


def member(shape: str, descr: str = "|u1", data: bytes = b"xx") -> bytes:
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + data


def archive(path, **members: bytes):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.npy", member(f"({len(HEADER)},)", data=HEADER.tobytes()))
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


def test_what_numpy_writes_is_read(tmp_path):
    columns = {"a": np.arange(12, dtype=np.int64).reshape(3, 4), "b": np.zeros((0, 3), dtype=np.int32),
               "c": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "d": np.array(7)}
    np.savez_compressed(tmp_path / "x.npz", header=HEADER, **columns)
    found, header = arrays.load(tmp_path / "x.npz")
    assert header == {"source": "recorded jobs"}
    for name, column in columns.items():
        assert np.array_equal(found[name], column) and found[name].dtype == column.dtype


def test_what_is_written_is_read_and_the_same_whenever_it_is_written(tmp_path):
    columns = {"a": np.arange(12, dtype=np.int64).reshape(3, 4), "b": np.zeros((0, 3), dtype=np.int32)}
    written = arrays.to_bytes({"header": HEADER} | columns)
    (tmp_path / "x.npz").write_bytes(written)
    found, header = arrays.load(tmp_path / "x.npz")
    assert header == {"source": "recorded jobs"} and written == arrays.to_bytes(found)
    assert all(np.array_equal(found[name], column) for name, column in columns.items())


def test_any_damaged_byte_before_the_sum_is_noticed(tmp_path):
    written = arrays.to_bytes({"header": HEADER, "a": np.arange(12)})
    for place in range(len(written) - arrays.COMMENT_BYTES - 2):
        (tmp_path / "x.npz").write_bytes(written[:place] + bytes([written[place] ^ 1]) + written[place + 1 :])
        with pytest.raises(ValueError, match="its content is not that of its SHA-256"):
            arrays.load(tmp_path / "x.npz")


def test_a_file_without_a_sum_is_read(tmp_path):
    written = arrays.to_bytes({"header": HEADER, "a": np.arange(12)})
    (tmp_path / "x.npz").write_bytes(written[:-arrays.COMMENT_BYTES - 2] + bytes(2))
    assert arrays.load(tmp_path / "x.npz")[0]["a"].tolist() == list(range(12))


def test_a_python_without_lzma_is_named_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "x.npz").write_bytes(arrays.to_bytes({"header": HEADER}))
    monkeypatch.setattr(arrays.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="built without its module lzma"):
        arrays.load(tmp_path / "x.npz")


def test_a_file_that_unpacks_to_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "MOST_BYTES", 1 << 20)
    path = archive(tmp_path / "x.npz", x=member("(2000000,)", data=bytes(2_000_000)))
    assert path.stat().st_size < 10_000
    with pytest.raises(InputError, match="x.npz: unpacks to more than 1 MiB: not a learned formula"):
        learned.load(path)


@pytest.mark.parametrize("shape, descr", [
    ("(20000000000,)", "|u1"), ("(1,)", "|V2000000000"), ("(3,)", "|u1"), ("(1,)", "|O"), ("(-2,)", "|u1")])
def test_a_shape_that_the_data_has_not_and_objects_are_refused(tmp_path, shape, descr):
    path = archive(tmp_path / "x.npz", x=member(shape, descr))
    with pytest.raises(ValueError):
        arrays.load(path)
    with pytest.raises(InputError, match="not a learned formula, or damaged"):
        learned.load(path)


def test_pickled_objects_are_not_read(tmp_path):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.array([{}], dtype=object))
    with pytest.raises(ValueError):
        arrays.load(archive(tmp_path / "x.npz", x=stream.getvalue()))
