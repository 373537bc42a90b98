"""Everything that runs a job: real or emulated GPU, recording, attribution, fitting, regression reports.

In a training script: ``from calibrate import PeakcastCallback, watch`` (:mod:`calibrate.training`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrate.training.callback import PeakcastCallback
    from calibrate.training.plain_loop import watch

__all__ = ["PeakcastCallback", "watch"]


def __getattr__(name: str) -> Any:
    """The two names, imported when they are used: one needs transformers."""
    if name == "PeakcastCallback":
        from calibrate.training.callback import PeakcastCallback

        return PeakcastCallback
    if name == "watch":
        from calibrate.training.plain_loop import watch

        return watch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
