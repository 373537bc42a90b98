"""What a model is fed: the batch of the reference loop at a shape."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle, islice
from typing import Any

import torch

from predictor.common.errors import InputError
from predictor.events.sizes import Shape
from predictor.model.code_models import CodeInputs, CodeModel, layout
from predictor.model.model_config import Kind, ModelConfig
from predictor.trace import audio_inputs, image_inputs
from predictor.trace.trace import ask

Size = tuple[int, int]
"""Height and width in pixels."""


def _filled(runs: list[int]) -> int:
    """Tokens of an image, with the text that comes between its parts."""
    return sum(runs) + (len(runs) if len(runs) > 1 else 0)


def _padded(batch: dict[str, torch.Tensor], padding: str) -> dict[str, torch.Tensor]:
    """A batch of text with one token of padding a sample, or with its samples in one row."""
    if padding == "right":
        mask = torch.ones_like(batch["input_ids"])
        mask[:, -1] = 0
        return batch | {"attention_mask": mask}
    if padding == "packed":
        rows, length = batch["input_ids"].shape
        batch["labels"][:, 0] = -100
        batch = batch | {"position_ids": torch.arange(length).expand(rows, -1)}
        return {name: values.reshape(1, -1) for name, values in batch.items()}
    return batch


@dataclass(frozen=True, eq=False)
class Inputs:
    """Makes batches for one model.

    Attributes:
        image_sizes: heights and widths that the pictures of a batch have in turn; none: as the vision tower takes them.
        video_frames: how many pictures are one video, which then counts as an image; None: pictures are images.
    """

    config: ModelConfig
    model: torch.nn.Module
    image_sizes: tuple[Size, ...] = ()
    video_frames: int | None = None
    _known: dict[tuple[Size | None, int], list[int]] = field(default_factory=dict, init=False, repr=False)

    @property
    def tokens_per_image(self) -> int:
        """Placeholder tokens that an image, or clip of sound, fills where it is its sample's only one."""
        return self.tokens_among(1)

    def tokens_among(self, count: int) -> int:
        """The same where its sample has so many; of the size with most; 0 if the model takes none."""
        return max(_filled(self._runs(size, count)) for size in self.image_sizes or (None,))

    def image_tokens(self, shape: Shape) -> tuple[int, ...]:
        """What the images of each sample of a batch fill."""
        return tuple(sum(_filled(self._runs(size, len(sizes))) for size in sizes) for sizes in self._samples(shape))

    def _samples(self, shape: Shape) -> list[list[Size | None]]:
        """The size of each image of each sample; the first samples have what does not divide."""
        each, more = divmod(shape.images, shape.batch)
        turn = cycle(self.image_sizes or (None,))
        return [list(islice(turn, each + (row < more))) for row in range(shape.batch)]

    def _runs(self, size: Size | None, count: int) -> list[int]:
        """Placeholder tokens that follow one another, for each time that they do in one image of so many in a sample:
        LLaVA-OneVision cuts a picture into tiles where it is the only one."""
        if (size, count) not in self._known:
            self._known[size, count] = self._ask(size, count)
        return self._known[size, count]

    def _ask(self, size: Size | None, count: int) -> list[int]:
        if self.config.kind is Kind.AUDIO_TEXT:
            return [audio_inputs.tokens(self.model)]
        if self.config.kind is not Kind.IMAGE_TEXT:
            return [0]
        features = getattr(self.model, "get_video_features" if self.video_frames else "get_image_features", None)
        if features is None:
            return [1]  # cross-attention looks at the images: one token names each
        pixels = self._pixels([[size] * count])
        if "pixel_values_videos" not in inspect.signature(features).parameters:  # LLaVA-NeXT-Video's own name
            pixels = {name.removesuffix("_videos"): values for name, values in pixels.items()}
        from predictor.trace import flash_attention

        with flash_attention.on_meta():  # the package itself takes no such tensors
            found = ask(features, self._fitting(pixels, features)).pooler_output
        parts = found if isinstance(found, (tuple, list)) else [found]
        tokens = sum(part.numel() // part.shape[-1] for part in parts) // count
        runs = int(pixels["video_grid_thw"][0, 0]) if self.video_frames and self._told_apart else 1
        return [tokens // runs] * runs

    @property
    def _told_apart(self) -> bool:
        """Whether text, the time, comes between the frames of a video (transformers 5.17,
        models/qwen3_vl/processing_qwen3_vl.py, replace_video_token)."""
        return self.config.document["model_type"].startswith("qwen3_vl")

    def batch(self, shape: Shape, padding: str) -> dict[str, torch.Tensor]:
        """Integers with their values on the CPU; floats, which only take room, on meta.

        Token ids and labels are int64 [batch, sequence]. Each sample begins with one text token, then its images, a
        text token after each where there is room, then text; the first samples have what does not divide. Packed
        samples are one row, with position ids that begin anew for each, as transformers' DataCollatorWithFlattening
        makes it.
        """
        if self.config.kind is Kind.IMAGE:
            return self._pixels([[None] * shape.images]) | {"labels": torch.zeros(shape.batch, dtype=torch.int64)}
        if self.config.kind is Kind.SPEECH:
            labels = torch.ones(shape.batch, shape.sequence, dtype=torch.int64)
            if padding == "right":
                labels[:, -1] = -100
            clips = audio_inputs.clips(self.model, shape.batch)
            return self._fitting(clips, type(self.model).forward) | {"labels": labels}
        samples = self._samples(shape)
        batch = self._text(shape, samples)
        pixels = self._fitting(self._pixels(samples), type(self.model).forward) if shape.images else {}
        if pixels and "cross_attention_mask" in self._arguments:
            seen = pixels["pixel_values"].shape[1:3]  # pictures of a sample, tiles of a picture
            batch["cross_attention_mask"] = torch.ones(shape.batch, shape.sequence, *seen, dtype=torch.int64)
        return _padded(batch, padding) | pixels

    def _text(self, shape: Shape, samples: list[list[Size | None]]) -> dict[str, torch.Tensor]:
        """Token ids, labels, and the types of tokens where the model takes them."""
        token = self._placeholder
        ids = torch.full((shape.batch, shape.sequence), 1 if token != 1 else 0)
        for row, sizes in enumerate(samples):
            runs, start = [tokens for size in sizes for tokens in self._runs(size, len(sizes))], 1
            room = sum(runs) + len(runs) < shape.sequence
            for tokens in runs:
                ids[row, start : start + tokens] = token
                start += tokens + room
        batch = {"input_ids": ids, "labels": torch.where(ids == token, -100, ids)}
        for name in ("mm_token_type_ids", "token_type_ids"):
            if shape.images and name in self._arguments:
                batch[name] = (ids == token).to(torch.int64) * (2 if self.video_frames else 1)
        return batch

    @property
    def options(self) -> dict[str, bool]:
        """What the reference loop calls the model with besides."""
        takes = "use_cache" in self._arguments or self.config.kind is not Kind.IMAGE
        return {"use_cache": False} if takes else {}

    @cached_property
    def _arguments(self) -> set[str]:
        return set(inspect.signature(type(self.model).forward).parameters)  # mixed precision wraps it

    @property
    def _placeholder(self) -> int:
        """The token that stands for a piece of an image or a sound; none has -1."""
        names = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index")
        if self.video_frames:
            names = ("video_token_id", "video_token_index")
        found = [getattr(self.model.config, name, None) for name in names]
        return next((token for token in found if token is not None), -1)

    @cached_property
    def _processor(self):
        return image_inputs.processor(self.config, self.model.config)

    def _pixels(self, samples: list[list[Size | None]]) -> dict[str, torch.Tensor]:
        """Of each sample's pictures, or clips of sound, in the dtype of the model."""
        count = sum(map(len, samples))
        if self.config.kind is Kind.AUDIO_TEXT:
            return audio_inputs.clips(self.model, count)
        config, dtype, size = self.model.config, self.model.dtype, next(iter(self.image_sizes), None)
        if self.video_frames:
            made = image_inputs.videos(self.config, config, count, self.video_frames, size)
            return {name: values.to(dtype) if values.is_meta else values for name, values in made.items()}
        fixed = self.config.image_size
        if fixed is None and self.config.kind is Kind.IMAGE_TEXT:
            if size is None:
                raise InputError(f"image_size is not given: {self.config.name} takes pictures of any size: say which "
                                 "by --image-size, such as 1024 or 768x1024 (height x width)")
            made = image_inputs.processed(self._processor, samples)
            return {name: torch.empty(values.shape, dtype=dtype, device="meta") if values.is_floating_point()
                    else values for name, values in made.items()}
        vision = getattr(config, "vision_config", config)
        side = fixed or getattr(vision, "image_size", None) or 224
        size = size or (tuple(side) if isinstance(side, (tuple, list)) else (side, side))
        return {"pixel_values": torch.empty(count, vision.num_channels, *size, dtype=dtype, device="meta")}

    @staticmethod
    def _fitting(made: dict[str, torch.Tensor], function) -> dict[str, torch.Tensor]:
        """Those that a function takes."""
        takes = inspect.signature(function).parameters
        return {name: values for name, values in made.items() if name in takes}


def inputs_of(config: ModelConfig, model: Any, image_sizes: tuple[tuple[int, int], ...], video_frames: int | None,
              dtype: str) -> Any:
    """What feeds a model: by its configuration, or by the user's function."""
    if isinstance(config, CodeModel):
        return CodeInputs(config, layout(model), dtype)
    return Inputs(config, model, image_sizes, video_frames)
