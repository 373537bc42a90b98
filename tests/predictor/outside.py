"""The memory outside PyTorch's allocator that predictions assume for a job on an H100."""

from __future__ import annotations

from predictor.common import gpus
from predictor.profile import outside_pytorch
from predictor.workload.engines import communicators


def outside_bytes(engine: str = "torch", ranks: int = 1) -> int:
    """The most that it may be; ``engine`` is a name of ``predictor.workload.engines.ENGINES``."""
    return outside_pytorch.assumed(gpus.find("h100-80gb"), ranks, communicators(engine, ranks, 1)).all.high_bytes
