"""Whether a training that runs comes near the end of its GPU's memory, and what is said then."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.profile.corrections import ASSUMED_RUNTIME_BYTES
from predictor.report.units import size_text
from predictor.workload.workload import Workload


@dataclass(frozen=True)
class Seen:
    """The device after a step; bytes.

    Attributes:
        total: of the device, or what PyTorch may have of it.
        others: used by anything else than PyTorch's allocator: context, NCCL, libraries, other processes.
        allocated, reserved: largest so far.
        retries: how often the allocator gave cached segments back to get memory.
    """

    total: int
    others: int
    allocated: int
    reserved: int
    retries: int

    @property
    def free(self) -> int:
        """What nobody had when PyTorch held most."""
        return max(0, self.total - self.others - self.reserved)


def danger(seen: Seen, margin_bytes: int = ASSUMED_RUNTIME_BYTES) -> str | None:
    """One line where less than the margin was left, or the allocator had to give segments back; else None.

    The margin is what makes ``predict`` uncertain without a profile.
    """
    if not seen.retries and seen.free >= margin_bytes:
        return None
    state = (f"peak {size_text(seen.allocated)} allocated, {size_text(seen.reserved)} reserved of "
             f"{size_text(seen.total - seen.others)}; {size_text(seen.free)} were left")
    if seen.retries:
        state += f"; PyTorch gave cached memory back {seen.retries:,} time(s) to go on, which is slow"
    return state


def advice(seen: Seen, workload: Workload | None) -> str:
    """What needs less memory; ``workload``: as far as it is known."""
    ways, idle = [], seen.reserved - seen.allocated
    if idle >= ASSUMED_RUNTIME_BYTES and not (workload and workload.allocator_conf):
        ways.append(f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ({size_text(idle)} are reserved and idle)")
    if not (workload and workload.gradient_checkpointing):
        ways.append("gradient_checkpointing")
    if not workload or workload.per_device_train_batch_size > 1:
        ways.append("half the batch with twice the gradient_accumulation_steps")
    return f"Less memory: {'; '.join(ways or ['fewer tokens', 'offload'])}."
