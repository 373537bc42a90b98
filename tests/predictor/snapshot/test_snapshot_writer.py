"""Exported histories: PyTorch's own readers open them, and find the same totals."""

import json
import pickle
import pickletools
import re

import numpy
import pytest
from torch.cuda import _memory_viz

from predictor.allocator import AllocatorSettings, OutOfMemory, SimulatedDriver
from predictor.common.errors import InputError
from predictor.events.events import Factor, Moment, Tag
from predictor.snapshot import Action, Metadata, read
from predictor.snapshot.reader import parse
from predictor.snapshot.recording import RecordingAllocator
from predictor.snapshot.replay import settings_of
from predictor.snapshot.writer import Entry, allocator_settings, snapshot_of, write

MIB = 1 << 20
WEIGHT = Tag(Factor.PARAMETERS, "model.lm_head", "zero::flatten", Moment.INIT, 0)
HIDDEN = Tag(Factor.ACTIVATIONS, "model.layers.3.mlp", "aten::mm", Moment.FORWARD, 1)

VIEWER_OPCODES = {
    "APPENDS", "BINGET", "BININT", "BININT1", "BININT2", "EMPTY_DICT", "EMPTY_LIST", "FRAME", "LONG1", "LONG_BINGET",
    "MARK", "MEMOIZE", "PROTO", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE2", "APPEND", "NEWFALSE", "BINPUT",
    "BINUNICODE", "EMPTY_TUPLE", "NEWTRUE", "NONE", "BINFLOAT", "TUPLE", "TUPLE1", "TUPLE3", "LONG_BINPUT", "LIST",
    "DICT", "SETITEM"}
"""What ``unpickle`` in torch/utils/viz/MemoryViz.js (PyTorch 2.11) reads."""


@pytest.fixture
def allocator() -> RecordingAllocator:
    """A weight of 30 MiB stays, an activation of 5,000,000 bytes comes and goes, 1,000 bytes stay; then OOM."""
    made = RecordingAllocator(driver=SimulatedDriver(100 * MIB))
    made.tag = WEIGHT
    made.malloc(30 * MIB)
    made.tag = HIDDEN
    hidden = made.malloc(5_000_000, stream=3)
    made.record_stream(hidden, 0)
    made.malloc(1000)
    made.free(hidden)
    with pytest.raises(OutOfMemory):
        made.malloc(80 * MIB)
    return made


def test_the_history_is_what_pytorch_would_record(allocator):
    assert [(entry.action.name, entry.size) for entry in allocator.entries] == [
        ("SEGMENT_ALLOC", 30 * MIB), ("ALLOC", 30 * MIB), ("SEGMENT_ALLOC", 20 * MIB), ("ALLOC", 5_000_000),
        ("SEGMENT_ALLOC", 2 * MIB), ("ALLOC", 1000), ("FREE_REQUESTED", 5_000_000), ("FREE_COMPLETED", 5_000_000),
        ("SEGMENT_FREE", 20 * MIB), ("OOM", 80 * MIB)]


def test_a_free_without_other_streams_completes_at_once():
    made = RecordingAllocator()
    made.free(made.malloc(1000))
    assert [entry.action for entry in made.entries][2:] == [Action.FREE_REQUESTED, Action.FREE_COMPLETED]


def test_pytorchs_summary_has_the_same_totals(allocator):
    text = _memory_viz.segsum(allocator.snapshot())
    assert "segments: 2\n" in text and "total_reserved: 32.0MiB\n" in text
    assert f"total_allocated: {_memory_viz.Bytes(30 * MIB + 1000)}\n" in text
    allocated = sum(map(_memory_viz.calc_active, allocator.snapshot()["segments"]))
    assert allocated == allocator.allocated_bytes == 30 * MIB + 1024


def test_pytorchs_trace_has_every_entry(allocator):
    text = _memory_viz.trace(allocator.snapshot())
    assert text.count(" = cudaMalloc(") == 3 and text.count("\ndel ") == 1 and text.count("cudaFree(") == 1
    assert "10 entries" in text and "raise OutOfMemoryError # 80.0MiB requested, 68.0MiB free in CUDA" in text


