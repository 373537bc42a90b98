"""Hostile pickles: each is rejected in one line, without execution and without much memory."""

import bz2
import gzip
import lzma
import os
import pickle
import pickletools
import random
import resource
import subprocess
import sys

import pytest

from predictor.common.errors import InputError
from predictor.snapshot import opcodes, read, unpickle
from predictor.snapshot.recording import RecordingAllocator
from tests.attack.programs import ROOT
from tests.predictor.bounds import bounded_time

BLOCK = {"size": 512, "requested_size": 512, "state": "inactive"}
ENTRY = {"action": "alloc", "addr": 1, "size": 1, "stream": 0, "frames": []}


def small() -> bytes:
    """A snapshot of one allocation."""
    allocator = RecordingAllocator()
    allocator.malloc(1000)
    return pickle.dumps(allocator.snapshot(), protocol=4)


def message(tmp_path, data: bytes, **options) -> str:
    path = tmp_path / "x.pickle"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read(path, **options)
    text = str(caught.value)
    assert text.startswith(str(path)) and "\n" not in text and len(text) < 600
    return text


class Runs:
    """Unpickled by the ordinary unpickler, it makes a directory."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_something_is_refused_and_nothing_runs(tmp_path, protocol):
    mark = tmp_path / "was-run"
    text = message(tmp_path, pickle.dumps({"segments": [Runs(mark)], "device_traces": []}, protocol=protocol))
    assert "posix.mkdir" in text and "nothing in it was run" in text
    assert not mark.exists()
    pickle.loads(pickle.dumps(Runs(mark), protocol=protocol))
    assert mark.exists()  # so the test can tell


@pytest.mark.parametrize("code", [
    b"cos\nsystem\n(S'true'\ntR.",  # GLOBAL, REDUCE
    b"(S'true'\nios\nsystem\n.",  # INST
    b"(cos\nsystem\nS'true'\no.",  # OBJ
    b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",  # STACK_GLOBAL
    b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
    b"\x80\x02ccollections\nOrderedDict\n)\x81}b.",  # NEWOBJ, BUILD
    b"\x80\x04Pname\n.", b"\x80\x04\x8c\x04nameQ.",  # persistent ids
    b"\x80\x02\x82\x07.",  # an extension code
    b"\x80\x05\x97.",  # a buffer from outside
], ids=repr)
def test_every_way_to_something_else_is_refused(tmp_path, code):
    assert "no snapshot does" in message(tmp_path, code) or "not a pickle" in message(tmp_path, code)


def test_what_is_cut_off_anywhere_is_refused(tmp_path):
    data = small()
    for length in range(len(data)):
        message(tmp_path, data[:length])


@pytest.mark.parametrize("seed", range(300))
def test_damaged_bytes_never_raise_anything_else(tmp_path, seed):
    chance = random.Random(seed)
    data = bytearray(small())
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path = tmp_path / "x.pickle"
    path.write_bytes(data)
    try:
        read(path)
    except InputError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("code", [
    b"\x80\x04]r\xff\xff\xff\x7f.",  # a memo index of 2^31
    b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b"x.",  # a bytearray of a TiB
    b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"x.",  # bytes of a TiB
    b"\x80\x04\x95" + (1 << 40).to_bytes(8, "little") + b"x.",  # a frame of a TiB
], ids=["memo", "bytearray", "bytes", "frame"])
def test_a_few_bytes_that_ask_for_much_memory_are_refused(tmp_path, code):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    message(tmp_path, code)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < (1 << 19)  # KiB
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress, bz2.compress])
def test_what_unpacks_to_too_much_is_refused(tmp_path, pack):
    assert "is larger than 1,000,000 bytes uncompressed" in message(
        tmp_path, pack(bytes(20_000_000)), limit_bytes=1_000_000)


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress, bz2.compress])
def test_damaged_compression_is_refused(tmp_path, pack):
    data = pack(small())
    message(tmp_path, data[: len(data) // 2])
    message(tmp_path, data[:20] + bytes(20) + data[40:])


@pytest.mark.parametrize("data, expected", [
    (b"", "is empty"),
    (b'{"segments": []}', "not a pickle"),
    (b"PK\x03\x04" + bytes(100), "zip archive"),
    (pickle.dumps(None), "it holds nothing, not a dictionary"),
    (pickle.dumps([1]), "it holds a list, not a dictionary"),
    (pickle.dumps({}), "segments is missing"),
    (pickle.dumps({"segments": []}), "device_traces is missing"),
    (pickle.dumps({"segments": {}, "device_traces": []}), "segments is a dictionary, not a list"),
    (pickle.dumps({"segments": [], "device_traces": [[]] * 2000}), "lists 2,000 devices"),
], ids=str)
def test_what_is_no_snapshot_is_told_so(tmp_path, data, expected):
    assert expected in message(tmp_path, data)


def test_a_list_inside_itself_is_no_trouble(tmp_path):
    loop = []
    loop.append(loop)
    assert "segments[0] is a list" in message(tmp_path, pickle.dumps({"segments": loop, "device_traces": []}))


def test_missing_files_and_directories_are_told(tmp_path):
    for path, expected in ((tmp_path / "none", "no such file"), (tmp_path, "is a directory"), ("a\0b", "cannot be read")):
        with pytest.raises(InputError, match=expected):
            read(path)


def test_the_limit_holds_for_plain_files_too(tmp_path):
    assert "is larger than" in message(tmp_path, small(), limit_bytes=100)


def test_only_plain_data_is_built():
    assert unpickle._Plain.__mro__[1] is pickle.Unpickler  # the C one: its opcodes reach classes by find_class only
    names = {opcode.name for opcode, _, _ in pickletools.genops(small())}
    assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"}


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is no regular file: write the snapshot into one"):
        read(tmp_path / "pipe")


REPLAYED = """
import sys
from predictor.cli import main
from tests.attack.judge import peak_bytes
print(main(["replay", sys.argv[1]]), peak_bytes())
"""
"""Prints the exit code and the highest resident memory of a process of its own: this one has imported more."""


@pytest.mark.parametrize("content", [
    bytes(64 << 20),
    pickle.dumps({"segments": [], "device_traces": [[]], "x": "a" * (64 << 20)}),
    b"\x80\x04(" + b"]" * (64 << 20) + b"t.",
    pickle.dumps({"segments": [], "device_traces": [[ENTRY | {"user_metadata": "a" * 60_000 + str(i)} for i in range(1000)]]}),
], ids=["zeros", "text", "lists", "texts"])
def test_a_bomb_takes_little_memory(tmp_path, content):
    path = tmp_path / "x.pickle"
    path.write_bytes(gzip.compress(content))
    del content
    done = subprocess.run([sys.executable, "-c", REPLAYED, str(path)], cwd=ROOT, capture_output=True, text=True)
    code, peak_bytes = map(int, done.stdout.split())
    assert code == 2 and done.stderr.count("\n") == 1
    assert peak_bytes < 300 << 20


def test_what_unpacks_to_far_more_than_its_size_is_refused(tmp_path):
    data = lzma.compress(pickle.dumps({"segments": [], "device_traces": [[dict(ENTRY) for _ in range(1_000_000)]]}))
    assert "unpacks to more than 100 times its size, as no snapshot does: if it is one, unpack it first" in message(
        tmp_path, data)


def test_a_text_that_no_snapshot_has_is_refused_before_it_is_read(tmp_path):
    assert "it has a text of 4,294,967,295 bytes, and no snapshot has one of more than 1 MiB" in message(
        tmp_path, b"\x80\x04}X\xff\xff\xff\xff" + bytes(2000))


def shared(depth: int = 30) -> list:
    """Ten elements, each of which is the list before."""
    value = ["x" * 1000]
    for _ in range(depth):
        value = [value] * 10
    return value



@pytest.mark.parametrize("value, expected", [
    ({"segments": [], "device_traces": [[ENTRY] * 100_000] * 1000}, "refer to the same ones again and again"),
    ({"segments": [{"address": 1, "total_size": 1, "blocks": [BLOCK] * 100_000}] * 1000, "device_traces": []},
     "refer to the same ones again and again"),
    ({"segments": [], "device_traces": [[ENTRY] * 5_000_000]}, "refer to the same ones again and again"),
    ({"segments": [], "device_traces": [[ENTRY] * 200_000], "x": [f"{n:1000}" for n in range(4000)]}, "refer to the same ones again and again"),
    ({"segments": [{"address": shared()}], "device_traces": []}, "segments[0].address must be a whole number"),
    ({"segments": [], "device_traces": [[{"action": shared()}]]}, "device_traces[0][0].action must be one of"),
], ids=["traces", "blocks", "entries", "entries beside others", "address", "action"])
def test_what_refers_to_itself_again_and_again_is_refused_and_not_walked(tmp_path, value, expected):
    with bounded_time():
        assert expected in message(tmp_path, pickle.dumps(value, protocol=4))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", [
    {((1, 2), 3): 3}, {("x",): 1}, [("x", 1)], [(1, [2])], [SHARED := (1, 2), {"a": [], (SHARED, SHARED): 3}]], ids=str)
def test_tuples_of_other_than_numbers_are_refused(tmp_path, value, protocol):
    assert "in a way that no snapshot does" in message(tmp_path, pickle.dumps(value, protocol=protocol))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("pool", [(0, 0), (1 << 40, 3)], ids=str)
def test_pools_of_any_id_are_read_in_every_protocol(tmp_path, pool, protocol):
    segment = {"device": 0, "address": 1, "total_size": 512, "stream": 0, "segment_type": "small", "blocks": [BLOCK]}
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment | {"segment_pool_id": pool}], "device_traces": [[]]}, protocol))
    assert read(path).segments[0].pool_id == pool


@pytest.mark.parametrize("step", [1, 7, 1000, 1 << 20])
def test_opcodes_are_checked_in_pieces_of_any_length(tmp_path, step):
    data = pickle.dumps([list(range(2000)), [(1, 2), (1 << 30, 3)] * 9, "x" * 300, "y" * 70_000, {"a": None}], 4)
    checked = opcodes.Checked()
    pieces = [checked.add(data[i:i + step], last=False) for i in range(0, len(data), step)]
    assert b"".join([*pieces, checked.add(b"", last=True)]) == data


@pytest.mark.parametrize("code", [
    b"\x80\x04}(\x8c\x01x\x85" + b"".join(b"\x94h%c\x86" % n for n in range(40)) + b"K\x01u.",
    b"\x80\x04}(\x8c\x01x\x85" + b"2\x86" * 40 + b"K\x01u.",  # what is on top, twice
    b"\x80\x04}\x8c\x01x\x85" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(40)) + b"K\x01s.",
    b"\x80\x04\x8f(\x8c\x01x\x85" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(40)) + b"\x90.",  # of a set
], ids=["memoized", "doubled", "put", "set"])
def test_a_key_that_takes_for_ever_to_hash_is_refused(tmp_path, code):
    with bounded_time():
        assert "no snapshot" in message(tmp_path, code)


def test_frames_and_texts_beyond_any_recording_are_left_out(tmp_path):
    frame = {"filename": "a.py", "line": 1, "name": "f"}
    entry = ENTRY | {"frames": [frame] * 10_000, "user_metadata": '{"moment": "' + "x" * 100_000 + '"}'}
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[entry]]}))
    trace = read(path).traces[0]
    assert len(trace.frames(0)) == 1000 and trace.metadata(0) is None
