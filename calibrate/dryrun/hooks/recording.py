"""PyTorch's memory history for two: the dry run, which needs all of it, and the script, which may ask for its own.

PyTorch keeps one history of a device, and whoever records anew changes or empties it (torch 2.11,
c10/cuda/CUDACachingAllocator.cpp, ``recordHistory``). So the real one is the dry run's, and is emptied at every look.
What the script asked for is kept from it before, and the script's calls are answered from there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from calibrate.job import outermost_backward

DEVICE = 0
"""A dry run shows its process one GPU."""
OURS = (str(Path(__file__).parent), outermost_backward.__file__)
"""Where the files are whose frames are on the stack only because it is a dry run."""
GIVEN = ("alloc", "segment_alloc", "segment_map")
"""What begins the life of a block or a segment."""


class Asked(NamedTuple):
    """Arguments of ``torch._C._cuda_record_memory_history``, in its order."""

    enabled: str | None
    context: str | None
    stacks: str
    most: int
    clear: bool = False
    compile_context: bool = False
    annotations: bool = False
    skipped: tuple[str, ...] | list[str] = ()


OWN = Asked("all", "alloc", "python", sys.maxsize)


class Ring:
    """The last so many entries, as PyTorch's ``RingBuffer`` keeps them."""

    def __init__(self) -> None:
        self._kept: list[dict] = []
        self._next, self._most = 0, 1

    def begin(self, most: int, clear: bool) -> None:
        """Keep so many from now on; a smaller number drops nothing, as with PyTorch's."""
        self._most = max(most, 1)
        if clear:
            self._kept, self._next = [], 0

    def add(self, entry: dict) -> None:
        """One entry, in place of the oldest if there is no room."""
        if len(self._kept) < self._most:
            self._kept.append(entry)
        else:
            self._kept[self._next] = entry
            self._next = (self._next + 1) % self._most

    def __iter__(self) -> Iterator[dict]:
        yield from self._kept[self._next:]
        yield from self._kept[:self._next]


class Recording:
    """Records from :meth:`begin` on; the script's calls are answered from the beginning.

    Args:
        look: calls :meth:`take`, before the script reads its history or changes what is recorded.
        whole: whether everything is kept for :meth:`end`.
    """

    def __init__(self, look: Callable[[], None], whole: bool = False) -> None:
        self._look = look
        self._everything: list[dict] | None = [] if whole else None
        self._asked: Asked | None = None
        self._script, self._annotations = Ring(), Ring()
        self._unseen: set[tuple[bool, int]] | None = None  # whose stacks the script did not ask for; None: all
        self._record, self._snapshot = torch._C._cuda_record_memory_history, torch._C._cuda_memorySnapshot
        torch._C._cuda_record_memory_history = self._asks
        torch._C._cuda_record_memory_history_legacy = self._asks_as_of_old
        torch._C._cuda_memorySnapshot = self._reads
        torch._C._cuda_isHistoryEnabled = lambda: self._asked is not None

    # what the dry run asks ----------------------------------------------------------------------

    def begin(self) -> None:
        """Record with nothing in the history: as much as the dry run and the script need together."""
        wants = self._asked or OWN
        if self._everything is not None:  # every stack is to be of the same kind
            wants = wants._replace(context=OWN.context, stacks=OWN.stacks)
        elif wants.context != "all":
            wants = wants._replace(context=OWN.context)
        self._record(*wants._replace(enabled="all", most=sys.maxsize, clear=True, skipped=[]))

    def take(self, wanted: bool) -> list[dict]:
        """What was recorded since the last call, if it is wanted; the history is empty then."""
        if not wanted and self._unseen is None and self._everything is None:
            self.begin()
            return []
        found = self._snapshot(None)
        self.begin()
        trace = found["device_traces"][DEVICE]
        if self._everything is not None:
            self._everything += trace
        if self._unseen is not None:
            self._keep(trace)
        if self._asked is not None:
            for annotation in found["external_annotations"]:
                self._annotations.add(annotation)
        return trace

    def end(self) -> dict[str, Any]:
        """What ``torch.cuda.memory._snapshot()`` would be if nobody had emptied or changed the history."""
        self.take(True)
        found = self._snapshot(None)
        found["device_traces"][DEVICE] = self._everything
        return found

    # what the script asks -----------------------------------------------------------------------

    def _asks(self, *arguments: Any) -> None:
        torch.cuda.init()
        self._look()
        if self._unseen is None:
            self._unseen = {key for key, _ in _held(self._snapshot(None)["segments"])}
        asked = Asked(*arguments)
        try:
            self._record(*asked)  # which says what is wrong with them
            self._asked = None if asked.enabled is None else asked
            for ring in (self._script, self._annotations):
                ring.begin(asked.most if asked.enabled == "all" else 1, asked.clear or asked.enabled is None)
        finally:
            self.begin()

    def _asks_as_of_old(self, enabled: bool, record_context: bool, most: int, trace_context: bool, cpp: bool,
                        *rest: Any) -> None:
        """The function before torch 2.1, with booleans for words."""
        context = "alloc" if trace_context else "state" if record_context else None
        self._asks("all" if enabled else None, context, "all" if cpp else "python", most, *rest)

    def _reads(self, *arguments: Any) -> dict[str, Any]:
        if not torch.cuda.is_initialized():
            return self._snapshot(*arguments)
        self._look()
        found = self._snapshot(*arguments)
        for key, part in _held(found["segments"]):
            part["frames"] = [] if self._unseen is None or key in self._unseen else _without_ours(part["frames"])
        if found["device_traces"]:
            found["device_traces"][DEVICE] = [dict(entry) for entry in self._script]
            found["external_annotations"] = [dict(annotation) for annotation in self._annotations]
        return found

    def _keep(self, trace: Iterable[dict]) -> None:
        """What the script asked for of a stretch, as PyTorch would have recorded it for the script alone."""
        context = self._asked.context if self._asked else None
        for entry in trace:
            key = entry["action"].startswith("segment"), entry.get("addr", 0)
            if entry["action"] in GIVEN:
                (self._unseen.discard if context else self._unseen.add)(key)
            if self._asked is None or entry["action"] in self._asked.skipped:
                continue
            entry = dict(entry)
            frames = entry.pop("frames", None)
            if frames is not None and (context == "all" or context == "alloc" and key not in self._unseen):
                entry["frames"] = _without_ours(frames)
            self._script.add(entry)


def _held(segments: list[dict]) -> Iterator[tuple[tuple[bool, int], dict]]:
    """Segments and the blocks in them, each with what it is known by."""
    for segment in segments:
        yield (True, segment["address"]), segment
        for block in segment["blocks"]:
            yield (False, block["address"]), block


def _without_ours(frames: list[dict]) -> list[dict]:
    return [frame for frame in frames if not frame["filename"].startswith(OURS)]
