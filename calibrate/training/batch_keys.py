"""Reads workload keys from a batch: samples, tokens, images, padding. Allocates nothing on the batch's device."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from calibrate.records.record import shape_text
from predictor.common.errors import InputError

MEDIA = ("pixel_values", "input_features")
GIVE_WORKLOAD = "give a Workload"


@dataclass(frozen=True)
class Extent:
    """Size of a micro-batch: samples, tokens in each sample, and elements of its images or audio features."""

    samples: int
    tokens: int
    media_elements: int

    def within(self, other: Extent) -> bool:
        """Whether no dimension is larger than in ``other``."""
        return (self.samples <= other.samples and self.tokens <= other.tokens
                and self.media_elements <= other.media_elements)

    def __str__(self) -> str:
        return shape_text(self.samples, self.tokens)


def arguments_by_name(model: Any, arguments: tuple, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a model's forward call by parameter name."""
    names = inspect.signature(type(model).forward).parameters
    return dict(zip(list(names)[1:], arguments)) | dict(keywords)


def extent(batch: Mapping[str, Any]) -> Extent | None:
    """Size of a batch from its tensors' shapes; None if it has no tensor that shows it."""
    ids = next((batch[name] for name in ("input_ids", "labels") if _shape(batch.get(name))), None)
    media = next((batch[name] for name in MEDIA if _shape(batch.get(name))), None)
    if ids is None and media is None:
        return None
    shape = _shape(ids if ids is not None else media) or ()
    elements = 1 if media is not None else 0
    for size in _shape(media) or ():
        elements *= size
    return Extent(shape[0], shape[1] if ids is not None and len(shape) > 1 else 0, elements)


def _shape(value: Any) -> tuple[int, ...] | None:
    shape = getattr(value, "shape", None)
    return tuple(shape) if shape else None


def batch_keys(batch: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Workload keys that describe a batch.

    Args:
        batch: arguments of the model's forward.
        document: the model's ``config.json``.

    Raises:
        InputError: no key describes such a batch.
    """
    ids = batch.get("input_ids")
    if ids is None and "input_features" in batch:  # speech to text: the tokens are in the labels
        ids = batch.get("labels")
    if any(name in batch for name in ("pixel_values_videos", "inputs_embeds")):
        raise InputError(f"batches with pixel_values_videos or inputs_embeds are not read: {GIVE_WORKLOAD}")
    if ids is None or ids.dim() < 2:
        if "pixel_values" not in batch:
            raise InputError(f"the batch has neither input_ids nor pixel_values: {GIVE_WORKLOAD}")
        pixels = batch["pixel_values"]
        return {"per_device_train_batch_size": pixels.shape[0], "image_size": _sides(*pixels.shape[-2:])}
    labels = batch.get("labels")
    if labels is not None and labels.shape != ids.shape:
        raise InputError(f"labels are {tuple(labels.shape)}, input_ids {tuple(ids.shape)}: labels of another "
                         "shape are not predicted")
    samples, tokens = ids.shape
    keys = {"per_device_train_batch_size": samples, "sequence_length": tokens} | _padding(batch, samples, tokens)
    return keys | _media(batch, keys["per_device_train_batch_size"], document)


def _padding(batch: Mapping[str, Any], samples: int, tokens: int) -> dict[str, Any]:
    """``padding``, and for packed samples their number and length."""
    mask, positions = batch.get("attention_mask"), batch.get("position_ids")
    if mask is not None:
        return {"padding": "none" if bool(mask.cpu().bool().all()) else "right"}
    if positions is None or samples > 1:
        return {}
    starts = [index for index, position in enumerate(positions.cpu().flatten().tolist()) if position == 0]
    if len(starts) < 2:
        return {}
    lengths = {end - start for start, end in zip(starts, [*starts[1:], tokens])}
    if len(lengths) > 1:
        raise InputError(f"packed samples of different lengths are not read from a batch: {GIVE_WORKLOAD}")
    return {"padding": "packed", "per_device_train_batch_size": len(starts), "sequence_length": lengths.pop()}


def _media(batch: Mapping[str, Any], samples: int, document: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the images or audio clips."""
    if "input_features" in batch:
        if "audio_config" not in document:
            return {}
        return _images_per_sample(batch["input_features"].shape[0], samples, "clips")
    pixels = batch.get("pixel_values")
    if pixels is None:
        return {}
    grid, sizes = batch.get("image_grid_thw"), batch.get("image_sizes")
    if grid is not None:
        patch = document["vision_config"]["patch_size"]
        sides = [(height * patch, width * patch) for _, height, width in grid.cpu().tolist()]
    elif sizes is not None:
        sides = [tuple(side) for side in sizes.cpu().tolist()]
    elif pixels.dim() == 4:
        return _images_per_sample(pixels.shape[0], samples, "images")
    else:
        raise InputError(f"the sizes of the pictures cannot be read from the batch: {GIVE_WORKLOAD} with image_size")
    image_size = ",".join(str(_sides(*side)) for side in sides)
    return _images_per_sample(len(sides), samples, "images") | {"image_size": image_size}


def _images_per_sample(count: int, samples: int, media: str) -> dict[str, Any]:
    """``images_per_sample``, which must be the same for every sample."""
    if count % samples:
        raise InputError(f"{count} {media} of {samples} samples: only an equal number in every sample is read: "
                         f"{GIVE_WORKLOAD}")
    return {"images_per_sample": count // samples}


def _sides(height: int, width: int) -> int | str:
    return height if height == width else f"{height}x{width}"


# --- before the first batch ------------------------------------------------------------------------------


def first_batch(loader: Any, samples: int) -> Mapping[str, Any] | None:
    """The collated first samples of the loader's dataset; None if they cannot be had.

    The loader's sampler is not touched. The states of random number generators are restored.
    """
    data: Any = getattr(loader, "dataset", None)
    collate = getattr(loader, "collate_fn", None)
    if collate is None or not hasattr(data, "__getitem__") or not hasattr(data, "__len__") or not len(data):
        return None
    with _same_random_numbers():
        try:
            batch = collate([data[index] for index in range(min(samples, len(data)))])
        except Exception:  # the user's code fails outside its loop: the first real batch is read instead
            return None
    return batch if isinstance(batch, Mapping) else None


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    import numpy
    import torch

    before = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        numpy.random.set_state(before[1])
        torch.set_rng_state(before[2])
