"""GPUs are found by any usual spelling, and name the source of their capacity."""

import pytest

from predictor.common.errors import InputError
from predictor.common.gpus import TABLE, find, of_other_sizes


@pytest.mark.parametrize("spelling, name", [
    ("h100-80gb", "h100-80gb"), ("H100", "h100-80gb"), ("h100_80gb", "h100-80gb"), ("NVIDIA H100 80GB HBM3", "h100-80gb"),
    ("h100 80 GB", "h100-80gb"), ("H100 PCIe", "h100-pcie-80gb"), ("h200", "h200"), ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
    ("A100 80GB", "a100-80gb"), ("a10080gb", "a100-80gb"), ("L40S", "l40s"), ("RTX4090", "rtx-4090"),
    ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("Tesla V100-SXM2-32GB", "v100-32gb"), ("b200", "b200"),
])
def test_spelling_does_not_matter(spelling, name):
    assert find(spelling).name == name


def test_an_unknown_gpu_names_the_nearest():
    with pytest.raises(InputError, match=r'^unknown GPU "l40x" \(did you mean "l40s"\?\): known are h100-80gb, .* or give'):
        find("l40x")


@pytest.mark.parametrize("gpu", TABLE, ids=lambda gpu: gpu.name)
def test_the_driver_offers_less_than_the_label_says(gpu):
    label = int(gpu.memory_label.split()[0])
    assert 0.9 * label * 10**9 < gpu.capacity_bytes < 1.001 * label * 2**30


@pytest.mark.parametrize("gpu", TABLE, ids=lambda gpu: gpu.name)
def test_a_capacity_has_a_source_or_is_called_assumed(gpu):
    assert gpu.source.startswith("https://") if gpu.measured else gpu.source.startswith("assumed")


@pytest.mark.parametrize("name, others", [
    ("a100", ["a100-40gb"]), ("A100", ["a100-40gb"]), ("v100", ["v100-16gb"]), ("h100", []), ("a100-80gb", []), ("h200", []),
    ("4090", [])])
def test_a_name_without_a_size_may_mean_another_gpu(name, others):
    assert [gpu.name for gpu in of_other_sizes(name)] == others


def test_a_wrong_size_of_memory_suggests_a_gpu_of_the_same_series():
    with pytest.raises(InputError, match=r'did you mean "a100-[48]0gb"'):
        find("a100-39gb")
