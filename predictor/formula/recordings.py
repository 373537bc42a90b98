"""Records the shapes of a regime: a few with the whole model, the others with few layers where those suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from predictor.events.regimes import FEWEST_UNITS, NotOneRegime, Regime
from predictor.events.sizes import Shape
from predictor.formula.few_layers import FewLayers
from predictor.formula.fit import same_list
from predictor.formula.fold import Folding
from predictor.formula.repeats import Repeats
from predictor.trace.recorder import Recording

Record = Callable[[Shape], Recording]
"""Traces the model at a shape."""
Known = dict[Shape, Recording]
"""Recordings of the whole model; new ones are added."""

WHOLE = 2
"""Shapes of a regime at which the whole model is traced. They must show that few layers suffice at the others."""


class _Recorder:
    """Records shapes that share one list of events.

    Args:
        whole: the number of shapes at which the whole model is traced in any case.
    """

    def __init__(self, model: Any, record: Record, known: Known, whole: int) -> None:
        self._model, self._record, self._known, self._number = model, record, known, whole
        self._whole: dict[Shape, Recording] = {}
        self._few: FewLayers | None = None

    def at(self, shape: Shape) -> Recording:
        """The recording of a shape.

        Raises:
            NotOneRegime: its list of events is not that of the first shape.
        """
        if len(self._whole) == self._number:
            self._few = self._few_layers()
        few = self._of_few_layers(shape)
        if few:
            return few
        if shape not in self._known:
            self._known[shape] = self._record(shape)
        recording = self._known[shape]
        same_list(next(iter(self._whole.values()), recording), recording, shape)
        self._whole[shape] = recording
        return recording

    def _few_layers(self) -> FewLayers | None:
        """The recorder of few layers, made once; None if they do not give what the whole model does."""
        try:
            return self._few or FewLayers(self._model, self._record, self._whole)
        except NotOneRegime:
            return None

    def _of_few_layers(self, shape: Shape) -> Recording | None:
        """The recording of a shape from few layers; None if those do not suffice, and then the whole model is traced."""
        try:
            return self._few.at(shape) if self._few else None
        except NotOneRegime:
            return None


def of_regime(model: Any, record: Record, known: Known, shapes: Iterable[Shape]) -> list[Recording]:
    """Recordings that share one list of events.

    Raises:
        NotOneRegime: they do not.
    """
    recorder = _Recorder(model, record, known, WHOLE)
    return [recorder.at(shape) for shape in shapes]


def of_family(family: Regime, model: Any, record: Record, known: Known,
              shapes: Iterable[Shape]) -> tuple[list[Recording], Repeats]:
    """Recordings of a family of regimes, with the events of its smallest member, and the loops of the others.

    The first three shapes have different numbers of units. The whole model is traced at them: the first two show the
    loops, the third proves them.

    Raises:
        NotOneRegime: the regimes are no family.
    """
    recorders: dict[int, _Recorder] = {}
    recordings: list[Recording] = []
    folding: Folding | None = None
    for shape in shapes:
        units = family.units(shape)
        recording = recorders.setdefault(units, _Recorder(model, record, known, 1)).at(shape)
        if units > FEWEST_UNITS:
            folding = folding or Folding(recordings[0], recording, FEWEST_UNITS)
            recording = folding.folded(recording, units)
        recordings.append(recording)
    assert folding is not None  # the shapes have different numbers of units
    return recordings, folding.repeats
