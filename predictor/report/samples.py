"""What random batches of a dataset need, in sentences."""

from __future__ import annotations

from predictor.prediction import Prediction
from predictor.report.units import size_text

LEAST = 1e-12
"""Smaller probabilities are lost in the sums that they come from."""


def sentences(prediction: Prediction) -> list[str]:
    """Which batch was answered, how high the others go, and how many of them fit."""
    found, workload = prediction.samples, prediction.workload
    if found is None:
        return []
    size = workload["per_device_train_batch_size"]
    lines = [
        f"This is the worst batch of {found.samples:,} samples: {size:,} of {found.tokens:,} tokens, padding included, "
        f"with {found.images:,} image{'s' if found.images > 1 else ''}. {_one_in(found.probability)} random batches "
        f"needs as much; half of them request at most {size_text(found.median_peak_requested_bytes)}, 99 of 100 at "
        f"most {size_text(found.percentile_99_peak_requested_bytes)}."]
    if found.verdicts:
        batches = workload["data_parallel_size"] * workload["gradient_accumulation_steps"]
        for verdict, words in (("does_not_fit", "do not fit"), ("uncertain", "may not fit")):
            share = found.verdicts[verdict]
            if share > LEAST:
                step = 1 - (1 - share) ** batches
                lines.append(f"{share:.3%} of random batches {words}: {_one_in(step).lower()} optimizer steps has one.")
        if len(lines) == 1:
            lines.append("Every batch fits.")
    return lines


def _one_in(probability: float) -> str:
    if probability <= LEAST:
        return f"Fewer than one in {1 / LEAST:,.0f}"
    return f"One in {1 / probability:,.0f}" if probability < 0.095 else f"One in {1 / probability:.1f}"
