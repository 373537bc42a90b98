"""One job on an emulated GPU of each compute capability against its prediction: workspaces depend on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.common import gpus
from tests.calibrate.small_jobs import measured_and_predicted, needs_emulator, workload

pytestmark = needs_emulator
FIRST = {gpu.compute_capability: gpu.name for gpu in reversed(gpus.TABLE) if gpu.compute_capability >= (8, 0)}
"""Of each compute capability that is predicted, the GPU that the table has first."""


@pytest.mark.parametrize("gpu", FIRST.values())
def test_a_gpu_of_each_compute_capability_holds_what_is_predicted(gpu, tmp_path: Path):
    record, run, simulation = measured_and_predicted(workload(tmp_path, gpu=gpu, profile="none"))
    assert run.peak == record.peak("requested_bytes").bytes
    assert simulation.peak_allocated_bytes == record.peak("allocated_bytes").bytes
    assert simulation.peak_reserved_bytes == record.peak("reserved_bytes").bytes
