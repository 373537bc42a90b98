"""Single operators: predicted allocations and frees, in order, against PyTorch on emulated GPUs."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import torch

from calibrate.probes.operators import in_order
from predictor.common import gpus
from predictor.events.events import Moment
from predictor.trace.cuda_paths import as_on_cuda
from predictor.trace.tracer import Tracer
from tests.calibrate.emulator.test_emulator import run_job
from tests.calibrate.small_jobs import needs_emulator
from tests.calibrate.truth.operator_calls import Side, calls

NAMES = list(calls(Side()))


@cache
def on_device(gpu: str) -> dict[str, list[int]]:
    return run_job("from tests.calibrate.truth.operator_calls import recorded\nanswer(recorded())", gpu=gpu)


def traced(wanted: str, gpu) -> list[int]:
    tracer = Tracer(lambda: ("", False))
    tracer.moment = Moment.FORWARD

    def zeros(*shape):
        ids = torch.empty(*shape, dtype=torch.int64, device="meta")
        tracer.ignore([ids])
        tracer.host_values.adopt(ids, torch.zeros(*shape, dtype=torch.int64))
        return ids

    def rms_gradients(gradient, source, weight, sums):
        return torch.ops.peakcast.rms_norm_backward(gradient, source, weight, [True, True])

    def known(inputs):
        tracer.ignore(inputs)
        return inputs

    def gradients(*args):
        tracer.moment = Moment.BACKWARD
        return torch.autograd.grad(*args)

    call = calls(Side("meta", zeros, rms_gradients=rms_gradients, gradients=gradients, known=known))[wanted]
    with as_on_cuda("efficient" if "math" in wanted else "flash"), tracer:
        torch.bmm(*(torch.empty(2, 8, 8, device="meta") for _ in range(2)))
        tracer.closed()
        call()
    return list(in_order(tracer.closed(), gpu))


@needs_emulator
@pytest.mark.parametrize("name, gpu", [
    *product(NAMES, ["h100-80gb", "a100-80gb", "rtx-4090"]),
    *((name, "b200") for name in NAMES if "grouped" in name)])
def test_an_operator_allocates_and_frees_what_the_tracer_says_in_that_order(name, gpu):
    assert traced(name, gpus.find(gpu)) == on_device(gpu)[name]
