"""Renders the maximum load of a GPU in training as sentences, and how a batch divides among unequal GPUs."""

from __future__ import annotations

from predictor.answer.prediction import MaximumLoad, Prediction
from predictor.report.units import size_text

_AT = {"per_device_train_batch_size": "batch {:,}", "sequence_length": "{:,} tokens",
       "per_device_train_batch_size_expandable": "batch {:,} with expandable_segments:True"}


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
    return [" ".join(lines), *load.search_limits, *_cautions(load)]


def _cautions(load: MaximumLoad) -> list[str]:
    """Sentences about the load with which the user's loop or framework may take the most beyond what is predicted."""
    if not load.cautions:
        return []
    name, most = max(load.cautions.items(), key=lambda row: row[1].more_bytes)
    at, *others = (_AT[one].format(getattr(load, one)) for one in (name, *(load.cautions.keys() - {name})))
    also = f"; {' and '.join(sorted(others))} may have too little room for it, too" if others else ""
    smaller = [_AT[one].format(size) for one, size in load.cautious.items() if size]
    even_then = f" Even then {_or(smaller)} fits." if smaller else ""
    return [f"Caution: {most.text}. At {at} this may take {size_text(most.more_bytes)} more, where only "
            f"{size_text(most.free_bytes)} are surely free{also}.{even_then}"]


def _or(items: list[str]) -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    *first, last = items
    return f"{', '.join(first)} or {last}" if first else last


def _batch(load: MaximumLoad) -> str:
    batch, expandable = load.per_device_train_batch_size, load.per_device_train_batch_size_expandable
    other = f" ({expandable:,} with expandable_segments:True)" if expandable else ""
    return f"{f'The largest batch that fits is {batch:,}' if batch else 'No batch fits'}{other}."


def divided(prediction: Prediction) -> list[str]:
    """Sentences on a job of several kinds of GPU: whose verdict this is, and the largest batch of each."""
    kinds = prediction.gpus
    if kinds is None:
        return []
    batches = ", ".join(f"{share.per_device_train_batch_size:,} on {share.gpu}" for share in kinds)
    limits = [f"{share.gpu}: {limit}" for share in kinds for limit in share.search_limits]
    return [f"This is the verdict of {kinds[0].gpu}, where the job fits worst. The largest batch that fits is {batches}"
            ": a script may give each GPU a batch of its own, and weigh the gradients by the samples.", *limits]
