"""GPUs of unequal memory in one job: the verdict is that of the one where it fits worst, and each has a batch that fits."""

from __future__ import annotations

import pytest

from predictor.answer.predict import predict
from predictor.common.errors import InputError
from predictor.report.maximum_load import divided
from predictor.workload.workload import Workload

JOB = {"model": "llava-1.5-7b", "recipe": "pretrain", "per_device_train_batch_size": 16, "sequence_length": 1024,
       "engine": "ddp", "data_parallel_size": 4}


def test_the_prediction_is_that_of_the_gpu_where_the_job_fits_worst():
    found = predict(Workload(**JOB, gpu="rtx-5090"), also_gpus=["RTX 4090", "l40s"])
    alone = predict(Workload(**JOB, gpu="rtx-4090"))
    assert (found.verdict, found.capacity_bytes, found.peak_reserved_bytes) == (
        alone.verdict, alone.capacity_bytes, alone.peak_reserved_bytes)
    assert [share.gpu for share in found.gpus] == ["rtx-4090", "rtx-5090", "l40s"]


def test_each_gpu_has_the_largest_batch_that_fits_it_alone():
    found = predict(Workload(**JOB, gpu="rtx-5090"), also_gpus=["l40s"])
    for share in found.gpus:
        alone = predict(Workload(**JOB, gpu=share.gpu), maximum_load=True)
        assert share.per_device_train_batch_size == alone.maximum_load.per_device_train_batch_size
        assert (share.verdict, share.peak_reserved_bytes) == (alone.verdict, alone.peak_reserved_bytes)
    assert "verdict of rtx-5090, where the job fits worst" in divided(found)[0]


@pytest.mark.parametrize("changes", [
    {"gpu": None}, {"gpu": "l40s", "capacity_bytes": 40 << 30}, {"gpu": "l40s", "engine": "torch", "data_parallel_size": 1}])
def test_a_job_without_several_gpus_is_refused(changes):
    with pytest.raises(InputError, match="also_gpu needs "):
        predict(Workload(**JOB | changes), also_gpus=["rtx-4090"])
