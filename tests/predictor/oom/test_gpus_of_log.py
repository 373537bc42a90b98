"""The number of GPUs of a job, as its log tells it."""

import pytest

from predictor.oom.gpus_of_log import fewest
from predictor.oom.message import find
from predictor.workload.workload import Workload

MESSAGE = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU {} has a total capacity of 79.25 GiB."
GIVE = "give --data-parallel-size."


def said(prefix: str, device: int = 0, gpus: int = 1) -> list[str]:
    workload = Workload.from_mapping({"model": "llava-1.5-7b", "data_parallel_size": gpus, "zero_stage": 2})
    return list(fewest(find(prefix + MESSAGE.format(device)), workload))


@pytest.mark.parametrize("prefix", ["[rank3]: ", "[default3]:"])
def test_a_rank_says_that_at_least_so_many_take_part(prefix):
    assert said(prefix) == [f"The log names rank 3: at least 4 GPUs take part, and 1 is predicted: {GIVE}"]


def test_a_gpu_says_that_the_machine_has_as_many():
    assert said("", device=3, gpus=2) == [
        f"The message names GPU 3: the machine has at least 4 GPUs, and 2 are predicted: if all of them take part, {GIVE}"]


@pytest.mark.parametrize("prefix", ["[rank3]: ", "(Worker pid=123) "])
def test_nothing_is_said_where_as_many_are_predicted(prefix):
    assert said(prefix, device=3, gpus=4) == []
