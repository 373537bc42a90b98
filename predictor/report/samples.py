"""What random batches of a dataset need, in sentences."""

from __future__ import annotations

from predictor.answer.prediction import Chances, Prediction
from predictor.report.units import size_text

LEAST = 1e-12
"""Smaller probabilities are lost in the sums that they come from."""
ALL = 1 - LEAST


def sentences(prediction: Prediction) -> list[str]:
    """Which batch was answered, how high the others go, and how many of them fit."""
    found, workload = prediction.samples, prediction.workload
    if found is None:
        return []
    size = workload["per_device_train_batch_size"]
    hidden = "padding included" if workload["padding"] != "none" else "padding included, which no mask hides"
    lines = [
        f"This is the worst batch of {found.samples:,} samples: {size:,} of {found.tokens:,} tokens"
        f"{f', {hidden}' if found.varied and size > 1 else ''}, with {_images(found.images)}"
        f"{_instead(found)}. {_others(found)}"]
    if found.verdicts:
        batches = workload["data_parallel_size"] * workload["gradient_accumulation_steps"]
        for verdict, words in (("does_not_fit", "do not fit"), ("uncertain", "may not fit")):
            share = found.verdicts[verdict]
            if share > LEAST:
                step = 1 - (1 - share) ** batches
                often = _one_in(step, "optimizer step", "optimizer steps")
                lines.append(f"{share:.3%} of random batches {words}: {often[0].lower()}{often[1:]} has one.")
        if len(lines) == 1:
            lines.append("Every batch fits.")
    return lines


def _images(count: int) -> str:
    return f"{count:,} image{'' if count == 1 else 's'}" if count else "no images"


def _instead(found: Chances) -> str:
    """What was assumed of batches with too few images."""
    if found.images == found.answered_images:
        return ""
    return f" (answered as if with {found.answered_images}: formulas are of batches with at least so many)"


def _others(found: Chances) -> str:
    """What random batches need beside the worst."""
    if found.probability >= ALL:
        return "Every random batch needs as much."
    often = _one_in(found.probability, "random batch", "random batches")
    return (f"{often} needs as much; half of them request at most "
            f"{size_text(found.median_peak_requested_bytes)}, 99 of 100 at most "
            f"{size_text(found.percentile_99_peak_requested_bytes)}.")


def _one_in(probability: float, one: str, several: str) -> str:
    """How often, of things in words: one of them, and more."""
    if probability <= LEAST:
        return f"Fewer than one in {1 / LEAST:,.0f} {several}"
    if probability >= 0.95:
        return f"Every {one}" if probability >= ALL else f"Nearly every {one}"
    return f"One in {1 / probability:,.{0 if probability < 0.095 else 1}f} {several}"
