"""Probes: memory that libraries take of a device, and allocations of single operators."""

from __future__ import annotations

from functools import cache

import pytest

from calibrate.emulator import Injection
from calibrate.measure.device_choice import MeasuringDevice
from calibrate.probes import libraries, operators
from calibrate.probes.libraries import StageMemory
from calibrate.probes.operators import OperatorMeasurement
from calibrate.records.record import MeasuredOn
from predictor.common.errors import InputError
from tests.calibrate.small_jobs import needs_emulator

MIB = 1 << 20


def emulated(gpu: str = "h200", **injected) -> MeasuringDevice:
    return MeasuringDevice(gpu, MeasuredOn.EMULATED, inject=Injection(**injected) if injected else None)


@cache
def taken() -> dict[str, int]:
    return dict(libraries.measure(emulated(cublas_bytes=4 * MIB, cudnn_bytes=6 * MIB)).growth())


@needs_emulator
@pytest.mark.parametrize("stage, size", [("cuBLAS, bf16", 4 * MIB), ("cuDNN, convolution", 6 * MIB)])
def test_what_a_library_takes_shows_at_its_first_use(stage, size):
    assert taken()[stage] == size


@needs_emulator
def test_nothing_else_takes_anything_on_an_emulated_gpu():
    others = {stage: size for stage, size in taken().items() if size}
    assert list(others) == ["cuBLAS, bf16", "cuDNN, convolution"]


def test_memory_that_is_not_pytorchs_is_what_nvml_shows_less_the_segments():
    assert StageMemory("", nvml_bytes=10, driver_bytes=7, reserved_bytes=4).beyond_bytes == 6


def test_without_nvml_the_driver_tells():
    assert StageMemory("", nvml_bytes=None, driver_bytes=7, reserved_bytes=4).beyond_bytes == 3


@cache
def answers(gpu: str) -> dict[str, OperatorMeasurement]:
    return {", ".join(map(str, answer.call.values())): answer for answer in operators.measure(emulated(gpu)).answers}


@needs_emulator
@pytest.mark.parametrize("gpu", ["h200", "a100-80gb", "l40s", "b200"])
def test_every_call_allocates_and_frees_what_the_tracer_says_in_that_order(gpu):
    taken = {name: answer for name, answer in answers(gpu).items() if answer.recorded is not None}
    assert {name: answer.recorded for name, answer in taken.items()} == {
        name: answer.predicted for name, answer in taken.items()}


@needs_emulator
def test_only_cudnn_attention_is_refused_before_hopper():
    refused = {answer.call["backend"] for answer in answers("l40s").values() if answer.recorded is None}
    assert refused <= {"cudnn"}


@needs_emulator
def test_a_private_workspace_is_beyond_what_is_predicted():
    found = operators.measure(emulated(attention_backward_fixed_bytes=3 * MIB)).answers
    beyond = {answer.call.get("backend"): answer.beyond_bytes for answer in found}
    assert beyond == {"cudnn": 3 * MIB, "flash": 0, "efficient": 0, None: 0}


@needs_emulator
def test_a_question_that_cannot_be_asked_is_one_line():
    with pytest.raises(InputError, match="the GPU could not be queried"):
        from calibrate.probes import device_query

        device_query.run_module("calibrate.probes.nothing", emulated())
