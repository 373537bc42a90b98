"""Renders the maximum load of a GPU in training as sentences."""

from __future__ import annotations

from predictor.answer.prediction import MaximumLoad, Prediction


def sentences(prediction: Prediction) -> list[str]:
    """Sentences about the largest batch and the longest sequence that fit; empty if they were not searched."""
    load = prediction.maximum_load
    if load is None:
        return []
    lines = [_batch(load)]
    if load.sequence_length is not None:
        batch = f"at batch {prediction.workload['per_device_train_batch_size']:,}"
        lines.append(f"The longest sequence {batch} is {load.sequence_length:,} tokens." if load.sequence_length
                     else f"No sequence fits {batch}.")
    return [" ".join(lines), *load.search_limits]


def _batch(load: MaximumLoad) -> str:
    batch, expandable = load.per_device_train_batch_size, load.per_device_train_batch_size_expandable
    other = f" ({expandable:,} with expandable_segments:True)" if expandable else ""
    return f"{f'The largest batch that fits is {batch:,}' if batch else 'No batch fits'}{other}."
