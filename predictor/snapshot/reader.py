"""Reads a snapshot file and checks every field that is used.

Source of the fields: ``torch/csrc/cuda/Module.cpp`` (``THCPModule_memorySnapshot``, PyTorch 2.1 to 2.11). Older
versions lack ``time_us``, ``user_metadata``, ``allocator_settings`` and blocks' ``address``; the reader fills them in.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from predictor.common.errors import InputError
from predictor.common.suggestions import file_name, quoted
from predictor.snapshot import unpickle
from predictor.snapshot.records import Action, Block, Segment, Snapshot, State, Trace

ACTIONS = {action.name.lower(): action for action in Action}
STATES = {state.value: state for state in State} | {"active_awaiting_free": State.PENDING}
LARGEST_INTEGER = (1 << 63) - 1
MOST_DEVICES = 1 << 10
TOTAL_BYTES = "device_total_memory"
"""A key that only peakcast writes: for each device its memory in bytes, or None. PyTorch's readers ignore it."""

NOTES_KEY = "peakcast"
"""A key that only ``peakcast measure`` writes: its notes about the history (``calibrate.job.side_notes``)."""

LARGEST_TOTAL_BYTES = 1 << 50


class Invalid(Exception):
    """A field is missing or has a value that PyTorch never writes. The message begins with the field's place."""


def read(path: str | os.PathLike[str], *, limit_bytes: int = unpickle.LARGEST_PICKLE_BYTES) -> Snapshot:
    """Reads a snapshot file, plain or compressed (xz, gzip, bzip2). It never runs code from the file.

    Args:
        path: the file.
        limit_bytes: the largest uncompressed size that is accepted.

    Raises:
        InputError: the file is not a snapshot, or a field in it is not as PyTorch writes it.
    """
    path = os.fspath(path)
    value, size_bytes = unpickle.load(path, limit_bytes=limit_bytes)
    try:
        _check_shared(value, size_bytes)
        return parse(value)
    except Invalid as error:
        raise InputError(f"{file_name(path)}: not a memory snapshot of PyTorch 2.1 or later: {error}") from None


def parse(value: Any) -> Snapshot:
    """Converts the dictionary of ``torch.cuda.memory._snapshot()``.

    Raises:
        Invalid: a field is missing or wrong.
    """
    if not isinstance(value, dict):
        raise Invalid(f"it holds {_type_text(value)}, not a dictionary")
    segments = [_segment(item, f"segments[{i}]") for i, item in enumerate(_list(value, "segments", ""))]
    traces = _list(value, "device_traces", "")
    if len(traces) > MOST_DEVICES:
        raise Invalid(f"device_traces lists {len(traces):,} devices")
    settings = value.get("allocator_settings", {})
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        raise Invalid("allocator_settings is not a dictionary of names")
    _check_overlaps(segments)
    return Snapshot(tuple(segments), tuple(_trace(trace, f"device_traces[{i}]") for i, trace in enumerate(traces)),
                    settings, _total_bytes(value.get(TOTAL_BYTES, []), len(traces)), value.get(NOTES_KEY))


SHORTEST_BYTES = 16
"""Bytes of a pickle that a block or an entry takes at least: keys and values of two bytes each, four of both."""
FEW = 100_000
"""Blocks and entries that take no time, even if they are all the same one."""


def _check_shared(value: Any, size_bytes: int) -> None:
    """Rejects a pickle that refers to the same lists, blocks or entries many times; a reference takes two bytes."""
    def listed(item: Any, key: str) -> list[Any]:
        items = item.get(key) if isinstance(item, dict) else None
        return items if isinstance(items, list) else []

    lists = [listed(segment, "blocks") for segment in listed(value, "segments")]
    lists += [trace for trace in listed(value, "device_traces") if isinstance(trace, list)]
    items = sum(map(len, lists))
    if items * SHORTEST_BYTES > size_bytes or (items > FEW and _distinct(lists, items) < items):
        raise Invalid(f"its lists hold {items:,} blocks and entries, and refer to the same ones again and again")


def _distinct(lists: list[list[Any]], items: int) -> int:
    """How many different objects the lists hold. PyTorch writes a dictionary of its own for each block and entry."""
    return len(np.unique(np.fromiter(map(id, chain.from_iterable(lists)), np.int64, items)))


def _total_bytes(value: Any, devices: int) -> dict[int, int]:
    if not isinstance(value, list) or len(value) > devices:
        raise Invalid(f"{TOTAL_BYTES} must be a list with a number for each device, not {quoted(value)}")
    for number, size in enumerate(value):
        if size is not None and (type(size) is not int or not 1 <= size <= LARGEST_TOTAL_BYTES):
            raise Invalid(f"{TOTAL_BYTES}[{number}] must be a whole number from 1 to 2^50, or None, not {quoted(size)}")
    return {number: size for number, size in enumerate(value) if size is not None}


