"""Why allocated and reserved peaks of a real GPU differ from the emulated ones.

A predicted job is simulated with one property of the real GPU after the other: the workspaces of cuDNN's convolutions,
the driver's addresses that go down, and the range of addresses that the CUDA context gives back. The smallest set of
them with which both peaks are the measured ones is the cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from calibrate.records.record import MeasuredOn, Record
from predictor.allocator import CachingAllocator, SimulatedDriver
from predictor.allocator.constants import DRIVER_PAGE, MIB
from predictor.events.composed_run import Run
from predictor.jobs import dispatch, survival
from predictor.profile import profile as profiles
from predictor.profile.calibration import Profile
from predictor.workload.workload import Workload

CONVOLUTIONS = "convolutions"
ADDRESSES = "addresses"
RANGE = "range"
SETS: tuple[tuple[str, ...], ...] = ((CONVOLUTIONS,), (ADDRESSES,), (CONVOLUTIONS, ADDRESSES), (ADDRESSES, RANGE),
                                     (CONVOLUTIONS, ADDRESSES, RANGE))
"""The sets of causes that are tried, the smallest first."""


class ContextRange(SimulatedDriver):
    """A driver that has a further range of addresses once the steps begin, above all others.

    In the histories of an H200 (profiles/h200/device) segments come into one range of 416 MiB after start-up, upwards
    and until one does not fit. After the first of them 64 MiB stay out, which a library takes. What gives the range
    back to the driver is not recorded.
    """

    START, SIZE, LIBRARY = 1 << 47, 416 * MIB, 64 * MIB

    def __init__(self, total_bytes: int | None, address_step_bytes: int) -> None:
        super().__init__(None, total_bytes, address_step_bytes)
        self._next, self._end = self.START, self.START

    def steps_begin(self) -> None:
        """From now on the range can be used."""
        self._end = self.START + self.SIZE

    def reserve(self, size: int) -> int:
        taken = -(-size // DRIVER_PAGE) * DRIVER_PAGE
        if self._next + taken > self._end:
            return super().reserve(size)
        address, self._next = self._next, self._next + taken
        if address == self.START:
            self._next += self.LIBRARY
        self._sizes[address] = taken
        return address

    def unreserve(self, address: int) -> None:
        if address >= self.START:
            del self._sizes[address]  # the range is filled once
        else:
            super().unreserve(address)


@dataclass(frozen=True)
class Peaks:
    """Allocated and reserved peaks of a job, in bytes."""

    allocated: int
    reserved: int

    def less(self, other: Peaks) -> Peaks:
        return Peaks(self.allocated - other.allocated, self.reserved - other.reserved)

    @property
    def size(self) -> tuple[int, int]:
        """How far the two differences are from 0, reserved bytes first."""
        return abs(self.reserved), abs(self.allocated)


@dataclass(frozen=True)
class Explained:
    """The cause of a difference.

    Attributes:
        causes: the set that leaves the least, of equal ones the smallest.
        left: what it leaves: simulated less measured bytes.
        left_with_all: what all causes together leave.
    """

    causes: tuple[str, ...]
    left: Peaks
    left_with_all: Peaks


def explain(workload: Workload, rank: int | None, measured: Peaks, profile: Profile) -> Explained:
    """Simulates a job with each set of causes.

    Args:
        rank: the rank that was measured; None for the predicted one.
        profile: the profile of the GPU, which has its workspaces and its addresses.
    """
    left = {causes: simulated(workload, rank, causes, profile).less(measured) for causes in SETS}
    best = min(left, key=lambda causes: left[causes].size)  # of equals min keeps the first
    return Explained(best, left[best], left[SETS[-1]])


def simulated(workload: Workload, rank: int | None, causes: Sequence[str], profile: Profile) -> Peaks:
    """The peaks of a job with some of the real GPU's properties."""
    step = profile.allocator.address_step_bytes if ADDRESSES in causes else 0
    changed = replace(profile, workspaces=profile.workspaces if CONVOLUTIONS in causes else (),
                      allocator=replace(profile.allocator, address_step_bytes=step))
    with TemporaryDirectory() as directory:
        path = str(Path(directory) / "profile.json")
        profiles.write(path, changed)
        job = dispatch.prepare(workload.replace(profile=path))
        run = job.run(workload.capacity, rank)
    driver = (ContextRange(workload.capacity, step) if RANGE in causes
              else SimulatedDriver(None, workload.capacity, step))
    end = survival.play_on(CachingAllocator(job.setup.allocator, driver), run, _events(run, driver))
    return Peaks(end.peak_allocated_bytes, end.peak_reserved_bytes)


def _events(run: Run, driver: SimulatedDriver) -> Iterator[int]:
    """The types of a run's events. Tells the driver when its first step begins."""
    first = int(np.argmax(np.asarray(run.events.step) > 0))
    for index, event_type in enumerate(run.events.kind.tolist()):
        if index == first and isinstance(driver, ContextRange):
            driver.steps_begin()
        yield event_type


def convolution_bytes(pictures: int, side: int, patch: int, channels: int) -> int:
    """Workspace of cuDNN's convolution of patches in bf16, which do not overlap.

    Its input and weight, padded to 8 channels, its output, and 16 bytes: 3 shapes at up to 16 pictures of up to 384
    pixels a side in profiles/h200/device/device-operators.json.
    """
    values = pictures * side ** 2 * 8 + patch ** 2 * 8 * channels + pictures * (side // patch) ** 2 * channels
    return 2 * values + 16


def room_of(measured: Record) -> int:
    """The bytes that PyTorch could have on the GPU of a record: its memory less what libraries and others held."""
    job = measured.job
    if job.measured_on is MeasuredOn.EMULATED:
        return job.device.capacity_bytes
    outside = job.device_used_bytes - int(job.memory_stats["reserved_bytes.all.current"])
    return job.device.capacity_bytes - outside


def peaks_of(row: Mapping[str, int]) -> Peaks:
    """The peaks of a row of measurements."""
    return Peaks(row["allocated_bytes"], row["reserved_bytes"])

