"""Which moment runs, and the largest counters so far, without a reset of PyTorch's.

PyTorch's peak counters belong to the user: nothing here resets them, and what the user, DeepSpeed or the Trainer
resets is kept before (:class:`calibrate.job.peaks.Counters`). So a moment is known by what it adds: it has a row if it
raised a counter above all before it, and that counter's value is its own largest; the others in the row are the
largest so far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calibrate.job import outermost_backward
from calibrate.job.peaks import COUNTERS, Counters
from calibrate.records.moment_peaks import MomentPeaks
from predictor.events.events import Moment


class RunningPeaks:
    """Rows of the moments that raised a counter."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.at: tuple[int, Moment] = (0, Moment.INIT)
        self._top = dict.fromkeys(COUNTERS, 0)
        self._rows: dict[tuple[int, Moment], dict[str, int]] = {}

    def enter(self, moment: Moment, step: int) -> None:
        """What happens from now on belongs to ``moment`` of ``step``."""
        self.look()
        self.at = (step, moment)

    def look(self) -> dict[str, int]:
        """PyTorch's statistics now, peaks those of the whole process; what rose belongs to the running moment."""
        stats = self._counters.statistics()
        now = {name: stats.get(counter, 0) for name, counter in COUNTERS.items()}
        if any(now[name] > self._top[name] for name in COUNTERS):
            self._top = now
            self._rows[self.at] = now
        return stats

    @property
    def top(self) -> dict[str, int]:
        """The largest values so far, by the names of :data:`calibrate.job.peaks.COUNTERS`."""
        return dict(self._top)

    def rows(self) -> tuple[MomentPeaks, ...]:
        """As they happened."""
        made = (MomentPeaks(step, moment, **values) for (step, moment), values in self._rows.items())
        return tuple(sorted(made, key=lambda row: row.order))


class Boundaries:
    """Tells when the outermost backward begins and ends, when ZeRO's optimizer steps, and what the model is called
    with and returns, from :meth:`open` to :meth:`close`."""

    def __init__(self, *, backward: Callable[[], None], after_backward: Callable[[], None],
                 step: Callable[[], None], called: Callable[[Any, tuple, dict], None],
                 returned: Callable[[Any, Any], None]) -> None:
        self._backward, self._after_backward, self._step = backward, after_backward, step
        self._called, self._returned = called, returned
        self._undo: list[Callable[[], None]] = []

    def open(self, model: Any, zero_optimizer: Any) -> None:
        """Begin to tell; ``model`` and ``zero_optimizer`` may be None."""
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
        """Leave everything as it was."""
        while self._undo:
            self._undo.pop()()

    def _before_forward(self, model: Any, arguments: tuple, keywords: dict) -> None:
        self._called(model, arguments, keywords)

    def _after_forward(self, model: Any, arguments: tuple, output: Any) -> None:
        self._returned(model, output)


def zero_optimizer(optimizer: Any) -> Any:
    """DeepSpeed's ZeRO optimizer in what wraps it; None without."""
    while optimizer is not None:
        if type(optimizer).__module__.startswith("deepspeed.runtime"):
            return optimizer
        optimizer = getattr(optimizer, "optimizer", None)
    return None