def _segment(item: Any, where: str) -> Segment:
    address, size = _integer(item, "address", where, 1), _integer(item, "total_size", where, 1)
    blocks, end = [], address
    for number, block in enumerate(_list(item, "blocks", where)):
        blocks.append(_block(block, f"{where}.blocks[{number}]", end))
        end += blocks[-1].size
    if end != address + size:
        raise Invalid(f"{where}: its blocks come to {end - address:,} bytes, its total_size is {size:,}")
    pool = item.get("segment_type")
    if pool not in ("small", "large"):
        raise Invalid(f'{where}.segment_type must be "small" or "large", not {quoted(pool)}')
    pool_id = item.get("segment_pool_id", (0, 0))
    if not isinstance(pool_id, (tuple, list)) or len(pool_id) != 2 or not all(type(i) is int for i in pool_id):
        raise Invalid(f"{where}.segment_pool_id must be two integers, not {quoted(pool_id)}")
    expandable = item.get("is_expandable", False)
    if not isinstance(expandable, bool):
        raise Invalid(f"{where}.is_expandable must be true or false, not {quoted(expandable)}")
    return Segment(_integer(item, "device", where), address, size, _integer(item, "stream", where), pool,
                   (pool_id[0], pool_id[1]), expandable, tuple(blocks))


def _block(item: Any, where: str, address: int) -> Block:
    size = _integer(item, "size", where, 1)
    if item.get("address", address) != address:
        raise Invalid(f"{where}.address is {quoted(item['address'])}, but the block before it ends at {address}")
    state = item.get("state")
    if not isinstance(state, str) or state not in STATES:
        raise Invalid(f"{where}.state must be one of {', '.join(STATES)}, not {quoted(state)}")
    requested = _integer(item, "requested_size", where)
    if requested > size and STATES[state] is not State.FREE:
        raise Invalid(f"{where}: requested_size {requested:,} is more than size {size:,}")
    return Block(address, size, requested, STATES[state], item.get("frames", ()))


def _check_overlaps(segments: Sequence[Segment]) -> None:
    order = sorted(segments, key=lambda segment: (segment.device, segment.address))
    for lower, upper in zip(order, order[1:]):
        if lower.device == upper.device and upper.address < lower.end:
            raise Invalid(f"the segments at {lower.address:#x} and {upper.address:#x} overlap")


def _trace(entries: Any, where: str) -> Trace:
    if not isinstance(entries, list):
        raise Invalid(f"{where} is {_type_text(entries)}, not a list")
    if set(map(type, entries)) - {dict}:
        raise _first_wrong(entries, where, "", lambda entry: type(entry) is dict, "a dictionary")
    names = [entry.get("action") for entry in entries]
    if set(map(type, names)) - {str} or set(names) - ACTIONS.keys():
        raise _first_wrong(names, where, ".action", lambda name: isinstance(name, str) and name in ACTIONS,
                     "one of " + ", ".join(ACTIONS))
    absent = {ACTIONS["oom"]: "device_free", ACTIONS["user_defined"]: None, ACTIONS["snapshot"]: None}
    actions = [ACTIONS[name] for name in names]
    addresses = [entry.get(key) if (key := absent.get(action, "addr")) else 0
                 for entry, action in zip(entries, actions)]
    metadata = [entry.get("user_metadata", "") for entry in entries]
    if set(map(type, metadata)) - {str}:
        raise _first_wrong(metadata, where, ".user_metadata", lambda text: isinstance(text, str), "text")
    return Trace(
        action=np.array(actions, dtype=np.int8), address=_column(addresses, where, "addr"),
        size=_column([entry.get("size") for entry in entries], where, "size"),
        stream=_column([entry.get("stream") for entry in entries], where, "stream"),
        time_us=_column([entry.get("time_us", 0) for entry in entries], where, "time_us"),
        raw_frames=tuple(entry.get("frames", ()) for entry in entries), user_metadata=tuple(metadata))


def _column(values: list[Any], where: str, key: str) -> np.ndarray:
    def is_valid(value: Any) -> bool:
        return type(value) is int and 0 <= value <= LARGEST_INTEGER

    if set(map(type, values)) - {int} or values and not (min(values) >= 0 and max(values) <= LARGEST_INTEGER):
        raise _first_wrong(values, where, f".{key}", is_valid, "a whole number from 0 to 2^63 - 1")
    return np.array(values, dtype=np.int64)


def _first_wrong(values: Sequence[Any], where: str, key: str, is_valid: Callable[[Any], bool],
                 expected: str) -> Invalid:
    index = next(i for i, value in enumerate(values) if not is_valid(value))
    return Invalid(f"{where}[{index}]{key} must be {expected}, not {quoted(values[index])}")


def _list(item: Any, key: str, where: str) -> list[Any]:
    value = _get(item, key, where)
    if not isinstance(value, list):
        raise Invalid(f"{_place(where, key)} is {_type_text(value)}, not a list")
    return value


def _integer(item: Any, key: str, where: str, least: int = 0) -> int:
    value = _get(item, key, where)
    if type(value) is not int or not least <= value <= LARGEST_INTEGER:
        raise Invalid(f"{_place(where, key)} must be a whole number from {least} to 2^63 - 1, not {quoted(value)}")
    return value


def _get(item: Any, key: str, where: str) -> Any:
    if not isinstance(item, Mapping):
        raise Invalid(f"{where} is {_type_text(item)}, not a dictionary")
    if key not in item:
        raise Invalid(f"{_place(where, key)} is missing")
    return item[key]


def _place(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _type_text(value: Any) -> str:
    return {dict: "a dictionary", list: "a list", tuple: "a tuple", str: "text", type(None): "nothing"}.get(
        type(value), f"a value of type {type(value).__name__}")
