"""How PyTorch's foreach functions take a list of tensors."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.events.model_facts import Parameter


def by_dtype(tensors: Sequence[Parameter]) -> list[list[Parameter]]:
    """Tensors as foreach functions take them: those of the dtype that came last come first.

    A ``std::unordered_map`` of two keys (ATen/native/ForeachUtils.h, _group_tensors_by_first_tensors_device_and_dtype)
    lists the newer one first. Widths tell dtypes apart: weights are bf16, adapters may be fp32.
    """
    widths = dict.fromkeys(tensor.itemsize for tensor in tensors)
    return [[tensor for tensor in tensors if tensor.itemsize == width] for width in reversed(widths)]
