"""Records the shapes of a regime: a few with the whole model, the others with few layers where those suffice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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


class OfRegime:
    """Records shapes that share one list of events.

    Args:
        known: recordings of the whole model so far; new ones are added.
        whole: the number of shapes at which the whole model is traced in any case.
    """

    repeats = None

    def __init__(self, model: Any, record: Record, known: Known, whole: int = WHOLE) -> None:
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
        """The recording of a shape from few layers; None if the whole model must be traced."""
        try:
            return self._few.at(shape) if self._few else None
        except NotOneRegime:
            return None


class OfFamily:
    """Records shapes of a family of regimes, with the events of its smallest member.

    The first three shapes have different numbers of units. The whole model is traced at them: the first two show the
    loops, the third proves them.

    Args:
        known: as of :class:`OfRegime`.

    Attributes:
        repeats: the loops that larger members have more passes of, once two shapes are recorded.
    """

    def __init__(self, family: Regime, model: Any, record: Record, known: Known) -> None:
        self._family = family
        self._new = partial(OfRegime, model, record, known, 1)
        self._members: dict[int, OfRegime] = {}
        self._fewest: Recording | None = None
        self._folding: Folding | None = None

    @property
    def repeats(self) -> Repeats | None:
        return self._folding.repeats if self._folding else None

    def at(self, shape: Shape) -> Recording:
        """The recording of a shape; the first is one of the fewest units.

        Raises:
            NotOneRegime: the regimes are no family.
        """
        units = self._family.units(shape)
        recording = self._members.setdefault(units, self._new()).at(shape)
        if self._fewest is None:
            self._fewest = recording
        if units == FEWEST_UNITS:
            return recording
        self._folding = self._folding or Folding(self._fewest, recording, FEWEST_UNITS)
        return self._folding.folded(recording, units)
