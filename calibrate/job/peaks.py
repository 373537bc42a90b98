"""The largest values of PyTorch's memory counters, by moment and step, whoever resets the counters."""

from __future__ import annotations

from calibrate.records.moment_peaks import MomentPeaks
from predictor.events.events import Moment

COUNTERS = {
    "requested_bytes": "requested_bytes.all.peak",
    "allocated_bytes": "allocated_bytes.all.peak",
    "reserved_bytes": "reserved_bytes.all.peak",
}
"""What a record calls a counter -> its name in ``torch.cuda.memory_stats``."""

RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
"""Functions of ``torch._C`` through which every reset of the peak counters goes (torch 2.11)."""


class Counters:
    """The allocator's statistics of one device, with peaks that survive a reset by anybody.

    DeepSpeed's start-up resets the peak counters (0.19.8: runtime/utils.py, ``empty_cache`` and
    ``see_memory_usage``), and scripts do as well. What they held is folded in before.
    """

    def __init__(self, device: int) -> None:
        import torch

        self._torch, self._device = torch, device
        self._since: dict[str, int] = {}
        self._ever: dict[str, int] = {}
        self._originals = {name: getattr(torch._C, name) for name in RESETS if hasattr(torch._C, name)}
        self._resets = {name: self._folding(original) for name, original in self._originals.items()}
        for name, reset in self._resets.items():
            setattr(torch._C, name, reset)

    def _folding(self, original):
        def reset(*arguments):
            self._fold()
            return original(*arguments)

        return reset

    def _fold(self) -> dict[str, int]:
        stats = self._torch.cuda.memory_stats(self._device) if self._torch.cuda.is_initialized() else {}
        for name, value in stats.items():
            if name.endswith(".peak"):
                for kept in (self._since, self._ever):
                    kept[name] = max(value, kept.get(name, 0))
        return stats

    def take(self) -> dict[str, int]:
        """Peaks since the last call, by the names of :data:`COUNTERS`; a new stretch begins."""
        self._fold()
        taken = {name: self._since.get(counter, 0) for name, counter in COUNTERS.items()}
        self._since = {}
        if self._torch.cuda.is_initialized():
            self._originals[RESETS[0]](self._device)
        return taken

    def statistics(self) -> dict[str, int]:
        """``torch.cuda.memory_stats`` now, its peaks those of the whole process."""
        return {**self._fold(), **self._ever}

    def release(self) -> None:
        """Fold no more; the last that was put in place goes first."""
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
        """What happens from now on belongs to ``moment`` of ``step``; a moment may come again."""
        self.close()
        self._at = (step, moment)

    @property
    def at(self) -> tuple[int, Moment]:
        """Step and moment that run now."""
        return self._at or (0, Moment.INIT)

    def close(self) -> tuple[MomentPeaks, ...]:
        """All rows so far, the running one included, as they happened."""
        taken = self._counters.take()
        if self._at is not None:
            row = self._rows.setdefault(self._at, dict.fromkeys(COUNTERS, 0))
            for name, value in taken.items():
                row[name] = max(row[name], value)
        rows = (MomentPeaks(step, moment, **row) for (step, moment), row in self._rows.items())
        return tuple(sorted(rows, key=lambda row: row.order))
