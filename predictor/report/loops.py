"""Renders how much reserved memory depends on the training loop."""

from __future__ import annotations

from predictor.answer.prediction import LoopVariant, Prediction
from predictor.report.units import size_text


def sentences(prediction: Prediction) -> list[str]:
    """A sentence about the spread, and one for each loop; empty if no loops were simulated."""
    if not prediction.loops:
        return []
    known = [one.reserved_bytes for one in prediction.loops if one.reserved_bytes is not None]
    lines = [f"- {one.loop}: {_ends(one)}" for one in prediction.loops]
    if not known:
        return ["In every simulated loop it runs out of memory.", *lines]
    spread = f"{size_text(min(known))} to {size_text(max(known))}, {max(known) / min(known) - 1:.1%}"
    failing = len(lines) - len(known)
    dies = f", and the job runs out of memory in {failing} of {len(lines)}" if failing else ""
    if prediction.is_fragile:
        return [f"Reserved memory is fragile: it depends on details of the loop ({spread}){dies}:", *lines]
    return [f"Reserved memory hardly depends on the loop where it survives ({spread}){dies}:" if failing else
            f"Reserved memory hardly depends on the loop ({spread}):", *lines]


def _ends(variant: LoopVariant) -> str:
    """How a job ends in a loop."""
    if variant.reserved_bytes is not None:
        return size_text(variant.reserved_bytes)
    return "runs out of memory" + (f" at step {variant.failed_at:,}" if variant.failed_at else "")
