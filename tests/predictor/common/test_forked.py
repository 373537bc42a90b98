"""Forked work: results come in order, from other processes where a fork is safe, and from this one where it is not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from predictor.common import forked

SCRIPT = """
import os
os.sched_getaffinity = lambda _: range(3)
from predictor.common import forked
own = os.getpid()
print([*forked.results(lambda item: (item, os.getpid() != own), [3, 1, 2])])
try:
    [*forked.results(lambda item: 1 // item, [1, 0])]
except ZeroDivisionError:
    print("raised")
print([*forked.results(lambda item: item if os.getpid() == own else os.kill(os.getpid(), 9), [1, 2])])
"""


def test_other_processes_compute_the_items_in_order_errors_are_raised_here_and_what_was_killed_is_made_up_for():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["[(3, True), (1, True), (2, True)]", "raised", "[1, 2]"]


def test_a_process_with_torch_does_not_fork(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert [*forked.results(lambda item: (item, os.getpid()), [1, 2])] == [(1, os.getpid()), (2, os.getpid())]


def test_a_result_that_is_not_asked_for_is_not_computed_in_this_process(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    results = forked.results(lambda item: 1 // item, [1, 0])
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)
