"""Operators whose result is a value or depends on values: answered from the twins.

Each takes the twins and the call, and gives the answer, or ``UNKNOWN`` to let the operator run.
"""

from __future__ import annotations

import torch

from predictor.twins import Twins, discrete

UNKNOWN = object()


def _values(twins: Twins, tensor: torch.Tensor) -> torch.Tensor | None:
    return twins.of(tensor) if discrete(tensor) else None


def item(twins: Twins, args, _kwargs):
    """``.item()``: a float, which nobody knows, reads as zero."""
    values = _values(twins, args[0])
    return torch.zeros((), dtype=args[0].dtype).item() if values is None else values.item()


def to_host(twins: Twins, args, kwargs):
    """``.to("cpu")`` of a meta tensor."""
    device = kwargs.get("device")
    if device is None or torch.device(device).type != "cpu" or args[0].device.type == "cpu":
        return UNKNOWN
    values = _values(twins, args[0])
    values = torch.zeros(args[0].shape, dtype=args[0].dtype) if values is None else values.clone()
    return values.to(kwargs.get("dtype") or values.dtype)


def nonzero(twins: Twins, args, _kwargs):
    """Indices of true elements, with their true number."""
    values = _values(twins, args[0])
    if values is None or args[0].device.type != "meta":
        return UNKNOWN
    indices = values.nonzero()
    found = torch.empty(indices.shape, dtype=indices.dtype, device="meta")
    twins.adopt(found, indices)
    return found


def equal(twins: Twins, args, _kwargs):
    """``torch.equal``: floats differ."""
    left, right = (_values(twins, arg) for arg in args[:2])
    return left is not None and right is not None and torch.equal(left, right)


READS = {
    "aten::_local_scalar_dense": item,
    "aten::_to_copy": to_host,
    "aten::nonzero": nonzero,
    "aten::equal": equal,
}
"""Operator -> its answer."""
