"""Records PyTorch's memory history during a training, if the user wants it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import write_whole

RECORDS = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")
"""Functions of ``torch._C`` that every start and stop of a history goes through (torch 2.11)."""


class History:
    """Records from its construction on.

    A history that other code starts, before or after, is read and left running.
    """

    def __init__(self) -> None:
        import torch

        torch.cuda.init()
        self._is_ours, self._ended = not torch._C._cuda_isHistoryEnabled(), False
        if self._is_ours:
            torch.cuda.memory._record_memory_history(context="alloc", stacks="python")
        self._originals = {name: getattr(torch._C, name) for name in RECORDS}
        self._wrappers = {name: self._wrapper(original) for name, original in self._originals.items()}
        for name, function in self._wrappers.items():
            setattr(torch._C, name, function)

    def _wrapper(self, original: Callable[..., None]) -> Callable[..., None]:
        def record(enabled: Any, *arguments: Any) -> None:
            original(enabled, *arguments)
            self._is_ours, self._ended = False, not enabled  # from now on the history is the training's own

        return record

    def save(self, path: str) -> None:
        """Stops recording and writes what ``torch.cuda.memory._dump_snapshot`` would, whole or not at all.

        Raises:
            InputError: the file cannot be written, or the training ended the history.
        """
        import torch

        if self._ended:
            raise InputError(f"no snapshot {path}: the training itself called torch.cuda.memory._record_memory_history("
                             "None), which empties the history; leave that out, or call it after the snapshot")
        snapshot = torch.cuda.memory._snapshot()
        self.stop()
        write_whole(path, pickle.dumps(snapshot))

    def stop(self) -> None:
        """Stops recording unless other code records, and restores PyTorch's functions where nobody wrapped them again.
        """
        import torch

        for name, original in self._originals.items():
            if getattr(torch._C, name) is self._wrappers[name]:
                setattr(torch._C, name, original)
        if self._is_ours:
            torch.cuda.memory._record_memory_history(None)
            self._is_ours = False
