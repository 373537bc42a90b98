"""Peaks of PyTorch's memory counters by moment and step. They survive resets of the counters by any code."""

from __future__ import annotations

from calibrate.records.moment_peaks import MomentPeaks
from predictor.events.events import Moment

COUNTERS = {
    "requested_bytes": "requested_bytes.all.peak",
    "allocated_bytes": "allocated_bytes.all.peak",
    "reserved_bytes": "reserved_bytes.all.peak",
}
"""A record's name of a counter -> its name in ``torch.cuda.memory_stats``."""

RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
"""Functions of ``torch._C`` that every reset of the peak counters goes through (torch 2.11)."""


class Counters:
    """The allocator's statistics of one device, with peaks that survive a reset by any code.

    DeepSpeed resets the peak counters during its start-up (0.19.8: runtime/utils.py, ``empty_cache`` and
    ``see_memory_usage``), and so do scripts. Their values are saved before each reset.
    """

    def __init__(self, device: int) -> None:
        import torch

        self._torch, self._device = torch, device
        self._since_take: dict[str, int] = {}
        self._overall: dict[str, int] = {}
        self._originals = {name: getattr(torch._C, name) for name in RESETS if hasattr(torch._C, name)}
        self._resets = {name: self._saving_reset(original) for name, original in self._originals.items()}
        for name, reset in self._resets.items():
            setattr(torch._C, name, reset)

    def _saving_reset(self, original):
        def reset(*arguments):
            self._save()
            return original(*arguments)

        return reset

    def _save(self) -> dict[str, int]:
        stats = self._torch.cuda.memory_stats(self._device) if self._torch.cuda.is_initialized() else {}
        for name, value in stats.items():
            if name.endswith(".peak"):
                for peaks in (self._since_take, self._overall):
                    peaks[name] = max(value, peaks.get(name, 0))
        return stats

    def take(self) -> dict[str, int]:
        """Peaks in bytes since the last call, by the names of :data:`COUNTERS`. Resets the counters."""
        self._save()
        taken = {name: self._since_take.get(counter, 0) for name, counter in COUNTERS.items()}
        self._since_take = {}
        if self._torch.cuda.is_initialized():
            self._originals[RESETS[0]](self._device)
        return taken

    def statistics(self) -> dict[str, int]:
        """``torch.cuda.memory_stats`` now, with the peaks of the whole process."""
        return {**self._save(), **self._overall}

    def release(self) -> None:
        """Restore PyTorch's functions, where other code has not wrapped them again."""
        for name, original in self._originals.items():
            if getattr(self._torch._C, name) is self._resets[name]:
                setattr(self._torch._C, name, original)


class MomentLog:
    """Peaks by moment and step, from the boundaries that the loop announces."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._at: tuple[int, Moment] | None = None
        self._rows: dict[tuple[int, Moment], dict[str, int]] = {}

    def enter(self, moment: Moment, step: int) -> None:
        """Assigns everything from now on to ``moment`` of ``step``. A moment may come again."""
        self.close()
        self._at = (step, moment)

    @property
    def at(self) -> tuple[int, Moment]:
        """The running step and moment."""
        return self._at or (0, Moment.INIT)

    def close(self) -> tuple[MomentPeaks, ...]:
        """All rows so far in chronological order, including the running one."""
        taken = self._counters.take()
        if self._at is not None:
            row = self._rows.setdefault(self._at, dict.fromkeys(COUNTERS, 0))
            for name, value in taken.items():
                row[name] = max(row[name], value)
        rows = (MomentPeaks(step, moment, **row) for (step, moment), row in self._rows.items())
        return tuple(sorted(rows, key=lambda row: row.order))
