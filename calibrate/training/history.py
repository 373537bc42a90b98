"""PyTorch's memory history of a training, where the user asks for it."""

from __future__ import annotations

import pickle

from predictor.files import write_whole


class History:
    """Records from its making on; one that somebody else records is read and left running."""

    def __init__(self) -> None:
        import torch

        torch.cuda.init()
        self._mine = not torch._C._cuda_isHistoryEnabled()
        if self._mine:
            torch.cuda.memory._record_memory_history(context="alloc", stacks="python")

    def save(self, path: str) -> None:
        """Write what ``torch.cuda.memory._dump_snapshot`` would, whole or not at all, and stop.

        Raises:
            InputError: it cannot be written.
        """
        import torch

        snapshot = torch.cuda.memory._snapshot()
        self.stop()
        write_whole(path, pickle.dumps(snapshot))

    def stop(self) -> None:
        """Record no more."""
        import torch

        if self._mine:
            torch.cuda.memory._record_memory_history(None)
            self._mine = False
