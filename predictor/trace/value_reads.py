"""Operators whose result is a value or depends on values: answered from the twins.

Each takes the twins and the call, and gives the answer, or ``UNKNOWN`` to let the operator run.
"""

from __future__ import annotations

import torch

from predictor.model.control_tensors import discrete
from predictor.trace.host_values import Twins

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


def on_host(name: str):
    """An operator of integers whose results are as large as their values say: it runs on the host."""
    packet = getattr(torch.ops.aten, name)
    function = getattr(packet, packet.overloads()[0])

    def found(twins: Twins, args, kwargs):
        if args[0].device.type != "meta":
            return UNKNOWN
        values = twins.run(function, args, kwargs)
        if values is None:
            return UNKNOWN
        return twins.like(values[0]) if len(values) == 1 else tuple(map(twins.like, values))

    return found


def histc(twins: Twins, args, kwargs):
    """Of integers, which CPUs do not count: the counts are as many as the bins, whatever they are."""
    if args[0].device.type != "meta" or args[0].is_floating_point():
        return UNKNOWN
    return twins.like(torch.histc(twins.of(args[0]).float(), *args[1:], **kwargs).to(args[0].dtype))


def equal(twins: Twins, args, _kwargs):
    """``torch.equal``: floats differ."""
    left, right = (_values(twins, arg) for arg in args[:2])
    return left is not None and right is not None and torch.equal(left, right)


READS = {
    "aten::_local_scalar_dense": item,
    "aten::_to_copy": to_host,
    "aten::equal": equal,
    "aten::histc": histc,
    **{f"aten::{name}": on_host(name)
       for name in ("nonzero", "repeat_interleave", "unique_consecutive", "unique_dim", "_unique2", "bincount")},
}
"""Operator -> its answer."""
