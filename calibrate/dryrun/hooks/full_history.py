"""Records the whole memory history of a script, with the moments of ``peakcast measure``.

PyTorch's hooks show the begin and end of a backward and of an optimizer's step. The time from the end of a backward to
the end of the optimizer's step (clipping, the step), or to the next model call if no step follows, counts as the
optimizer step. The time after it counts as the next forward.
"""

from __future__ import annotations

from typing import Any

from calibrate.dryrun.hooks.recording import Recording
from predictor.events.events import Moment


class FullHistory:
    """Records from :meth:`begin` to :meth:`save`."""

    def __init__(self, path: str, recording: Recording) -> None:
        self._path, self._recording = path, recording
        self._history: Any = None
        self._at = (Moment.INIT, 0)
        self._step = 1

    def begin(self) -> None:
        """Start recording when the device is initialised. Further calls do nothing."""
        if self._history is None:
            from calibrate.job.history import History

            self._history = History(self._path, self._recording).__enter__()
            self._history.follow(None, self._model_runs)

    def enter(self, moment: str, step: int, backward_since_step: bool) -> None:
        """Enter the moment that the watcher marks. ``other`` is the time between two moments."""
        if moment == "other":
            moment = Moment.OPTIMIZER_STEP if backward_since_step else Moment.FORWARD
        self._step = step
        self._mark(Moment(moment), step)

    def save(self) -> None:
        """Write the file."""
        self._history.save()

    def _model_runs(self) -> None:
        if self._at[0] in (Moment.INIT, Moment.OPTIMIZER_STEP):
            self._mark(Moment.FORWARD, self._step)

    def _mark(self, moment: Moment, step: int) -> None:
        if (moment, step) != self._at:
            self._at = moment, step
            self._history.enter(moment, min(step, 127))
