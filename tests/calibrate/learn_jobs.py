"""Recorded jobs made by hand, for the tests of learning."""

from __future__ import annotations

import numpy as np

from calibrate.learn.recorded_job import RecordedJob
from predictor.events.events import FACTORS, Factor
from predictor.events.sizes import Shape

ABOUT = {"measured_on": "emulated", "gpu": "h100-80gb", "capacity_bytes": 80 << 30, "allocator_conf": None,
         "software": {"torch": "2.11.0+cu130", "transformers": None, "deepspeed": None}}


def job(batch: int, sequence: int, *, events=None, sizes=None, operators=None, images: int = 0) -> RecordedJob:
    """A weight for good, then an activation and a logit that go again, in one step.

    Args:
        events: pairs of kind and buffer.
        sizes: bytes of the buffers.
        operators: their names.
    """
    events = events or [(1, 0), (1, 1), (1, 2), (-1, 1), (-1, 2)]
    sizes = sizes or [4096, 8 * batch * sequence, 1000 * batch + 16 * batch * sequence**2]
    operators = operators or [f"aten::op{number}" for number in range(len(sizes))]
    kind, buffer = zip(*events)
    moment = [0 if number == 0 else 1 for number in range(len(events))]
    factors = [Factor.PARAMETERS, *[Factor.ACTIVATIONS] * (len(sizes) - 1)]
    live = np.cumsum([k * sizes[b] if abs(k) == 1 else 0 for k, b in events])
    return RecordedJob(
        shape=Shape(batch, sequence, images), kind=np.array(kind, np.int8), buffer=np.array(buffer, np.int32),
        moment=np.array(moment, np.int8), step=np.array(moment, np.int8), size=np.array(sizes, np.int64),
        stream=np.zeros(len(sizes), np.int8), factor=np.array([FACTORS.index(f) for f in factors], np.int8),
        module=("",) * len(sizes), operator=tuple(operators), peaks={"requested_bytes": int(live.max())},
        parameters=(), about=ABOUT)


class Source:
    """What :func:`calibrate.learn.learn.assemble` asks of a source."""

    workload, command, rank, world_size, gpu = None, ("python", "train.py", "{batch}", "{sequence}"), 0, 1, "h100-80gb"
