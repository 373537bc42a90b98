"""Keeps what a script allocated and freed, without stacks, so that other allocator settings can be played with it."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

SUFFIX = ".allocations"
MOST_ENTRIES = 2_000_000
"""Entries of a history that are kept: 50 MB. A longer history is not kept at all, as its end alone tells too little."""


class Allocations:
    """The entries of the whole history."""

    def __init__(self) -> None:
        self._actions: list[str] = []
        self._numbers = array("q")  # address (of a refusal: the memory that the device had free), size, stream
        self._state: Mapping[str, Any] = {}
        self.is_too_long = False

    def follow(self, trace: Iterable[Mapping[str, Any]], state: Mapping[str, Any]) -> None:
        """Add entries; ``state`` is the snapshot that PyTorch took with them."""
        self._state = state
        for entry in () if self.is_too_long else trace:
            self._actions.append(entry["action"])
            self._numbers.extend((entry["device_free" if entry["action"] == "oom" else "addr"], entry["size"],
                                  entry["stream"]))
        if len(self._actions) > MOST_ENTRIES:
            self.is_too_long = True
            self._actions, self._numbers = [], array("q")

    def write(self, path: str, device: int, total_bytes: int) -> None:
        """Write the history as a snapshot of PyTorch, which ``predictor.snapshot`` reads. Nothing if it is too long."""
        if self.is_too_long:
            return
        from predictor.snapshot.reader import TOTAL_BYTES  # only here: most runs have memory enough

        places = iter(self._numbers)
        trace = [{"action": action, "device_free" if action == "oom" else "addr": place, "size": size, "stream": stream}
                 for action, place, size, stream in zip(self._actions, places, places, places)]
        others = len(self._state["device_traces"]) - device - 1
        with open(path, "wb") as file:
            pickle.dump({"segments": self._state["segments"],
                         "allocator_settings": self._state["allocator_settings"],
                         "device_traces": [*([] for _ in range(device)), trace, *([] for _ in range(others))],
                         TOTAL_BYTES: [*(None for _ in range(device)), total_bytes, *(None for _ in range(others))]},
                        file)
