"""Prints the file of a small learned formula.

    python -m tests.attack.learned_formula > mine.npz
"""

from __future__ import annotations

import sys

from calibrate.learn import learn
from calibrate.learn.align import groups
from predictor.formula import learned
from tests.calibrate.learn_jobs import Source, job

SHAPES = ((2, 64), (3, 96), (4, 128), (2, 128), (4, 64), (3, 64), (2, 96), (4, 96))


def main() -> None:
    recorded = [job(batch, sequence) for batch, sequence in SHAPES]
    found, differences = groups(recorded)
    sys.stdout.buffer.write(learned.to_bytes(learn.assemble(Source(), found, differences, recorded)))


if __name__ == "__main__":
    main()
