"""The history that a dry run keeps for other allocator settings."""

from calibrate.dryrun.hooks import allocations
from calibrate.dryrun.played import NO_HISTORY, played


def test_a_history_that_is_too_long_is_not_kept_and_the_reason_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(allocations, "MOST_ENTRIES", 1)
    kept = allocations.Allocations()
    kept.follow([{"action": "alloc", "addr": 512, "size": 512, "stream": 0}] * 2, {})
    kept.write(str(tmp_path / "history"), 0, 1 << 30)
    assert played(tmp_path / "history") == (None, NO_HISTORY)
