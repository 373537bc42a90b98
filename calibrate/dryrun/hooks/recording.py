"""Shares PyTorch's memory history between the dry run, which needs all of it, and the script, which may use it too.

PyTorch keeps one history per device, and a new recording changes or empties it (torch 2.11,
c10/cuda/CUDACachingAllocator.cpp, ``recordHistory``). So the real history belongs to the dry run, which empties it each
time it reads it. Before that, the entries that the script asked for are copied, and the script's calls are answered
from the copies.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from calibrate.dryrun.hooks import tags
from calibrate.job import outermost_backward

DEVICE = 0
"""Index of the only GPU that a dry run shows to its process."""
OURS = (str(Path(__file__).parent), outermost_backward.__file__)
"""Files whose frames are on the stack only because of the dry run."""
ALLOCATING = ("alloc", "segment_alloc", "segment_map")
"""Actions that begin the life of a block or a segment."""


class HistoryRequest(NamedTuple):
    """Arguments of ``torch._C._cuda_record_memory_history`` in PyTorch 2.14, in its order.

    Older releases take the first 4 (until 2.6, where only the end of a recording clears the history), 7 (2.8) or 8 of
    them (2.11).
    """

    enabled: str | None
    context: str | None
    stacks: str
    max_entries: int
    clear: bool = False
    compile_context: bool = False
    annotations: bool = False
    skip_actions: tuple[str, ...] | list[str] = ()
    pinned_host_memory: bool = False
    cuda: bool = True


OWN_REQUEST = HistoryRequest("all", "alloc", "python", sys.maxsize)


class Ring:
    """The latest entries up to a number, as PyTorch's ``RingBuffer`` keeps them."""

    def __init__(self) -> None:
        self._entries: list[dict] = []
        self._next, self._capacity = 0, 1

    def begin(self, max_entries: int, clear: bool) -> None:
        """Set the largest number of entries. As in PyTorch, a smaller number drops nothing."""
        self._capacity = max(max_entries, 1)
        if clear:
            self._entries, self._next = [], 0

    def add(self, entry: dict) -> None:
        """Add an entry; if the ring is full, it replaces the oldest."""
        if len(self._entries) < self._capacity:
            self._entries.append(entry)
        else:
            self._entries[self._next] = entry
            self._next = (self._next + 1) % self._capacity

    def __iter__(self) -> Iterator[dict]:
        yield from self._entries[self._next:]
        yield from self._entries[:self._next]


