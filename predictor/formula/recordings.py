"""Records the shapes of a regime: a few with the whole model, the others with few layers where those suffice."""

from __future__ import annotations

from collections.abc import Callable
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
    """Records shapes that share one list of events, or whose lists can be folded to that of the first shape.

    The whole model is traced at two shapes. In a family these have two and three units, which shows the loops of the
    whole model and, beside them, those of few layers. Further numbers of units prove the loops of few layers.

    Args:
        known: recordings of the whole model so far; new ones are added.
    """

    def __init__(self, regime: Regime, model: Any, record: Record, known: Known) -> None:
        self._regime, self._model, self._record, self._known = regime, model, record, known
        self._folded = self._new_folded()
        self._whole: dict[Shape, Recording] = {}
        self._few: FewLayers | None = None

    @property
    def repeats(self) -> Repeats | None:
        """The loops of a family; None of other regimes."""
        return self._folded.repeats if isinstance(self._folded, Folded) else None

    def at(self, shape: Shape) -> Recording:
        """The recording of a shape, with the events of the first.

        Raises:
            NotOneRegime: its list of events is not that of the first shape, nor folds to it.
        """
        if len(self._whole) == WHOLE:
            self._few = self._few_layers()
        few = self._of_few_layers(shape)
        if few:
            return few
        if shape not in self._known:
            self._known[shape] = self._record(shape)
        recording = self._folded(self._known[shape], shape)
        same_list(next(iter(self._whole.values()), recording), recording, shape)
        self._whole[shape] = recording
        return recording

    def _new_folded(self) -> Callable[[Recording, Shape], Recording]:
        return Folded(self._regime) if self._regime.is_family else lambda recording, _: recording

    def _few_layers(self) -> FewLayers | None:
        """The recorder of few layers, made once; None if they do not give what the whole model does."""
        folded = self._new_folded()
        try:
            return self._few or FewLayers(self._model, lambda shape: folded(self._record(shape), shape), self._whole)
        except NotOneRegime:
            return None

    def _of_few_layers(self, shape: Shape) -> Recording | None:
        """The recording of a shape from few layers; None if the whole model must be traced."""
        try:
            return self._few.at(shape) if self._few else None
        except NotOneRegime:
            return None


class Folded:
    """Folds recordings to the events of a family's smallest member, which comes first.

    Attributes:
        repeats: the loops that larger members have more passes of, once the recording of a larger one was folded.
    """

    def __init__(self, family: Regime) -> None:
        self._family = family
        self._fewest: Recording | None = None
        self._folding: Folding | None = None

    @property
    def repeats(self) -> Repeats | None:
        return self._folding.repeats if self._folding else None

    def __call__(self, recording: Recording, shape: Shape) -> Recording:
        """The recording of a shape with the events of the fewest units.

        Raises:
            NotOneRegime: the regimes are no family.
        """
        units = self._family.units(shape)
        self._fewest = self._fewest or recording
        if units == FEWEST_UNITS:
            return recording
        self._folding = self._folding or Folding(self._fewest, recording, FEWEST_UNITS)
        return self._folding.folded(recording, units)
