"""Causes of differences between a real GPU and its emulation."""

from __future__ import annotations

import json

import pytest

from calibrate.checks import device, device_causes, device_further
from calibrate.checks.device_causes import ContextRange, Peaks, convolution_bytes
from predictor.allocator.constants import MIB
from predictor.profile import profile as profiles

H200 = device.PROFILES / "h200" / "device"


def test_the_range_is_used_once_the_steps_begin_and_leaves_room_for_a_library():
    driver = ContextRange(None, 32 * MIB)
    before = driver.allocate(20 * MIB)
    driver.steps_begin()
    first, second = driver.allocate(16 * MIB), driver.allocate(20 * MIB)
    assert before < first == ContextRange.START and second - first == (16 + 64) * MIB


def test_what_the_range_has_no_room_for_lies_below():
    driver = ContextRange(None, 32 * MIB)
    driver.steps_begin()
    assert driver.allocate(418 * MIB) < ContextRange.START


def test_memory_of_the_range_is_given_back():
    driver = ContextRange(None, 32 * MIB)
    driver.steps_begin()
    driver.free(driver.allocate(16 * MIB))
    assert driver.used_bytes == 0


def test_a_convolution_takes_what_the_device_took():
    answers = json.loads((H200 / "device-operators.json").read_text())["answers"]
    calls = [(answer["call"], answer["recorded"]) for answer in answers if answer["call"]["kind"] == "convolution"
             and answer["call"]["side"] < 1024]
    assert len(calls) == 18
    assert all(recorded[1] == convolution_bytes(*(call[key] for key in ("pictures", "side", "patch", "channels")))
               for call, recorded in calls)


@pytest.mark.parametrize("less, size", [(Peaks(-3, 5), (5, 3)), (Peaks(0, 0), (0, 0))])
def test_reserved_bytes_come_first(less, size):
    assert less.size == size


def test_a_difference_has_its_cause():
    [(_, workload, rank, measured, emulated)] = [
        job for job in device_further._differing(H200) if job[0].startswith("llava-1.5-13b-2-2")]
    found = device_causes.explain(workload, rank, measured, profiles.read(str(H200.parent / "profile-device.json")))
    assert emulated.less(measured).reserved == 83_886_080
    assert (found.causes, found.left, found.left_with_all) == (("addresses",), Peaks(0, 0), Peaks(0, 0))
