"""Releases of packages are compared by their numbers, and a behaviour begins with one of them."""

from __future__ import annotations

import pytest

from predictor.common.releases import cuda_of, release, torch_has


def test_a_version_is_three_numbers():
    assert release("0.19.8+cu130") == (0, 19, 8) and release("2.11") == (2, 11, 0)


@pytest.mark.parametrize(("behaviour", "first"), [
    ("cublaslt_workspace_lasts", "2.9.0"), ("cudnn_attention_first", "2.11.0"), ("flash_seeds_on_device", "2.7.0")])
def test_a_behaviour_begins_with_a_release(behaviour, first):
    major, minor, _ = release(first)
    assert torch_has(behaviour, first) and not torch_has(behaviour, f"{major}.{minor - 1}.1")


@pytest.mark.parametrize(("torch", "cuda"), [
    ("2.4.1", 1201), ("2.6.0", 1204), ("2.7.1", 1206), ("2.10.0", 1208), ("2.11.0", 1300)])
def test_pypi_has_one_cuda_build_of_a_release(torch, cuda):
    assert cuda_of(torch) == cuda
