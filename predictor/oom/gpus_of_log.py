"""How many GPUs take part in a job, as far as its log tells, and which GPU it is by the memory of its message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from predictor.common import gpus
from predictor.oom.message import Message
from predictor.workload.workload import Workload

LOCAL = "default"
"""The name of a message's source that torchrun puts before a local rank."""


def rank_of(message: Message, *, local: bool = False) -> int | None:
    """The rank that the log names before a message; None if it names none. ``local``: a local rank counts, too."""
    name, _, number = message.source.partition(" ")
    return int(number) if name == "rank" or local and name == LOCAL else None


def fewest(messages: Sequence[Message], workload: Workload) -> Iterator[str]:
    """A sentence where the log is of more GPUs than are predicted; none if it is not.

    A process that uses only GPU 3 names it, too. So a GPU's number is weaker evidence than a rank.
    """
    ranks = [rank for message in messages if (rank := rank_of(message, local=True)) is not None]
    devices = [message.device for message in messages if message.device is not None]
    predicted = f"{workload.world_size} {'is' if workload.world_size == 1 else 'are'} predicted"
    if max(ranks, default=0) >= workload.world_size:
        yield (f"The log names rank {max(ranks)}: at least {max(ranks) + 1} GPUs take part, and {predicted}: give "
               "--data-parallel-size.")
    elif max(devices, default=0) >= workload.world_size:
        yield (f"The message names GPU {max(devices)}: the machine has at least {max(devices) + 1} GPUs, and "
               f"{predicted}: if all of them take part, give --data-parallel-size.")


def by_memory(capacity_bytes: int) -> tuple[str, str]:
    """The GPU to predict for, by its memory, and a sentence about that. Of several the usual one, or the nearest."""
    near = gpus.as_large(capacity_bytes)
    chosen = next((gpu for gpu in near if gpu.name == gpus.DEFAULT), *near[:1] or [gpus.find(gpus.DEFAULT)])
    others = [gpu.name for gpu in near if gpu is not chosen]
    if near and not others:
        return chosen.name, f"Taken to be {chosen.name}, by its memory; --gpu NAME names another."
    why = f"as large: {', '.join(others[:2])}{' …' if others[2:] else ''}" if others else "no known GPU is as large"
    return chosen.name, f"Assumed the kernels of {chosen.name} ({why}): give --gpu NAME."
