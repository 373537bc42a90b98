"""Runs and records jobs on a real or emulated GPU, and compares them with predictions.

In a training script: ``from calibrate import PeakcastCallback, watch`` (:mod:`calibrate.training`).

Known limitations:

- Training is recorded from inside Hugging Face's Trainer or the user's own PyTorch loop. Other trainers need
  ``peakcast learn`` or a Workload.
- A record holds the memory of one rank's GPU. Ranks of one process on several GPUs (``nn.DataParallel``) are rejected.
- An emulated GPU runs no kernels and moves no data between ranks. It shows allocations, not times or losses.
- Each subpackage lists its own limitations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrate.training.callback import PeakcastCallback
    from calibrate.training.plain_loop import watch

__all__ = ["PeakcastCallback", "watch"]


def __getattr__(name: str) -> Any:
    """Imports the two public names on first use, because ``PeakcastCallback`` needs transformers."""
    if name == "PeakcastCallback":
        from calibrate.training.callback import PeakcastCallback

        return PeakcastCallback
    if name == "watch":
        from calibrate.training.plain_loop import watch

        return watch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
