"""PyTorch's memory history of a training, where the user asks for it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import write_whole

RECORDS = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")
"""Functions of ``torch._C`` through which everybody begins and ends a history (torch 2.11)."""


class History:
    """Records from its making on; one that somebody else records, before or later, is read and left running."""

    def __init__(self) -> None:
        import torch

        torch.cuda.init()
        self._mine, self._ended = not torch._C._cuda_isHistoryEnabled(), False
        if self._mine:
            torch.cuda.memory._record_memory_history(context="alloc", stacks="python")
        self._originals = {name: getattr(torch._C, name) for name in RECORDS}
        self._noticed = {name: self._noticing(original) for name, original in self._originals.items()}
        for name, function in self._noticed.items():
            setattr(torch._C, name, function)

    def _noticing(self, original: Callable[..., None]) -> Callable[..., None]:
        def record(enabled: Any, *arguments: Any) -> None:
            original(enabled, *arguments)
            self._mine, self._ended = False, not enabled  # it is the training's own from now on

        return record

    def save(self, path: str) -> None:
        """Write what ``torch.cuda.memory._dump_snapshot`` would, whole or not at all, and stop.

        Raises:
            InputError: it cannot be written, or the training ended it.
        """
        import torch

        if self._ended:
            raise InputError(f"no snapshot {path}: the training itself called torch.cuda.memory._record_memory_history("
                             "None), which empties the history; leave that out, or call it after the snapshot")
        snapshot = torch.cuda.memory._snapshot()
        self.stop()
        write_whole(path, pickle.dumps(snapshot))

    def stop(self) -> None:
        """Record no more, unless somebody else does; the last function that was put in place goes first."""
        import torch

        for name, original in self._originals.items():
            if getattr(torch._C, name) is self._noticed[name]:
                setattr(torch._C, name, original)
        if self._mine:
            torch.cuda.memory._record_memory_history(None)
            self._mine = False
