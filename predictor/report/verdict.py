"""Renders the first lines of every report: the workload, the verdict (``predictor.jobs.survival``), and the peaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from predictor.answer.prediction import Bound, OutOfMemory, Peak, Prediction
from predictor.events.events import Moment
from predictor.report.units import size_text
from predictor.workload.keys import PINNED

COLOURS = {"fits": "bold green", "uncertain": "bold yellow", "does_not_fit": "bold red", None: "bold"}


def title(prediction: Prediction) -> str:
    """The workload in one line."""
    w = prediction.workload
    if "command" in w:  # a job learned from a script: only its command and shape are known
        shape = {"batch": "per_device_train_batch_size", "sequence": "sequence_length", "images": "images_per_sample"}
        return " · ".join((" ".join(w["command"]), *(f"{symbol} {w[shape[symbol]]:,}" for symbol in w["varied"]),
                           _recorded(prediction)))
    if w.get("mode") == "inference":
        return inference(w)
    engine = f"ZeRO-{w['zero_stage']}" if w.get("engine") == "deepspeed" else str(w.get("engine"))
    gpus = w.get("data_parallel_size", 1) * w.get("tensor_parallel_size", 1)
    accumulation = w.get("gradient_accumulation_steps", 1)
    parts = [
        str(w.get("model")), str(w.get("recipe")),
        f"batch {w.get('per_device_train_batch_size'):,}" + (
            f" x {w['sequence_length']:,} tokens" if w.get("sequence_length") else "") + (
            " packed into one row" if w.get("padding") == "packed" else ""),
        f"{accumulation} accumulation steps" if accumulation > 1 else "",
        f"evaluation of batch {w['per_device_eval_batch_size']:,}" if w.get("per_device_eval_batch_size") else "",
        str(w.get("dtype")) if w.get("mixed_precision", "none") == "none" else
        f"{w['mixed_precision']} over {w.get('dtype')}", str(w.get("optim")),
        "checkpointing" if w.get("gradient_checkpointing") else "no checkpointing",
        f"{engine} on {gpus} GPU{'s' if gpus > 1 else ''}",
        f"tensor parallel of {w['tensor_parallel_size']}" if w.get("tensor_parallel_size", 1) > 1 else "",
        f"offload {w['offload']}" if w.get("offload") else "",
        _recorded(prediction) if "learned" in w else "", *_other_releases(w),
    ]
    return " · ".join(part for part in parts if part)


def _other_releases(w: Mapping[str, Any]) -> list[str]:
    """The packages whose predicted release is not the usual one."""
    used = {name: version for name, version in w.get("versions", {}).items()
            if name != "deepspeed" or w.get("engine") == "deepspeed"}
    return [f"{name} {version}" for name, version in used.items() if version != PINNED.get(name, version)]


def _recorded(prediction: Prediction) -> str:
    """How a recorded job was recorded: run for this answer, or learned before."""
    formula = prediction.provenance["formula"]
    if not formula.get("run"):
        return f"learned ({prediction.workload['learned']})"
    return f"run on the emulated GPU, rank {formula['rank']} of {formula['world_size']}"


def inference(w: Mapping[str, Any]) -> str:
    """An inference workload in one line."""
    turns = w.get("conversation")
    length = f"{len(turns)} turns" if turns else f"{w['sequence_length']:,} tokens, {w['max_new_tokens']:,} new ones"
    bits = [f"weights of {bits} bits" for bits in (4, 8) if (w["quantization"] or {}).get(f"load_in_{bits}bit")]
    return " · ".join((str(w["model"]), "inference", f"batch {w['per_device_eval_batch_size']:,} x {length}", *bits,
                       str(w["dtype"]), f"{w['cache_implementation']} cache"))


def verdict(prediction: Prediction, *, advises: bool = True) -> str:
    """The verdict in a sentence, with the peak and the capacity.

    Args:
        advises: whether to say, where no GPU is named, how to name one.
    """
    reserved = prediction.reserved
    course = prediction.course
    of = " by training's largest batch" if course and course.eval_steps and not course.fails_in_training else ""
    peak = f"{size_text(prediction.peak_allocated_bytes)} allocated{of}, {size_text(reserved.bytes)} reserved"
    if prediction.verdict is None:
        kernels = prediction.provenance.get("kernels_of")
        advice = " No GPU named: add --gpu NAME or --capacity-bytes SIZE for a verdict." if advises else ""
        return f"Peak {peak}{f' with the kernels of {kernels}' if kernels else ''}.{advice}"
    gpu = prediction.workload.get("gpu") or "the given capacity"
    capacity = size_text(prediction.capacity_bytes or 0)
    note = "" if prediction.workload.get("capacity_bytes") or _measured(gpu) else " (an assumed capacity)"
    if prediction.verdict == "fits":
        return f"Fits {gpu}: peak {peak} of {capacity}{note}; {size_text(prediction.headroom_bytes or 0)} stay free."
    if prediction.verdict == "uncertain":
        return (f"Uncertain on {gpu}: peak {peak} of {capacity}{note}. It runs out of memory{failure(prediction)} if "
                f"CUDA context, NCCL and libraries take {size_text(prediction.provenance.get('runtime_bytes', 0))}"
                f"{_at_most(reserved)}.{_at_least(reserved, prediction.capacity_bytes or 0)}")
    paged = prediction.inference and prediction.inference.paged
    if paged and not paged.sequences and prediction.out_of_memory is None:
        least = paged.least_gpu_memory_utilization
        return (f"Does not fit {gpu} ({capacity}{note}): gpu_memory_utilization {paged.gpu_memory_utilization:g} "
                f"leaves {size_text(paged.reserved_bytes)} for the cache, too little for one sequence: " + (
                    f"raise it to {least:g}." if least <= 1 else "take a larger GPU, or a shorter prompt."))
    return f"Does not fit {gpu} ({capacity}{note}): out of memory{failure(prediction)}. It would peak at {peak}."


def failure(prediction: Prediction) -> str:
    """The place where the job runs out of memory, as part of a sentence; empty if it does not run out."""
    return "" if prediction.out_of_memory is None else failed_at(prediction.out_of_memory)


def failed_at(error: OutOfMemory) -> str:
    """The place of a failed allocation, as part of a sentence."""
    when = "start-up" if error.step == 0 else f"{error.moment.value} of {_step(error.moment)} {error.step}"
    where = " in ".join(part for part in (error.operator, error.module) if part)
    return f" in {when} on rank {error.rank}, where {where or 'an allocation'} wants {size_text(error.requested_bytes)}"


def peak_text(peak: Peak) -> str:
    """The moment, step, rank and operator of the peak, as a sentence."""
    when = "start-up" if peak.step == 0 else f"{_step(peak.moment)} {peak.step}"
    return f"The peak is in {peak.moment.value} of {when} on rank {peak.rank}: {peak.operator or 'an allocation'}" + (
        f" in {peak.module}." if peak.module else ".")


def _step(moment: Moment) -> str:
    return "turn" if moment in (Moment.PREFILL, Moment.DECODE) else "step"


class PeakText(NamedTuple):
    """A row of the table of peaks. ``brief`` is its meaning in one line."""

    name: str
    size: str
    meaning: str
    brief: str


def bounds(prediction: Prediction) -> list[PeakText]:
    """The rows of the table of peaks, and the least capacity that a GPU needs if it was searched."""
    peak, idle = prediction.peak, prediction.fragmentation_bytes
    allocated_on, reserved_on = (_elsewhere(peak, rank) for rank in (peak.allocated_rank, peak.reserved_rank))
    idle_text = f"; {size_text(idle)} of it idle at the allocated peak" if idle and not reserved_on else ""
    idle_brief = f", {size_text(idle)} idle" if idle and not reserved_on else ""
    rows = [
        ("requested", _bound(prediction.requested), "what tensors asked for (requested_bytes.all.peak)",
         "what tensors asked for"),
        ("allocated", _bound(prediction.allocated),
         f"in whole blocks (torch.cuda.max_memory_allocated){allocated_on}",
         f"in whole blocks (max_memory_allocated){allocated_on}"),
        ("reserved", _bound(prediction.reserved),
         f"held by PyTorch (torch.cuda.max_memory_reserved){reserved_on}{idle_text}",
         f"held by PyTorch (max_memory_reserved){reserved_on}{idle_brief}"),
        ("device", _device(prediction), *_device_meaning(prediction))]
    least = prediction.minimum_capacity_bytes
    if least:
        meaning = f"the least that a GPU needs, {how_known(*_measured_on(prediction))}"
        rows.append(("capacity", size_text(least), meaning, meaning))
    return [PeakText(*row) for row in rows]


def _device(prediction: Prediction) -> str:
    """The device peak; where memory outside PyTorch's allocator is assumed, only its bounds."""
    device = prediction.device
    if device is None or device.low is None or device.high is None or ASSUMED not in _measured_on(prediction):
        return _bound(device)
    return f"{size_text(device.low)} to {size_text(device.high)}"