@pytest.mark.parametrize("plot", [
    _memory_viz.trace_plot, _memory_viz.segment_plot, lambda data: _memory_viz.trace_plot(data, plot_segments=True),
    lambda data: _memory_viz.trace_plot(data, filter_freed=True)])
def test_pytorchs_plots_are_made(allocator, plot):
    assert "MemoryViz.js" in plot(allocator.snapshot())


def test_pytorchs_flame_graph_shows_moment_factor_module_and_operator(allocator):
    lines = _memory_viz.memory(allocator.snapshot(), format_flamegraph=str.splitlines)
    assert ("stream_0;active_allocated;moment of step:0:init;factor:0:parameters;module:0:model.lm_head;"
            f"operator:0:zero::flatten {30 * MIB}") in lines


def test_the_viewer_can_read_every_opcode(allocator, tmp_path):
    path = tmp_path / "snapshot.pickle"
    write(str(path), allocator.snapshot())
    assert {opcode.name for opcode, _, _ in pickletools.genops(path.read_bytes())} <= VIEWER_OPCODES


def test_the_viewers_legend_is_of_factors_and_has_the_unknown_it_needs(allocator):
    trace = allocator.snapshot()["device_traces"][0]
    assert {entry["category"] for entry in trace if "category" in entry} == {"parameters", "activations", "unknown"}


def test_entries_of_one_place_share_their_frames(allocator):
    trace = allocator.snapshot()["device_traces"][0]
    assert trace[3]["frames"] is trace[5]["frames"]


def test_the_metadata_is_that_of_measured_histories(allocator):
    trace = parse(allocator.snapshot()).traces[0]
    assert trace.metadata(3) == Metadata("forward", 1, "model.layers.3.mlp", "aten::mm")
    assert json.loads(trace.user_metadata[3])["factor"] == "activations"


def test_moments_are_annotations_that_follow_each_other(allocator):
    marks = [(mark["name"], mark["stage"], mark["time_us"]) for mark in allocator.snapshot()["external_annotations"]]
    assert marks == [("init", "START", 1), ("init", "END", 3), ("step 1: forward", "START", 3),
                     ("step 1: forward", "END", 10)]


def test_what_is_written_is_read_back(allocator, tmp_path):
    path = tmp_path / "snapshot.pickle"
    write(str(path), allocator.snapshot(device=1))
    back = read(path)
    assert [len(trace) for trace in back.traces] == [0, 10]
    assert sum(segment.total_size for segment in back.segments_of(1)) == allocator.reserved_bytes
    assert sum(segment.active_size for segment in back.segments_of(1)) == allocator.active_bytes
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_where_writing_fails(tmp_path):
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        write(str(tmp_path / "none" / "x"), {})
    with pytest.raises((AttributeError, pickle.PicklingError)):
        write(str(tmp_path / "x"), {"segments": lambda: None})
    assert not list(tmp_path.iterdir())


def test_numbers_of_numpy_become_plain_ones():
    value = snapshot_of([], [Entry(Action.ALLOC, numpy.int64(512), numpy.int32(5), numpy.int8(0))])
    assert pickle.loads(pickle.dumps(value)) == value
    assert {type(v) for v in value["device_traces"][0][0].values()} == {str, int, list}


@pytest.mark.parametrize("conf", ["", "max_split_size_mb:64", "expandable_segments:True", "roundup_power2_divisions:8",
                                  "max_split_size_mb:128,garbage_collection_threshold:0.5"])
def test_settings_survive(conf):
    settings = AllocatorSettings.parse(conf)
    assert settings_of(allocator_settings(settings)) == settings
    assert re.fullmatch(r"[\w:.,\[\]>]*", allocator_settings(settings)["PYTORCH_CUDA_ALLOC_CONF"])


def test_the_devices_memory_is_told(allocator):
    assert parse(allocator.snapshot(device=2)).total_bytes == {2: 100 * MIB}
