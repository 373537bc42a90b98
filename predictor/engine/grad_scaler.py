"""Events of ``torch.amp.GradScaler`` around an optimizer's step. Its events in forward and backward are traced.

torch 2.11, torch/amp/grad_scaler.py. It allocates scalars only: gradients are checked and scaled in place.
"""

from __future__ import annotations

from predictor.engine.setup import FP32, FP64
from predictor.engine.tape import Tape
from predictor.events.events import EventType, Factor


class GradScaler:
    """The gradient scaler in one optimizer step.

    Args:
        fused: whether the optimizer's kernel takes the scale and the overflow flag (``_step_supports_amp_scaling``).
    """

    def __init__(self, tape: Tape, *, fused: bool) -> None:
        self.tape, self.fused = tape, fused
        self.flag: int | None = None
        self.total: int | None = None

    def unscale(self) -> None:
        """``unscale_``: computes an inverse scale and the overflow flag."""
        double, inverse = self._scalar(FP64), self._scalar(FP64)
        self.tape.free(double)
        scale = self._scalar()
        self.tape.free(inverse)
        self._check(scale)

    def before_step(self) -> None:
        """``step`` until it calls the optimizer's ``step``."""
        if self.flag is None:
            if self.fused:
                self._check(self._scalar())  # _check_inf_per_device
            else:
                self.unscale()
        if self.fused:
            self.total = self._scalar()
        else:
            self.tape.mark(EventType.SYNCHRONIZE)  # _maybe_opt_step reads the flag

    def update(self) -> None:
        """The end of ``step``, and ``update``."""
        for buffer in (self.total, self.flag):
            if buffer is not None:
                self.tape.free(buffer)

    def _check(self, scale: int) -> None:
        """``_unscale_grads_``: scale and flag are both copied to the device of the gradients."""
        found_inf = self._scalar()
        self.flag, copy = self._scalar(), self._scalar()
        for buffer in (copy, found_inf, scale):
            self.tape.free(buffer)

    def _scalar(self, size_bytes: int = FP32) -> int:
        return self.tape.allocate(size_bytes, Factor.TEMPORARIES, "amp::grad_scaler")
