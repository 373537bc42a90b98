"""GPUs of unequal memory in one job: the verdict is that of the one where the job fits worst.

Every GPU of a data-parallel job holds the same model and, in all frameworks that are read, the same micro-batch. A
script that divides the batch itself can give each kind of GPU the most samples that fit it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from predictor.answer.prediction import GpuShare
from predictor.answer.training_load import Search
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.jobs.training_job import Job
from predictor.workload.workload import Workload

WORST_FIRST = ("does_not_fit", "uncertain", "fits")


def shares(workload: Workload, also: Sequence[str], prepare: Callable[[Workload, bool], Job]) -> tuple[GpuShare, ...]:
    """How the job fits each kind of GPU, and the largest micro-batch there; the kind where it fits worst comes first.

    Args:
        also: names of the other kinds, besides the workload's own.
        prepare: prepares the job of a workload. The second argument says whether all of them have one sequence length.

    Raises:
        InputError: the workload has no GPU, gives all of them one memory, or is no data-parallel training.
    """
    if workload.gpu is None or workload.capacity_bytes is not None:
        raise InputError("also_gpu needs the name of the job's own GPU: give --gpu, and no --capacity-bytes")
    if workload.mode != "training" or workload.data_parallel_size == 1 or workload.tensor_parallel_size > 1:
        raise InputError("also_gpu needs a job that several GPUs train data-parallel: give --data-parallel-size, "
                         "and no tensor parallelism")
    names = dict.fromkeys([workload.gpu, *(gpus.find(name).name for name in also)])
    found = [_share(workload.replace(gpu=name), prepare) for name in names]
    return tuple(sorted(found, key=lambda share: (WORST_FIRST.index(share.verdict), share.headroom_bytes)))


def _share(workload: Workload, prepare: Callable[[Workload, bool], Job]) -> GpuShare:
    job = prepare(workload, True)
    outcome = job.judge()
    assert workload.gpu is not None and workload.capacity is not None and outcome.verdict is not None
    load = Search(workload, job, prepare).largest_batch()
    return GpuShare(workload.gpu, workload.capacity, outcome.verdict, outcome.reserved.bytes,
                    workload.capacity - outcome.reserved.bytes, load.size, load.limits)
