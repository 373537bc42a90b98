"""Out-of-memory messages of every wording: what was printed is read back, up to PyTorch's rounding."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.common.errors import InputError
from predictor.oom import log
from predictor.oom.amounts import amount
from predictor.oom.message import Kind, Message, contains, find, words
from tests.predictor.oom import wordings
from tests.predictor.oom.wordings import WORDINGS, State, format_size

GIB = 1 << 30
SIZES = st.integers(0, 1 << 42) | st.integers(0, 2000) | st.sampled_from([1024, 1025, 1 << 20, (1 << 20) + 1, GIB, GIB + 1])
STATES = st.builds(
    State, device=st.integers(0, 15), requested=SIZES, capacity=SIZES, free=SIZES, allocated=SIZES, idle=SIZES,
    pools=SIZES, allowed=st.none() | SIZES, this_process=st.none() | SIZES,
    others=st.lists(st.tuples(st.integers(1, 1 << 22), SIZES), max_size=20).map(tuple))
CASES = [(version, wording) for version, functions in WORDINGS.items() for wording in functions]
STATE = State(0, 2 * GIB, 80 * GIB, GIB, 70 * GIB, 6 * GIB)


def the_one(text: str) -> Message:
    [message] = find(text)
    return message


@given(size=SIZES)
def test_a_size_is_read_back_up_to_its_rounding(size):
    assert amount(format_size(size)).may_be(size)
    assert size > 1024 or amount(format_size(size)).bytes == size


@pytest.mark.parametrize("version, wording", CASES, ids=[wording.__name__ for _, wording in CASES])
@given(width=st.integers(40, 200))
def test_a_message_that_a_terminal_broke_is_read_back(version, wording, width):
    text = f"RuntimeError: {wording(STATE)}"
    pasted = "\n".join(text[at : at + width] for at in range(0, len(text), width))
    assert pasted.count("\n") < 3 or replace(the_one(pasted), line=1) == replace(the_one(text), line=1)


@settings(max_examples=60)
@pytest.mark.parametrize("version, wording", CASES, ids=[wording.__name__ for _, wording in CASES])
@given(state=STATES, before=st.text(max_size=40), after=st.text(max_size=40))
def test_every_wording_is_read_back(version, wording, state, before, after):
    message = the_one(f"{before}\nRuntimeError: {wording(state)}\n{after}")
    assert (message.kind, message.wording, message.device) == (Kind.ALLOCATOR, version, state.device)
    for name in ("requested", "capacity", "free", "allocated", "reserved"):
        printed = getattr(message, name)
        hidden = state.pools if name == "allocated" and wording in (wordings.torch_2_1, wordings.torch_2_2) else 0
        assert abs(printed.bytes - getattr(state, name)) <= printed.rounding_bytes + hidden
    if wording not in (wordings.torch_2_1, wordings.torch_2_2):
        assert (message.allowed is None) == (state.allowed is None) or not message.allowed
    if wording is not wordings.torch_2_0:
        assert [process.pid for process in message.processes] == [pid for pid, _ in state.others]
        assert all(p.memory.may_be(size) for p, (_, size) in zip(message.processes, state.others))
        assert (message.this_process is None) == (state.this_process is None)


@given(state=STATES)
def test_free_blocks_of_private_pools_do_not_count_as_allocated(state):
    message = the_one(wordings.torch_2_11(state))
    assert message.allocated.may_be(state.allocated) and message.idle.may_be(state.idle)
    assert message.pools.may_be(state.pools) if state.pools else message.pools is None


@given(state=STATES)
def test_the_message_of_cuda_malloc_async_is_read_back(state):
    message = the_one(wordings.malloc_async(state))
    assert (message.kind, message.device, message.reserved) == (Kind.ASYNC_ALLOCATOR, state.device, None)
    for name in ("requested", "capacity", "free", "allocated"):
        assert getattr(message, name).may_be(getattr(state, name))


@given(length=st.integers(0, 400))
def test_a_message_that_was_cut_off_gives_what_is_left(length):
    text = wordings.torch_2_11(STATE)
    for message in find(text[:length]):
        assert message.requested == amount("2.00 GiB")
        assert message.capacity in (None, amount("80.00 GiB")) and message.free in (None, amount("1024.00 MiB"))


@given(text=st.text(st.sampled_from("CUDA out of memory. Tried to allocate 1.5 GiB;free\n:[rank0]") | st.characters(),
                    max_size=300))
def test_any_text_can_be_read(text):
    assert len(find(text)) <= len(text)


@pytest.mark.parametrize("text, library", [
    ("RuntimeError: CUDA error: out of memory", "CUDA"), ("CUDA driver error: out of memory", "CUDA"),
    ("ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'", "NCCL"),
    ("Cuda failure 'out of memory'", "NCCL"), ("host:1:1 [0] enqueue.cc:1085 NCCL WARN Cuda failure out of memory", "NCCL"),
    ("ncclUnhandledCudaError: Call to CUDA function failed. Last error: Failed to CUDA calloc async 608 bytes", "NCCL"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cuBLAS"),
])
def test_errors_of_libraries_name_the_library(text, library):
    assert (the_one(text).kind, the_one(text).wording) == (Kind.LIBRARY, library)


@pytest.mark.parametrize("text", ["", "all is well", "CUDA out of memory", "MemoryError: out of memory",
                                  "XPU out of memory. Tried to allocate 1.00 GiB.", "Tried to allocate 1.00 GiB"])
def test_other_texts_hold_no_message(text):
    assert not contains(text)


def test_the_bytes_that_nccl_asked_for_are_read():
    assert the_one("NCCL WARN Failed to CUDA malloc 10485760 bytes").requested.bytes == 10 << 20


@pytest.mark.parametrize("text", ["CUDA out of memory", "[rank1]: torch.OutOfMemoryError"])
def test_words_without_figures_are_found_as_such(text):
    [message] = words(f"step 1\n{text}\n")
    assert (message.kind, message.line, message.requested) == (Kind.WORDS, 2, None)


@pytest.mark.parametrize("text", ["", "MemoryError: out of memory", "XPU out of memory"])
def test_other_words_are_none_of_cuda(text):
    assert not words(text)


def test_a_size_in_bold_is_read():
    plain = wordings.torch_2_11(State(0, GIB, 8 * GIB, 0, 7 * GIB, 0))
    assert the_one(re.sub(r"([0-9.]+ [GM]iB)", r"**\1**", plain)) == the_one(plain)


def test_more_free_memory_than_any_gpu_has_is_unknown():
    assert the_one(wordings.torch_2_11(State(0, GIB, 8 * GIB, (1 << 64) - (20 << 20), 7 * GIB, 0))).free is None


def test_memory_that_nvml_does_not_know_is_unknown():
    message = the_one(wordings.torch_2_11(State(0, GIB, 8 * GIB, 0, 7 * GIB, 0, this_process=(1 << 64) - 1)))
    assert message.this_process is None


def test_a_request_that_no_gpu_has_is_a_message_without_numbers():
    message = the_one("CUDA out of memory. Tried to allocate more than 1EB memory.")
    assert (message.requested, message.capacity) == (None, None)


# --- logs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix, source", [
    ("[rank3]: ", "rank 3"), ("3: ", "rank 3"), (" 3: [rank3]: ", "rank 3"), ("[default3]:", "default 3"),
    ("[1,3]<stderr>: ", "rank 3"), ("(RayTrainWorker pid=123, ip=10.0.0.1) ", "process 123"), ("", "")])
def test_prefixes_name_the_process(prefix, source):
    text = "".join(f"{prefix}{line}\n" for line in ("Traceback (most recent call last):", wordings.torch_2_11(STATE)))
    assert (the_one(text).source, the_one(text).line) == (source, 2)


def test_interleaved_ranks_are_kept_apart():
    lines = [f"[rank{rank}]: {line}" for line in wordings.malloc_async(STATE).split("\n") for rank in (1, 0)]
    assert [(m.source, m.line, m.requested) for m in find("\n".join(lines))] == [
        ("rank 1", 1, amount("2.00 GiB")), ("rank 0", 2, amount("2.00 GiB"))]


def test_a_message_that_was_printed_twice_counts_once():
    text = f"ERROR {wordings.torch_2_11(STATE)}\nTraceback (most recent call last):\n" \
           f'  File "train.py", line 7, in main\nRuntimeError: {wordings.torch_2_11(STATE)}\n'
    message = the_one(text)
    assert (message.times, message.line, message.place.own.line) == (2, 1, 7)


def test_too_many_lines_are_refused(monkeypatch):
    monkeypatch.setattr(log, "MOST_LINES", 10)
    with pytest.raises(InputError, match="more than 10 lines"):
        find("\n" * 10)
