"""The peak counters lose no peak when they are reset in the middle of a job."""

import pytest

from calibrate.job.peaks import Counters, MomentLog
from predictor.events.events import Moment

torch = pytest.importorskip("torch")


class Allocator:
    """Stands for PyTorch's: live bytes and their peak since the last reset."""

    def __init__(self, monkeypatch) -> None:
        self.live = self.peak = 0
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda _device: self.stats())
        for name in ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"):
            monkeypatch.setattr(torch._C, name, self.reset, raising=False)

    def stats(self) -> dict[str, int]:
        return {f"{name}_bytes.all.{kind}": value for name in ("requested", "allocated", "reserved")
                for kind, value in (("peak", self.peak), ("current", self.live))}

    def reset(self, *_) -> None:
        self.peak = self.live

    def to(self, live: int) -> None:
        self.live, self.peak = live, max(self.peak, live)


@pytest.fixture
def allocator(monkeypatch) -> Allocator:
    return Allocator(monkeypatch)


def test_a_reset_by_somebody_else_does_not_lower_a_peak(allocator):
    counters = Counters(0)
    allocator.to(100)
    allocator.to(10)
    torch._C._cuda_resetPeakMemoryStats(0)
    assert allocator.peak == 10  # whoever reset sees what they expect
    assert counters.take()["requested_bytes"] == 100


def test_a_moment_begins_with_what_is_alive_not_with_the_peak_before(allocator):
    log = MomentLog(Counters(0))
    log.enter(Moment.INIT, 0)
    allocator.to(100)
    allocator.to(40)
    log.enter(Moment.FORWARD, 1)
    assert [row.requested_bytes for row in log.close()] == [100, 40]


def test_a_moment_that_comes_again_keeps_its_highest(allocator):
    log = MomentLog(Counters(0))
    for live in (50, 30):  # two micro batches
        log.enter(Moment.FORWARD, 1)
        allocator.to(live)
        allocator.to(0)
        log.enter(Moment.BACKWARD, 1)
    assert {row.moment: row.requested_bytes for row in log.close()} == {Moment.FORWARD: 50, Moment.BACKWARD: 0}


def test_the_statistics_keep_the_peak_of_the_whole_job(allocator):
    counters = Counters(0)
    allocator.to(100)
    allocator.to(20)
    counters.take()
    stats = counters.statistics()
    assert (stats["requested_bytes.all.peak"], stats["requested_bytes.all.current"]) == (100, 20)