def _device_meaning(prediction: Prediction) -> tuple[str, str]:
    """What the device peak is, and the same in few words."""
    if prediction.device is None:
        return ("what nvidia-smi shows",) * 2
    known = how_known(*_measured_on(prediction))
    return f"what nvidia-smi shows, {known}", f"what nvidia-smi shows, {known.replace(' and NCCL', '')}"


ASSUMED = "assumed"
RUNTIME_MEASURED = {"device": "as measured", "emulated": "as emulated", "assumed": ASSUMED}
"""Where the memory outside PyTorch's allocator was measured -> words that follow its name."""


def how_known(context: str, communicators: str) -> str:
    """The words for where the memory outside PyTorch's allocator was measured: the context's and the communicators'
    (``device``, ``emulated`` or ``assumed``)."""
    if context == communicators:
        return f"context and NCCL {RUNTIME_MEASURED[context]}"
    return f"context {RUNTIME_MEASURED[context]}, NCCL {RUNTIME_MEASURED[communicators]}"


def _measured_on(prediction: Prediction) -> tuple[str, str]:
    """Where the memory outside PyTorch's allocator was measured: the context's and the communicators'."""
    runtime = prediction.provenance.get("runtime", {})
    context = runtime.get("measured_on", ASSUMED)
    return context, runtime.get("communicators_measured_on", context)


