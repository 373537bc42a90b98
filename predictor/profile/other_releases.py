"""How far the releases of PyTorch, transformers and DeepSpeed moved the memory of the jobs that were compared.

From ``profiles/evidence/stacks.jsonl``: the same jobs, measured on the emulated H100 under each set of releases. A test
compares the table with it.
"""

from __future__ import annotations

from typing import NamedTuple

from predictor.common.releases import release


class Moved(NamedTuple):
    """Measured reserved peaks under a set of releases relative to those under the usual one.

    Attributes:
        torch: the release of PyTorch in the set.
        jobs: number of jobs that ran under both.
        lowest, highest: relative differences: 0.1 if 10 % more is reserved than under the usual releases.
    """

    torch: str
    jobs: int
    lowest: float
    highest: float


MOVED = (
    Moved("2.4.1", 28, -0.126, 0.12),
    Moved("2.6.0", 30, -0.349, 0.034),
    Moved("2.8.0", 33, -0.179, 0.012),
    Moved("2.14.1", 34, -0.198, 0.012),
)
"""By release of PyTorch, the oldest first."""


def moved(torch: str) -> Moved:
    """That of the newest set which is not newer than a release of PyTorch, or of the oldest set."""
    older = [entry for entry in MOVED if release(entry.torch) <= release(torch)]
    return older[-1] if older else MOVED[0]
