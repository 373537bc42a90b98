"""Operators that read values of meta tensors, or whose result sizes depend on values: answered from host values.

Each function takes the host values and the arguments of a call. It returns the operator's result, or ``UNKNOWN`` to let
the operator run on meta tensors.
"""

from __future__ import annotations

import torch

from predictor.model.control_tensors import is_discrete
from predictor.trace.host_values import HostValues

UNKNOWN = object()


def _values(host_values: HostValues, tensor: torch.Tensor) -> torch.Tensor | None:
    return host_values.of(tensor) if is_discrete(tensor) else None


def item(host_values: HostValues, args, _kwargs):
    """``.item()``; floats are unknown and read as zero."""
    values = _values(host_values, args[0])
    return torch.zeros((), dtype=args[0].dtype).item() if values is None else values.item()


def to_host(host_values: HostValues, args, kwargs):
    """``.to("cpu")`` of a meta tensor; floats are unknown and become zeros."""
    device = kwargs.get("device")
    if device is None or torch.device(device).type != "cpu" or args[0].device.type == "cpu":
        return UNKNOWN
    values = _values(host_values, args[0])
    values = torch.zeros(args[0].shape, dtype=args[0].dtype) if values is None else values.clone()
    return values.to(kwargs.get("dtype") or values.dtype)


def on_host(name: str):
    """A function that runs an integer operator on the host, because the sizes of its results depend on values."""
    packet = getattr(torch.ops.aten, name)
    function = getattr(packet, packet.overloads()[0])

    def results(host_values: HostValues, args, kwargs):
        if args[0].device.type != "meta":
            return UNKNOWN
        values = host_values.run(function, args, kwargs)
        if values is None:
            return UNKNOWN
        return host_values.like(values[0]) if len(values) == 1 else tuple(map(host_values.like, values))

    return results


def unique_consecutive(host_values: HostValues, args, kwargs):
    """``unique_consecutive``. Its first result is a copy of the input that is made smaller: the memory stays.

    Source: ``unique_cuda_template``, ATen/native/cuda/Unique.cu, PyTorch 2.11.
    """
    results = on_host("unique_consecutive")(host_values, args, kwargs)
    dimension = args[3] if len(args) > 3 else kwargs.get("dim")
    if results is UNKNOWN or dimension is not None:
        return results
    found, *others = results
    values = host_values.of(found)
    kept = torch.empty(args[0].numel(), dtype=args[0].dtype, device="meta").resize_(found.shape)
    host_values.adopt(kept, values)
    return (kept, *others)


def histc(host_values: HostValues, args, kwargs):
    """``histc`` of integers: the CPU kernel takes only floats, so the values are converted."""
    if args[0].device.type != "meta" or args[0].is_floating_point():
        return UNKNOWN
    values = host_values.of(args[0])
    assert values is not None  # only packed weights have unknown integers, and models do not count those
    return host_values.like(torch.histc(values.float(), *args[1:], **kwargs).to(args[0].dtype))


def equal(host_values: HostValues, args, _kwargs):
    """``torch.equal``; floats are unknown and count as different."""
    left, right = (_values(host_values, arg) for arg in args[:2])
    return left is not None and right is not None and torch.equal(left, right)


READS = {
    "aten::_local_scalar_dense": item,
    "aten::_to_copy": to_host,
    "aten::equal": equal,
    "aten::histc": histc,
    **{f"aten::{name}": on_host(name)
       for name in ("nonzero", "repeat_interleave", "unique_dim", "_unique2", "bincount")},
    "aten::unique_consecutive": unique_consecutive,
}
"""Operator -> the function that answers it."""
