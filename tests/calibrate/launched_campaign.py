"""The script that torchrun starts in ``test_campaign_launched``: a tiny campaign, one emulated GPU per rank.

    torchrun --nproc-per-node 2 tests/calibrate/launched_campaign.py MODEL MEASUREMENTS
"""

from __future__ import annotations

import socket
import sys
from contextlib import nullcontext
from functools import partial

from calibrate.campaign import measured_job, torchrun
from calibrate.campaign.design import Job
from calibrate.campaign.rows import Row, opened
from calibrate.job.single_rank import LAUNCHED
from calibrate.measure.device_choice import MeasuringDevice
from calibrate.records.record import MeasuredOn

WHERE = MeasuringDevice("h100-80gb", MeasuredOn.EMULATED)


def jobs(model: str) -> list[Job]:
    """One, of DDP."""
    return [Job({"model": model, "sequence_length": 64, "per_device_train_batch_size": 2, "data_parallel_size": 2,
                 "engine": "ddp"}, "fit", "shape")]


def alone(monkeypatch) -> None:
    """Make this process one that torchrun started as the only one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, LAUNCHED: "one",
                        torchrun.AGENT_STORE: False}.items():
        monkeypatch.setenv(name, str(value))


def main(model: str, measurements: str) -> None:
    """Rank 0 writes."""
    def ended(row: Row) -> None:
        print("ended", row.job["rank"], flush=True)

    with opened(measurements) if torchrun.is_first() else nullcontext() as store:
        torchrun.run(jobs(model), partial(measured_job.row_of, where=WHERE), store, lambda: False, ended)


if __name__ == "__main__":
    main(*sys.argv[1:])
