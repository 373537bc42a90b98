"""Adafactor, which keeps row and column statistics instead of a second moment for tensors of two or more dimensions.

transformers 5.17, transformers/optimization.py, class ``Adafactor``, with the arguments of its Trainer: no first
moment, no scaling by the parameter. It updates tensor by tensor, in fp32. Its Python variables keep the temporaries of
the previous tensor until those of the next tensor replace them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from predictor.common.gpus import Gpu
from predictor.engine.tape import Tape
from predictor.events import workspaces
from predictor.events.events import Factor
from predictor.events.model_facts import Parameter

FP32 = 4


class Adafactor:
    """The optimizer of one run."""

    def __init__(self, arguments: Mapping[str, Any], gpu: Gpu) -> None:
        self.gpu = gpu

    def construct(self, tape: Tape, tensors: Sequence[Parameter]) -> None:
        """Allocates nothing: the first step creates the states."""

    def step(self, tape: Tape, tensors: Sequence[Parameter], weight_decay: float) -> None:
        kept: dict[str, int] = {}
        for tensor in tensors:
            _Tensor(tape, tensor, kept, self.gpu).update()
        for buffer in kept.values():
            tape.free(buffer)


class _Tensor:
    """The update of one tensor.

    Args:
        kept: the variables of the loop that hold a buffer: name -> buffer.
    """

    def __init__(self, tape: Tape, tensor: Parameter, kept: dict[str, int], gpu: Gpu) -> None:
        self.tape, self.tensor, self.kept, self.gpu = tape, tensor, kept, gpu
        self.whole = tensor.shape
        self.factored = len(tensor.shape) >= 2
        self.row, self.column = tensor.shape[:-1], (*tensor.shape[:-2], *tensor.shape[-1:])

    def update(self) -> None:
        narrow = self.tensor.itemsize < FP32
        self._drop("grad")
        if narrow:
            self.kept["grad"] = self._new(self.whole)
        with self.tape.first_step_only():
            for name, shape in ((("exp_avg_sq_row", self.row), ("exp_avg_sq_col", self.column)) if self.factored
                                else (("exp_avg_sq", self.whole),)):
                self._new(shape, Factor.OPTIMIZER_STATES, name)
        self._drop("parameter")
        if narrow:
            self.kept["parameter"] = self._new(self.whole)
        norm = self._norm()
        with self.tape.first_step_only():
            self._new((), Factor.OPTIMIZER_STATES, "RMS")
        rms = self._new(())
        self._free(norm, rms)  # in later steps the new RMS replaces the previous one
        square = self._new(self.whole)  # grad**2
        self._assign("update", square)  # + eps
        if self.factored:
            self._approximate()
        else:
            self._set("update", self._new(self.whole))  # exp_avg_sq.rsqrt()
        norm = self._norm()
        rms = self._new(())
        self._free(norm)
        ratio = self._new(())
        self._free(rms, ratio)
        self._free(self._new(self.whole))  # -update

    def _approximate(self) -> None:
        """Adds row and column means to the states, then runs ``_approx_sq_grad``."""
        self._free(self._mean(self.row, math.prod(self.whole) // max(math.prod(self.row), 1), along_rows=1))
        self._free(self._mean(self.column, math.prod(self.whole) // max(math.prod(self.column), 1), along_rows=0))
        mean = self._mean((*self.row[:-1], 1), self.row[-1], along_rows=1)
        row = self._new(self.row)
        self._free(mean)
        column = self._new(self.column)
        product = self._new(self.whole)
        self._free(row, column)
        self._set("update", product)

    # operations -----------------------------------------------------------------------------------

    def _new(self, shape: tuple[int, ...], factor: Factor = Factor.TEMPORARIES, name: str = "update") -> int:
        return self.tape.allocate(FP32 * math.prod(shape), factor, f"adafactor::{name}", module=self.tensor.module)

    def _free(self, *buffers: int) -> None:
        for buffer in buffers:
            self.tape.free(buffer)

    def _drop(self, variable: str) -> None:
        if variable in self.kept:
            self.tape.free(self.kept.pop(variable))

    def _set(self, variable: str, buffer: int) -> None:
        self._drop(variable)
        self.kept[variable] = buffer

    def _assign(self, variable: str, operand: int) -> None:
        """Computes a variable's new value from an operand; then frees the operand and the variable's old value."""
        result = self._new(self.whole)
        self._free(operand)
        self._set(variable, result)

    def _norm(self) -> int:
        """``tensor.norm(2)``."""
        return self._reduced((), math.prod(self.whole), along_rows=1)

    def _mean(self, shape: tuple[int, ...], inputs: int, *, along_rows: int) -> int:
        return self._reduced(shape, inputs, along_rows=along_rows)

    def _reduced(self, shape: tuple[int, ...], inputs: int, *, along_rows: int) -> int:
        """A reduction: its result, and temporary buffers of its thread blocks (``workspaces.reduction_buffer``)."""
        outputs = math.prod(shape)
        result = self._new(shape)
        dimensions = (outputs, inputs, FP32, along_rows, int(outputs == 1))
        sizes = [int(size(self.gpu, *dimensions)) for size in
                 (workspaces.reduction_buffer, workspaces.reduction_semaphores)]
        partial = [self.tape.allocate(size, Factor.TEMPORARIES, "adafactor::reduction", module=self.tensor.module)
                   for size in sizes if size]
        self._free(*reversed(partial))
        return result
