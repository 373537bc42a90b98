"""Renders the memory of a dataset's random batches as sentences."""

from __future__ import annotations

import numpy as np

from predictor.answer.prediction import Chances, Prediction
from predictor.report.layout import numbered
from predictor.report.units import size_text
from predictor.workload.samples import Samples

LEAST = 1e-12
"""Smaller probabilities are below the rounding error of the sums that they come from."""
ALL = 1 - LEAST


def sentences(prediction: Prediction) -> list[str]:
    """Sentences about the worst batch, the peaks of other batches, and how many of them fit; empty without samples."""
    chances, workload = prediction.samples, prediction.workload
    if chances is None:
        return []
    size = workload["per_device_train_batch_size"]
    padding = "padding included" if workload["padding"] != "none" else "padding included, which no mask hides"
    lines = [
        f"This is the worst batch of {chances.samples:,} samples: {size:,} of {chances.tokens:,} tokens"
        f"{f', {padding}' if chances.varied and size > 1 else ''}, with {_images(chances.images)}"
        f"{_instead(chances)}. {_others(chances)}"]
    if chances.verdicts:
        batches = workload["data_parallel_size"] * workload["gradient_accumulation_steps"]
        for verdict, words in (("does_not_fit", "do not fit"), ("uncertain", "may not fit")):
            share = chances.verdicts[verdict]
            if share > LEAST:
                step = 1 - (1 - share) ** batches
                often = _one_in(step, "optimizer step", "optimizer steps")
                lines.append(f"{share:.3%} of random batches {words}: {often[0].lower()}{often[1:]} has one.")
        if len(lines) == 1:
            lines.append("Every batch fits.")
        else:
            lines.append("Changes are judged of batches of one length only: leave out --samples, and give "
                         f"--sequence-length {chances.tokens}.")
    return lines


def _images(count: int) -> str:
    return f"{count:,} image{'' if count == 1 else 's'}" if count else "no images"


def _instead(chances: Chances) -> str:
    """The number of images that was assumed, if the batch has fewer images than formulas cover."""
    if chances.images == chances.answered_images:
        return ""
    return f" (predicted as if with {chances.answered_images}: formulas need at least that many images in a batch)"


def _others(chances: Chances) -> str:
    """A sentence about the memory of other random batches."""
    if chances.probability >= ALL:
        return "Every random batch needs as much."
    often = _one_in(chances.probability, "random batch", "random batches")
    half, most = (size_text(size) for size in (chances.median_peak_requested_bytes,
                                               chances.percentile_99_peak_requested_bytes))
    if half == most:
        return f"{often} needs as much; 99 of 100 request at most {most}."
    return f"{often} needs as much; half of them request at most {half}, 99 of 100 at most {most}."


def _one_in(probability: float, singular: str, plural: str) -> str:
    """A probability in words, such as "One in 20 random batches".

    Args:
        singular, plural: name of the counted things.
    """
    if probability <= LEAST:
        return f"Fewer than one in {1 / LEAST:,.0f} {plural}"
    if probability >= 0.95:
        return f"Every {singular}" if probability >= ALL else f"Nearly every {singular}"
    return f"One in {1 / probability:,.{0 if probability < 0.095 else 1}f} {plural}"


def counted(samples: Samples) -> str:
    """A sentence about the samples of a dataset."""
    tokens, images = samples.tokens, samples.images
    longest, middle = int(tokens.max()), int(np.median(tokens))
    sizes = len({size for of_sample in samples.pictures for size in of_sample})
    kinds = f" of {sizes:,} size{'' if sizes == 1 else 's'}" if sizes else ""
    pictures = f"{int(images.sum()):,} images{kinds}, at most {int(images.max()):,} in a sample" if images.any() else \
        "no images"
    least = int(tokens.min())
    spread = f"{longest:,} tokens" if least == longest else f"{least:,} to {longest:,} tokens, {middle:,} in the middle"
    return f"{numbered(len(samples), 'sample')}: {spread}; {pictures}."
