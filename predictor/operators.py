"""What CUDA does that meta tensors do not show, by aten operator.

``TEMPORARIES`` lists the workspaces that live inside an operator; their sizes are functions of
``predictor.workspaces``. ``READS`` answers the operators whose result depends on values.
"""

from __future__ import annotations

import torch

from predictor.twins import discrete

MATRIX_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}


def none(_args, _kwargs, _results) -> list:
    """Most operators allocate their results only."""
    return []


def _item(twins, args, _kwargs):
    twin = twins.of(args[0]) if discrete(args[0]) else None
    if twin is None:
        return True, 0.0 if args[0].dtype.is_floating_point else 0
    return True, twin.item()


def _to_host(twins, args, kwargs):
    device = kwargs.get("device")
    if device is None or torch.device(device).type != "cpu" or args[0].device.type == "cpu":
        return False, None
    twin = twins.of(args[0]) if discrete(args[0]) else None
    values = torch.zeros(args[0].shape, dtype=args[0].dtype) if twin is None else twin.clone()
    return True, values.to(kwargs.get("dtype") or values.dtype)


def _nonzero(twins, args, _kwargs):
    twin = twins.of(args[0]) if discrete(args[0]) else None
    if twin is None or args[0].device.type != "meta":
        return False, None
    values = twin.nonzero()
    found = torch.empty(values.shape, dtype=values.dtype, device="meta")
    twins.adopt(found, values)
    return True, found


def _equal(twins, args, _kwargs):
    pair = [twins.of(arg) if discrete(arg) else None for arg in args[:2]]
    return (True, torch.equal(*pair)) if None not in [type(p) if p is None else 0 for p in pair] else (True, False)


READS = {
    "aten::_local_scalar_dense": _item,
    "aten::_to_copy": _to_host,
    "aten::nonzero": _nonzero,
    "aten::equal": _equal,
}

TEMPORARIES: dict = {}
