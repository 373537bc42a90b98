"""Finds the repetitions of a traced micro-step among the buffers of a composed run."""

from __future__ import annotations

import numpy as np

from predictor.events.events import EventList
from predictor.events.micro_step import MicroStep


def instances(run: EventList, micro: MicroStep) -> tuple[np.ndarray, np.ndarray]:
    """For each buffer of a run: the number of its micro-step (-1 for the engine's own), and its traced buffer."""
    ours, theirs = run.buffers, micro.events.buffers
    count, first = len(theirs), int(theirs.size[0])
    instance, traced = np.full(len(ours), -1), np.zeros(len(ours), dtype=np.int64)
    begin = number = 0
    starts = np.flatnonzero((ours.size == first) & (ours.operator == theirs.operator[0])
                            & (ours.module == theirs.module[0]))
    for start in starts.tolist():
        if start >= begin and all(np.array_equal(getattr(ours, name)[start: start + count], getattr(theirs, name))
                                  for name in ("size", "operator", "module")):
            instance[start: start + count], traced[start: start + count] = number, np.arange(count)
            begin, number = start + count, number + 1
    return instance, traced
