"""The order in which PyTorch's foreach functions process a list of tensors."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.events.model_facts import Parameter


def by_dtype(tensors: Sequence[Parameter]) -> list[list[Parameter]]:
    """Groups tensors by dtype, in the order in which foreach functions take the groups.

    The group whose first tensor comes last in ``tensors`` is the first. PyTorch collects the groups in a
    ``std::unordered_map`` (ATen/native/ForeachUtils.h, _group_tensors_by_first_tensors_device_and_dtype). Such a map of
    two keys lists the newer key first. Tensors of the same item size count as one dtype: weights are bf16, adapters
    may be fp32.
    """
    widths = dict.fromkeys(tensor.itemsize for tensor in tensors)
    return [[tensor for tensor in tensors if tensor.itemsize == width] for width in reversed(widths)]
