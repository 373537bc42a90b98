"""A process that traces the formulas of settings before a walk reaches them (:mod:`predictor.plan.background`).

It reads orders from the standard input and answers each with the number of formulas that it traced. What libraries
print goes to the standard error. The terminal's interrupt is for the process that walks, which ends this one.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys

from predictor.plan.background import traced_for


def main() -> None:
    """Answers orders until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            order = pickle.load(sys.stdin.buffer)  # from the process that started this one, with the same code
            try:
                traced = traced_for(order)
            except Exception:  # the walk meets the same one, and reports it
                traced = 0
            pickle.dump(traced, replies)
            replies.flush()


if __name__ == "__main__":
    main()
