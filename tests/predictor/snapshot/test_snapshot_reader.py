"""Reading snapshots from every version of PyTorch since 2.1, and invalid fields."""

import bz2
import copy
import gzip
import json
import lzma
import pickle

import pytest

from predictor.common.errors import InputError
from predictor.snapshot import Action, Metadata, State, read
from predictor.snapshot.reader import Invalid, parse
from predictor.snapshot.records import Frame

MIB = 1 << 20
BASE = 0x7F0000000000
FRAMES = [{"name": "forward", "filename": "model.py", "line": 7}]


def snapshot() -> dict:
    """One small segment with a block in use; as PyTorch 2.11 writes it."""
    entry = {"stream": 0, "time_us": 5, "compile_context": "N/A", "user_metadata": "", "frames": FRAMES}
    blocks = [{"address": BASE, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": FRAMES},
              {"address": BASE + 1024, "size": 2 * MIB - 1024, "requested_size": 0, "state": "inactive", "frames": []}]
    segment = {"device": 0, "address": BASE, "total_size": 2 * MIB, "allocated_size": 1024, "active_size": 1024,
               "requested_size": 1000, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0),
               "is_expandable": False, "frames": [], "blocks": blocks}
    trace = [{"action": "segment_alloc", "addr": BASE, "size": 2 * MIB, **entry},
             {"action": "alloc", "addr": BASE, "size": 1000, **entry},
             {"action": "oom", "device_free": 7, "size": 1 << 40, **entry},
             {"action": "snapshot", "addr": 0, "size": 1024, **entry}]
    return {"segments": [segment], "device_traces": [trace, []], "external_annotations": [],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1}}


def test_segments_and_blocks():
    segment, = parse(snapshot()).segments
    assert (segment.address, segment.total_size, segment.pool, segment.end) == (BASE, 2 * MIB, "small", BASE + 2 * MIB)
    assert [(block.size, block.state) for block in segment.blocks] == [
        (1024, State.ALLOCATED), (2 * MIB - 1024, State.FREE)]
    assert (segment.allocated_size, segment.active_size) == (1024, 1024)


def test_the_history_as_columns():
    trace, empty = parse(snapshot()).traces
    assert trace.action.tolist() == [Action.SEGMENT_ALLOC, Action.ALLOC, Action.OOM, Action.SNAPSHOT]
    assert trace.address.tolist() == [BASE, BASE, 7, 0]
    assert trace.size.tolist() == [2 * MIB, 1000, 1 << 40, 1024]
    assert trace.time_us.tolist() == [5] * 4 and len(empty) == 0


def test_stacks_and_metadata_are_kept_for_later():
    value = snapshot()
    place = {"moment": "forward", "step": 2, "module": "model.layers.3", "operator": "aten::mm"}
    value["device_traces"][0][1]["user_metadata"] = json.dumps(place)
    trace = parse(value).traces[0]
    assert trace.frames(1) == (Frame("model.py", 7, "forward"),)
    assert trace.metadata(1) == Metadata("forward", 2, "model.layers.3", "aten::mm")
    assert trace.metadata(0) is None


@pytest.mark.parametrize("text", ["{", "{}", "[1]", "{" * 100_000, "step 7", '{"moment": 1}'])
def test_other_metadata_is_left_alone(text):
    value = snapshot()
    value["device_traces"][0][1]["user_metadata"] = text
    assert parse(value).traces[0].metadata(1) is None


def test_a_stack_that_is_none_is_empty():
    value = snapshot()
    value["device_traces"][0][1]["frames"] = [3, {"name": "f"}, {"name": 3, "filename": "", "line": 0}]
    value["device_traces"][0][0]["frames"] = 5
    trace = parse(value).traces[0]
    assert trace.frames(1) == trace.frames(0) == ()


def test_older_versions_lack_fields():
    value = snapshot()
    del value["allocator_settings"], value["external_annotations"], value["segments"][0]["segment_pool_id"]
    for entry in value["device_traces"][0]:
        for key in ("time_us", "user_metadata", "compile_context", "frames"):
            del entry[key]
    for block in value["segments"][0]["blocks"]:
        del block["address"]
    value["segments"][0]["blocks"][0]["state"] = "active_awaiting_free"
    read = parse(value)
    assert read.traces[0].time_us.tolist() == [0] * 4 and read.settings == {}
    assert [block.address for block in read.segments[0].blocks] == [BASE, BASE + 1024]
    assert read.segments[0].blocks[0].state is State.PENDING and read.segments[0].pool_id == (0, 0)


