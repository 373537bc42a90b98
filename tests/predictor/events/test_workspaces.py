"""Temporaries of CUB, in bytes as PyTorch allocated them on the emulated H100 with each CUDA release."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.events.sizes import Polynomial, Shape, SizeTable, Workspace
from predictor.events.workspaces import FUNCTIONS

H100 = gpus.find("h100-80gb")
ALLOCATED = [
    ("cub_select", (3_000_000, 1201), 38_143), ("cub_select", (3_000_000, 1208), 6_399),
    ("cub_select", (3_000_000,), 6_655),
    ("cub_scan", (100_000, 8, 1204), 2_559), ("cub_scan", (100_000,), 2_815),
    ("row_sort", (100_000, 1201), 1_644_543), ("row_sort", (100_000, 1204), 1_639_423), ("row_sort", (100_000,), 1_639_423),
    ("embedding_unique", (20_000, 1201), 1_023), ("embedding_unique", (20_000, 1204), 767),
    ("embedding_unique", (20_000, 1206), 1_023), ("embedding_unique", (20_000,), 1_279),
    ("embedding_scan", (20_000, 32_000, 1208), 1_279), ("embedding_scan", (20_000, 32_000), 1_535),
    ("embedding_sort", (20_000,), 342_015), ("embedding_sort", (20_000, 1300, 32_000), 329_727),
]


@pytest.mark.parametrize(("function", "dimensions", "size"), ALLOCATED)
def test_a_temporary_of_cub_has_the_size_of_its_release(function, dimensions, size):
    assert FUNCTIONS[function](H100, *dimensions) == size


def test_a_size_without_a_value_is_one_line():
    nothing = Workspace("flash_split_sums", (Polynomial(()),) * 4)
    with pytest.raises(InputError, match="has a size without a value at this shape .StopIteration.: it is damaged"):
        SizeTable((nothing,), np.array([[1]])).at(Shape(1, 8, 0), H100)