def _elsewhere(peak: Peak, rank: int) -> str:
    return f" on rank {rank}" if rank != peak.rank else ""


def _bound(bound: Bound | None) -> str:
    if bound is None:
        return "not predicted"
    size = size_text(bound.bytes)
    if bound.low is None or bound.high is None or size == size_text(bound.low) == size_text(bound.high):
        return size
    return f"{size} ({size_text(bound.low)} to {size_text(bound.high)})"


def _at_most(reserved: Bound) -> str:
    """The upper end of the reserved peak, as part of a sentence; empty if it reads the same as the peak."""
    if reserved.high is None or size_text(reserved.high) == size_text(reserved.bytes):
        return ""
    return f" and PyTorch reserves {size_text(reserved.high)}, the upper end of its interval"


def _at_least(reserved: Bound, capacity_bytes: int) -> str:
    """How a job may fit whose predicted reserved peak is above the capacity, as a sentence; empty for any other job.

    Such a job survives in a simulation with as much memory as the lower end of the interval stands for.
    """
    if reserved.low is None or reserved.bytes <= capacity_bytes:
        return ""
    return f" At the lower end, {size_text(reserved.low)}, it fits."


def _measured(gpu: str) -> bool:
    from predictor.common import gpus

    return gpu not in gpus.GPUS or gpus.GPUS[gpu].measured
