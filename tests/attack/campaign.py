"""A campaign that is killed: rows are made up, processes and files are real.

    python -m tests.attack.campaign FILE
"""

from __future__ import annotations

import sys
import time

from calibrate.campaign import run
from calibrate.campaign.design import Job
from calibrate.campaign.rows import Row, opened
from tests.calibrate import small_jobs

JOBS = [Job({"model": "small", "sequence_length": number}, "fit", "shape") for number in range(1, 25)]


def measured(job: Job) -> Row:
    """Stands for a measurement of a twentieth of a second."""
    time.sleep(0.05)
    return Row(job.id, job.role, job.group, dict(job.keys), record=small_jobs.record(), unexplained_bytes=job.keys["sequence_length"])


def main(path: str) -> None:
    with opened(path) as store:
        run.run(JOBS, measured, store, run.Limits(2))


if __name__ == "__main__":
    from tests.attack import campaign  # workers find its function by this name

    campaign.main(sys.argv[1])
