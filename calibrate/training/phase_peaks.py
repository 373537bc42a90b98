"""The moment that is running, and the largest memory counters so far, without resetting PyTorch's counters.

PyTorch's peak counters belong to the user, so this module never resets them. Resets by the user, DeepSpeed or the
Trainer lose nothing (:class:`calibrate.job.peaks.Counters`). A moment therefore gets a row only if it raised a counter
above every earlier value. Counters that it raised hold its own peak; the other counters in the row hold the largest
value so far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calibrate.job import outermost_backward
from calibrate.job.peaks import COUNTERS, Counters
from calibrate.records.moment_peaks import MomentPeaks
from predictor.events.events import Moment


class RunningPeaks:
    """Collects one row for each moment that raised a counter."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.at: tuple[int, Moment] = (0, Moment.INIT)
        self._top = dict.fromkeys(COUNTERS, 0)
        self._rows: dict[tuple[int, Moment], dict[str, int]] = {}

    def enter(self, moment: Moment, step: int) -> None:
        """Assigns everything from now on to ``moment`` of ``step``."""
        self.look()
        self.at = (step, moment)

    def look(self) -> dict[str, int]:
        """PyTorch's statistics now, with the peaks of the whole process. An increase belongs to the running moment."""
        stats = self._counters.statistics()
        now = {name: stats.get(counter, 0) for name, counter in COUNTERS.items()}
        if any(now[name] > self._top[name] for name in COUNTERS):
            self._top = now
            self._rows[self.at] = now
        return stats

    @property
    def top(self) -> dict[str, int]:
        """The largest values so far in bytes, by the names of :data:`calibrate.job.peaks.COUNTERS`."""
        return dict(self._top)

    def rows(self) -> tuple[MomentPeaks, ...]:
        """The rows in chronological order."""
        peaks = (MomentPeaks(step, moment, **values) for (step, moment), values in self._rows.items())
        return tuple(sorted(peaks, key=lambda row: row.order))


class Boundaries:
    """Calls back at the boundaries of a training step, from :meth:`open` to :meth:`close`.

    Boundaries are the begin and end of the outermost backward, the step of ZeRO's optimizer, and the call and return of
    the model.
    """

    def __init__(self, *, backward: Callable[[], None], after_backward: Callable[[], None],
                 step: Callable[[], None], called: Callable[[Any, tuple, dict], None],
                 returned: Callable[[Any, Any], None]) -> None:
        self._backward, self._after_backward, self._step = backward, after_backward, step
        self._called, self._returned = called, returned
        self._undo: list[Callable[[], None]] = []

    def open(self, model: Any, zero_optimizer: Any) -> None:
        """Installs the hooks. ``model`` and ``zero_optimizer`` may be None."""
        self._undo.append(outermost_backward.follow(self._backward, self._after_backward))
        if model is not None:
            handles = (model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
                       model.register_forward_hook(self._after_forward))
            self._undo += [handle.remove for handle in handles]
        if zero_optimizer is not None:
            original = zero_optimizer.step

            def step(*arguments, **options):
                self._step()
                return original(*arguments, **options)

            zero_optimizer.step = step
            self._undo.append(lambda: zero_optimizer.__dict__.pop("step", None))

    def close(self) -> None:
        """Removes the hooks."""
        while self._undo:
            self._undo.pop()()

    def _before_forward(self, model: Any, arguments: tuple, keywords: dict) -> None:
        self._called(model, arguments, keywords)

    def _after_forward(self, model: Any, arguments: tuple, output: Any) -> None:
        self._returned(model, output)


def zero_optimizer(optimizer: Any) -> Any:
    """DeepSpeed's ZeRO optimizer inside its wrappers; None without ZeRO."""
    while optimizer is not None:
        if type(optimizer).__module__.startswith("deepspeed.runtime"):
            return optimizer
        optimizer = getattr(optimizer, "optimizer", None)
    return None