@pytest.mark.parametrize("pack", [bytes, lzma.compress, gzip.compress, bz2.compress])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_plain_and_compressed_files(tmp_path, pack, protocol):
    path = tmp_path / "snapshot"
    path.write_bytes(pack(pickle.dumps(snapshot(), protocol=protocol)))
    assert len(read(path).traces[0]) == 4


def change(*path_and_value):
    def apply(value):
        *path, last, new = path_and_value
        for key in path:
            value = value[key]
        if new is KeyError:
            del value[last]
        else:
            value[last] = new
    return apply


ENTRY, SEGMENT = ("device_traces", 0, 1), ("segments", 0)
BLOCK = (*SEGMENT, "blocks", 0)


@pytest.mark.parametrize("apply, expected", [
    (change("device_traces", 1, "x"), "device_traces[1] is text, not a list"),
    (change("device_traces", 0, 1, 3), "device_traces[0][1] must be a dictionary, not 3"),
    (change(*ENTRY, "action", "explode"), 'device_traces[0][1].action must be one of alloc, free_requested'),
    (change(*ENTRY, "action", ["alloc"]), "device_traces[0][1].action must be one of"),
    (change(*ENTRY, "addr", KeyError), "device_traces[0][1].addr must be a whole number from 0 to 2^63 - 1, not None"),
    (change(*ENTRY, "size", -1), "device_traces[0][1].size must be a whole number"),
    (change(*ENTRY, "size", True), "device_traces[0][1].size must be a whole number"),
    (change(*ENTRY, "size", 1e3), "device_traces[0][1].size must be a whole number"),
    (change(*ENTRY, "stream", 1 << 63), "device_traces[0][1].stream must be a whole number"),
    (change(*ENTRY, "time_us", "now"), "device_traces[0][1].time_us must be a whole number"),
    (change(*ENTRY, "user_metadata", b""), "device_traces[0][1].user_metadata must be text"),
    (change("device_traces", 0, 2, "device_free", KeyError), "device_traces[0][2].addr must be a whole number"),
    (change("allocator_settings", 3), "allocator_settings is not a dictionary of names"),
    (change("device_total_memory", 3), "device_total_memory must be a list with a number for each device, not 3"),
    (change("device_total_memory", [1] * 3), "device_total_memory must be a list with a number for each device"),
    (change("device_total_memory", [0]), "device_total_memory[0] must be a whole number from 1 to 2^50, or None"),
    (change(*SEGMENT, 3), "segments[0] is a value of type int, not a dictionary"),
    (change(*SEGMENT, "address", 0), "segments[0].address must be a whole number from 1"),
    (change(*SEGMENT, "total_size", 512), "its blocks come to 2,097,152 bytes, its total_size is 512"),
    (change(*SEGMENT, "blocks", KeyError), "segments[0].blocks is missing"),
    (change(*SEGMENT, "device", "cpu"), 'segments[0].device must be a whole number from 0 to 2^63 - 1, not "cpu"'),
    (change(*SEGMENT, "segment_type", "huge"), 'segments[0].segment_type must be "small" or "large", not "huge"'),
    (change(*SEGMENT, "segment_pool_id", (1,)), "segments[0].segment_pool_id must be two integers"),
    (change(*SEGMENT, "is_expandable", 1), "segments[0].is_expandable must be true or false"),
    (change(*BLOCK, "address", 5), "segments[0].blocks[0].address is 5, but the block before it ends at"),
    (change(*BLOCK, "size", 0), "segments[0].blocks[0].size must be a whole number from 1"),
    (change(*BLOCK, "state", "odd"), "segments[0].blocks[0].state must be one of active_allocated"),
    (change(*BLOCK, "requested_size", KeyError), "segments[0].blocks[0].requested_size is missing"),
    (change(*BLOCK, "requested_size", 2000), "requested_size 2,000 is more than size 1,024"),
])
def test_a_wrong_field_is_named(apply, expected):
    value = copy.deepcopy(snapshot())
    apply(value)
    with pytest.raises(Invalid) as caught:
        parse(value)
    assert expected in str(caught.value)


def test_segments_must_not_overlap():
    value = snapshot()
    value["segments"].append(value["segments"][0])
    with pytest.raises(Invalid, match="overlap"):
        parse(value)
    value["segments"][1] = dict(value["segments"][0], device=1)
    assert len(parse(value).segments_of(1)) == 1


def test_the_message_names_the_file(tmp_path):
    path = tmp_path / "x.pickle"
    value = snapshot()
    value["segments"][0]["segment_type"] = None
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(InputError, match="x.pickle: not a memory snapshot of PyTorch 2.1 or later: segments"):
        read(path)