def _of_any_pool(snapshot: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The binding that reads the history; until PyTorch 2.6 it does not take the pool."""
    def read(*arguments: Any) -> dict[str, Any]:
        try:
            return snapshot(*arguments)
        except TypeError:
            return snapshot()

    return read


class Recording:
    """Records from :meth:`begin` on. The script's calls are answered as soon as this object exists.

    Args:
        look: calls :meth:`take` before the script reads its history or changes the recording.
        keep_all: whether to keep everything for :meth:`end`.

    Attributes:
        state: the snapshot of the last :meth:`take`, which has the segments at that time.
    """

    def __init__(self, look: Callable[[], None], keep_all: bool = False) -> None:
        self._look = look
        self.state: dict[str, Any] = {}
        self._all_entries: list[dict] | None = [] if keep_all else None
        self._script_request: HistoryRequest | None = None
        self._script, self._annotations = Ring(), Ring()
        # keys of allocations that have no stack for the script; None: all
        self._without_stack: set[tuple[bool, int]] | None = None
        bindings: Any = torch._C
        record = bindings._cuda_record_memory_history
        accepted = len(re.findall(r"\barg\d+:", record.__doc__.partition("\n")[0]))
        self._clears = accepted > HistoryRequest._fields.index("clear")
        self._record: Callable[[HistoryRequest], None] = lambda request: record(*request[:accepted])
        self._snapshot: Callable[..., dict[str, Any]] = _of_any_pool(bindings._cuda_memorySnapshot)
        bindings._cuda_record_memory_history = self._record_for_script
        bindings._cuda_record_memory_history_legacy = self._record_for_script_legacy
        bindings._cuda_memorySnapshot = self._snapshot_for_script
        bindings._cuda_isHistoryEnabled = lambda: self._script_request is not None

    # calls of the dry run -----------------------------------------------------------------------

    def begin(self) -> None:
        """Start with an empty history, with all the details that the dry run and the script need together."""
        request = self._script_request or OWN_REQUEST
        if self._all_entries is not None:  # every entry needs the same type of stack
            request = request._replace(context=OWN_REQUEST.context, stacks=OWN_REQUEST.stacks)
        elif request.context != "all":
            request = request._replace(context=OWN_REQUEST.context)
        if not self._clears:
            self._record(request._replace(enabled=None, context=None))
        self._record(request._replace(enabled="all", max_entries=sys.maxsize, clear=True, skip_actions=[]))

    def take(self) -> list[dict]:
        """The entries since the last call. Empties the history."""
        self.state = snapshot = self._snapshot(None)
        self.begin()
        trace = snapshot["device_traces"][DEVICE]
        if self._all_entries is not None:
            self._all_entries += trace
        if self._without_stack is not None:
            self._copy_for_script(trace, self._without_stack)
        if self._script_request is not None:
            for annotation in snapshot.get("external_annotations", ()):
                self._annotations.add(annotation)
        return trace

    def end(self) -> dict[str, Any]:
        """The snapshot as if nobody had emptied or changed the history (``torch.cuda.memory._snapshot()``)."""
        self.take()
        snapshot = self._snapshot(None)
        snapshot["device_traces"][DEVICE] = self._all_entries
        return snapshot

    # calls of the script ------------------------------------------------------------------------

    def _record_for_script(self, *arguments: Any) -> None:
        torch.cuda.init()
        self._look()
        if self._without_stack is None:
            self._without_stack = {key for key, _ in _segments_and_blocks(self._snapshot(None)["segments"])}
        request = HistoryRequest(*arguments)
        try:
            self._record(request)  # raises an error for invalid arguments
            self._script_request = None if request.enabled is None else request
            max_entries = request.max_entries if request.enabled == "all" else 1
            for ring in (self._script, self._annotations):
                ring.begin(max_entries, request.clear or request.enabled is None)
        finally:
            self.begin()

    def _record_for_script_legacy(self, enabled: bool, record_context: bool, max_entries: int, trace_context: bool,
                                  cpp: bool, *rest: Any) -> None:
        """The function from before torch 2.1, with booleans instead of strings."""
        context = "alloc" if trace_context else "state" if record_context else None
        self._record_for_script("all" if enabled else None, context, "all" if cpp else "python", max_entries, *rest)

    def _snapshot_for_script(self, *arguments: Any) -> dict[str, Any]:
        if not torch.cuda.is_initialized():
            return self._snapshot(*arguments)
        self._look()
        snapshot = self._snapshot(*arguments)
        unseen = self._without_stack
        for key, part in _segments_and_blocks(snapshot["segments"]):
            part["frames"] = [] if unseen is None or key in unseen else _without_ours(part["frames"])
        if snapshot["device_traces"]:
            snapshot["device_traces"][DEVICE] = [dict(entry) for entry in self._script]
            snapshot["external_annotations"] = [dict(annotation) for annotation in self._annotations]
        return snapshot

    def _copy_for_script(self, trace: Iterable[dict], without_stack: set[tuple[bool, int]]) -> None:
        """Copy the entries that the script asked for, in the form in which PyTorch would have recorded them for it."""
        context = self._script_request.context if self._script_request else None
        for entry in trace:
            key = entry["action"].startswith("segment"), entry.get("addr", 0)
            if entry["action"] in ALLOCATING:
                (without_stack.discard if context else without_stack.add)(key)
            if self._script_request is None or entry["action"] in self._script_request.skip_actions:
                continue
            entry = dict(entry)
            if "user_metadata" in entry:
                entry["user_metadata"] = tags.split(entry["user_metadata"])[1]
            frames = entry.pop("frames", None)
            if frames is not None and (context == "all" or context == "alloc" and key not in without_stack):
                entry["frames"] = _without_ours(frames)
            self._script.add(entry)


def _segments_and_blocks(segments: list[dict]) -> Iterator[tuple[tuple[bool, int], dict]]:
    """Segments and their blocks, each with a key that identifies it."""
    for segment in segments:
        yield (True, segment["address"]), segment
        for block in segment["blocks"]:
            yield (False, block["address"]), block


def _without_ours(frames: list[dict]) -> list[dict]:
    return [frame for frame in frames if not frame["filename"].startswith(OURS)]
