"""Prints a measurement, with its prediction if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibrate.records.moment_peaks import MomentPeaks
from calibrate.records.record import MeasuredOn, Record
from predictor.report import verdict
from predictor.report.layout import table, wrapped
from predictor.report.units import gib, size_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

COUNTERS = {
    "requested": "what the job asked for",
    "allocated": "in whole blocks (torch.cuda.max_memory_allocated)",
    "reserved": "segments taken from the device (torch.cuda.max_memory_reserved)",
}
PENDING = "pending frees"
"""Cell in place of an error, for moments where :func:`is_pending` holds."""


def report(console: Console, record: Record) -> None:
    """Prints the whole output of ``peakcast measure``."""
    style = "bold red" if record.job.out_of_memory else "bold"
    for line in wrapped(console, headline(record), indent=0):
        console.print(line, style=style)
    for line in wrapped(console, title(record), indent=0):
        console.print(line, style="dim")
    console.print()
    peaks = table("peak", "GiB", "in", "")
    peaks.columns[1].justify = "right"
    for name, meaning in COUNTERS.items():
        peak = record.peak(f"{name}_bytes")
        peaks.add_row(name, gib(peak.bytes), f"{peak.moment.value} of step {peak.step}", meaning)
    peaks.add_row("device", gib(record.job.device_used_bytes), "", "used, by whomever (cudaMemGetInfo)")
    console.print(peaks)
    console.print()
    console.print(moments(record))
    console.print()
    for line in notes(record):
        for part in wrapped(console, line, indent=0):
            console.print(part)


def headline(record: Record) -> str:
    """Result of the measurement in one line."""
    failure, peak = record.job.out_of_memory, record.peak("allocated_bytes")
    capacity = size_text(record.job.device.capacity_bytes)
    if failure is None:
        ran = "three steps ran" if _trains(record) else "every reply was generated"
        return f"Peak {size_text(peak.bytes)} allocated of {capacity}: {ran}."
    tried = f" while asking for {size_text(failure.tried_to_allocate_bytes)}" if failure.tried_to_allocate_bytes else ""
    return f"Out of memory in {failure.moment.value} of step {failure.step}{tried}; the device has {capacity}."


def title(record: Record) -> str:
    """The job and its device in one line."""
    workload, device = record.workload, record.job.device
    where = f"emulated {device.name}" if record.job.measured_on is MeasuredOn.EMULATED else device.name
    if not _trains(record):
        return f"{verdict.inference(workload)} · {where}"
    engine = f"ZeRO-{workload['zero_stage']}" if workload["engine"] == "deepspeed" else workload["engine"]
    return " · ".join([
        str(workload["model"]), str(workload["recipe"]),
        f"batch {workload['per_device_train_batch_size']:,} x {workload['sequence_length']:,} tokens",
        f"{engine}, rank {record.rank} of "
        f"{workload['data_parallel_size'] * workload.get('tensor_parallel_size', 1)}", where])


def _trains(record: Record) -> bool:
    """Whether the job is training. Records older than the inference mode have no ``mode`` and are of training."""
    return record.workload.get("mode", "training") == "training"


def moments(record: Record) -> Table:
    """A table with a row for each moment of each step, measured and predicted."""
    predicted = {(row.step, row.moment): row.requested_bytes
                 for row in (record.predicted.moments if record.predicted else ())}
    heads = ("moment (GiB)", "step", "reserved", "allocated", "requested",
             *(("predicted", "off by %") if predicted else ()))
    rows = table(*heads, numbers=True)
    top, failure = record.peak("requested_bytes"), record.job.out_of_memory
    for row in record.job.moments:
        cells = [row.moment.value, str(row.step), gib(row.reserved_bytes), gib(row.allocated_bytes),
                 gib(row.requested_bytes)]
        if predicted:
            expected = predicted.get((row.step, row.moment))
            cut = failure is not None and (failure.step, failure.moment) == (row.step, row.moment)
            cells.append("" if expected is None else gib(expected))
            cells.append("" if expected is None else "cut off" if cut else PENDING if is_pending(row) else
                         difference(expected, row.requested_bytes))
        rows.add_row(*cells, style="bold" if (row.step, row.moment) == (top.step, top.moment) else None)
    return rows


def is_pending(row: MomentPeaks) -> bool:
    """Whether requested bytes count freed blocks that another stream may still use. Allocated bytes do not count them
    (torch 2.11, c10/cuda/CUDACachingAllocator.cpp: ``free`` subtracts from allocated bytes at once, ``free_block``
    later from requested bytes).
    """
    return row.requested_bytes > row.allocated_bytes


def difference(predicted: int, measured: int) -> str:
    """Predicted less measured bytes in percent of measured bytes, such as ``+0.03``."""
    percent = round(100 * (predicted - measured) / measured, 2) if measured else 0
    return f"{percent:+.2f}" if percent else "0.00"


def notes(record: Record) -> list[str]:
    """Sentences about the prediction, the device and the allocator."""
    lines = []
    if record.predicted and not record.job.out_of_memory:
        predicted, measured = record.predicted.peak_requested, record.peak("requested_bytes")
        same = "the same moment" if (predicted.moment, predicted.step) == (measured.moment, measured.step) else \
            f"{predicted.moment.value} of step {predicted.step}"
        lines.append(f"Predicted peak: {size_text(predicted.bytes)} requested in {same}, "
                     f"{difference(predicted.bytes, measured.bytes)} % off.")
    if any(map(is_pending, record.job.moments)):
        lines.append(f"{PENDING.capitalize()}: requested, unlike allocated, still counts what was freed while another "
                     "stream might use it.")
    if record.not_predicted:
        lines.append(f"Not predicted: {record.not_predicted}")
    if record.job.measured_on is MeasuredOn.EMULATED:
        lines.append("Emulated GPU: no CUDA context, NCCL buffers or private workspaces of cuDNN are in these numbers.")
    retries = record.job.memory_stats.get("num_alloc_retries", 0)
    if retries:
        lines.append(f"The allocator gave cached segments back {retries} time(s) to get memory: this is slow.")
    if record.job.out_of_memory:
        lines.append(record.job.out_of_memory.message)
    if record.snapshot:
        lines.append(f"Memory history: {record.snapshot}")
    return lines
