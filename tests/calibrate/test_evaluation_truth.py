"""An evaluation after the steps, against the real model on the emulated GPU."""

from __future__ import annotations

import pytest

from predictor import pipeline
from predictor.errors import InputError
from predictor.events import Moment
from tests.calibrate.small_jobs import BATCH, SEQUENCE, measured_and_predicted, needs_emulator, workload

SCALARS_BYTES = 64
"""DeepSpeed's norm and overflow flags are not predicted."""
LARGE = 16 * BATCH


@needs_emulator
@pytest.mark.usefixtures("formula_cache")
@pytest.mark.parametrize("changes", [
    {}, {"padding": "right", "recipe": "lora", "engine": "ddp", "data_parallel_size": 2},
    {"zero_stage": 2, "data_parallel_size": 8, "rank": 7, "sdpa_backend": "flash"},
], ids=["torch", "ddp-lora-padded", "zero2-flash"])
def test_a_measured_job_is_predicted(tmp_path, changes):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", per_device_eval_batch_size=LARGE, **changes)
    record, run, simulation = measured_and_predicted(asked)
    assert record.peak("requested_bytes").moment is Moment.EVALUATION
    assert 0 <= record.peak("requested_bytes").bytes - run.peak < SCALARS_BYTES
    assert record.peak("reserved_bytes").bytes == simulation.peak_reserved_bytes


def test_the_logits_of_an_evaluation_are_its_peak(tmp_path, formula_cache):
    """In bf16, in fp32, and shifted by one token for the loss: 2 + 4 + 4 bytes for each of 320 words."""
    asked = workload(tmp_path, gpu="h100-80gb", profile="none")
    small, large = (pipeline.predict(asked.replace(per_device_eval_batch_size=batch)) for batch in (LARGE, 2 * LARGE))
    assert small.peak.moment is large.peak.moment is Moment.EVALUATION
    assert large.peak_requested.bytes - small.peak_requested.bytes >= LARGE * SEQUENCE * 320 * (2 + 4)


def test_an_evaluation_leaves_the_steps_as_they_are(tmp_path, formula_cache):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none")
    without, run = (pipeline.prepare(one).run(None) for one in (asked, asked.replace(per_device_eval_batch_size=LARGE)))
    steps = len(without.live)
    assert (run.live[:steps] == without.live).all() and run.live[-1] == without.live[-1]


def test_the_evaluation_of_sharded_parameters_is_refused(tmp_path):
    with pytest.raises(InputError, match="per_device_eval_batch_size is given, but the evaluation of sharded parameters"):
        workload(tmp_path, zero_stage=3, per_device_eval_batch_size=2)
