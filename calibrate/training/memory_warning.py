"""Warnings for a running training that comes near the limit of its GPU's memory."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.profile.corrections import ASSUMED_RUNTIME_BYTES
from predictor.report.units import size_text
from predictor.workload.workload import Workload


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of the device after a step, in bytes.

    Attributes:
        total: memory of the device, or the part that PyTorch may use.
        others: memory used outside PyTorch's allocator: context, NCCL, libraries, other processes.
        allocated, reserved: largest values so far of PyTorch's allocator.
        retries: how often the allocator released cached segments to get memory.
        reserved_now: what PyTorch's allocator reserves after the step.
    """

    total: int
    others: int
    allocated: int
    reserved: int
    retries: int
    reserved_now: int = 0

    @property
    def free(self) -> int:
        """Memory that was left at PyTorch's largest reservation, in bytes."""
        return max(0, self.total - self.others - self.reserved)


def low_memory(memory: DeviceMemory, margin_bytes: int = ASSUMED_RUNTIME_BYTES) -> str | None:
    """One line if less than the margin was left or the allocator released segments; else None.

    What the process holds outside PyTorch's allocator is known here: it is among ``others``.
    """
    if not memory.retries and memory.free >= margin_bytes:
        return None
    state = (f"peak {size_text(memory.allocated)} allocated, {size_text(memory.reserved)} reserved of "
             f"{size_text(memory.total - memory.others)}; {size_text(memory.free)} were left")
    if memory.retries:
        state += f"; PyTorch gave cached memory back {memory.retries:,} time(s) to go on, which is slow"
    return state


def advice(memory: DeviceMemory, workload: Workload | None) -> str:
    """Ways to use less memory. ``workload``: None if it could not be read."""
    suggestions, idle = [], memory.reserved - memory.allocated
    if idle >= ASSUMED_RUNTIME_BYTES and not (workload and workload.allocator_conf):
        suggestions.append(
            f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ({size_text(idle)} are reserved and idle)")
    if not (workload and workload.gradient_checkpointing):
        suggestions.append("gradient_checkpointing")
    if not workload or workload.per_device_train_batch_size > 1:
        suggestions.append("half the batch with twice the gradient_accumulation_steps")
    return f"Less memory: {'; '.join(suggestions or ['fewer tokens', 'offload'])}."
