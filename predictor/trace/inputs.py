"""Makes the model inputs of the reference loop: one batch for a given shape."""

from __future__ import annotations

import inspect
from collections.abc import Hashable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice
from typing import Any

import torch

from predictor.common.errors import InputError
from predictor.events.sizes import Shape
from predictor.model import transformers_releases
from predictor.model.code_models import CodeInputs, CodeModel, layout
from predictor.model.model_config import Modality, ModelConfig
from predictor.trace import audio_inputs, image_inputs
from predictor.trace.trace import call_on_meta
from predictor.trace.trl_loss import TRL_SFT

Size = tuple[int, int]
"""Height and width in pixels."""
_RUNS: dict[Hashable, dict[tuple[Size | None, int], list[int]]] = {}
"""Configuration, sizes of images and frames of videos -> what :meth:`Inputs._runs` found, which takes a run of the
vision tower. It does not depend on how the model trains."""


def _filled(runs: list[int]) -> int:
    """Tokens that an image fills: its placeholder tokens, and one text token after each part if it has several."""
    return sum(runs) + (len(runs) if len(runs) > 1 else 0)


def _collated(batch: dict[str, torch.Tensor], padding: str) -> dict[str, torch.Tensor]:
    """A text batch as TRL's collators make it (TRL 1.16, trainer/sft_trainer.py): all tokens that are not padding are
    labels, those of images too; a row of packed samples has their bounds, other batches have a mask of all tokens."""
    batch = {**batch, "labels": batch["input_ids"].clone()}
    if padding == "packed":
        row = _padded(batch, padding)
        starts = (row["position_ids"][0] == 0).nonzero().flatten()
        bounds = torch.cat([starts, torch.tensor([row["position_ids"].shape[1]])]).to(torch.int32)
        numbers = torch.repeat_interleave(torch.arange(len(starts), dtype=torch.int32), bounds.diff())[None]
        return row | {"cu_seq_lens_q": bounds, "seq_idx": numbers}
    batch = _padded(batch, padding)
    mask = batch.setdefault("attention_mask", torch.ones_like(batch["input_ids"]))
    batch["labels"][mask == 0] = -100
    return batch


def _padded(batch: dict[str, torch.Tensor], padding: str) -> dict[str, torch.Tensor]:
    """Applies ``padding`` to a text batch: ``right`` masks the last token of each sample, ``packed`` puts all samples
    in one row."""
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
        config: the model's configuration.
        model: the model on meta, of a class of transformers.
        image_sizes: heights and widths in pixels that the images of a batch have in turn; empty: the size that the
            vision tower takes.
        video_frames: frames of a video, which then counts as one image; None: there are images, not videos.
    """

    config: ModelConfig
    model: Any
    image_sizes: tuple[Size, ...] = ()
    video_frames: int | None = None

    @property
    def tokens_per_image(self) -> int:
        """Tokens that an image or audio clip fills if it is the only one of its sample."""
        return self.tokens_among(1)

    def tokens_among(self, count: int) -> int:
        """Tokens that each of ``count`` images of a sample fills, for the largest of the image sizes; 0 if there are
        none."""
        return 0 if not count else max(_filled(self._runs(size, count)) for size in self.image_sizes or (None,))

    def image_tokens(self, shape: Shape) -> tuple[int, ...]:
        """Tokens that the images of each sample of a batch fill."""
        return tuple(sum(_filled(self._runs(size, len(sizes))) for size in sizes) for sizes in self._samples(shape))

    def _samples(self, shape: Shape) -> list[list[Size | None]]:
        """The size of each image of each sample; if images do not divide evenly, the first samples have one more."""
        each, remainder = divmod(shape.images, shape.batch)
        turn = cycle(self.image_sizes or (None,))
        return [list(islice(turn, each + (row < remainder))) for row in range(shape.batch)]

    def _runs(self, size: Size | None, count: int) -> list[int]:
        """Lengths of the runs of consecutive placeholder tokens in one image, in a sample with ``count`` images.

        The number of images matters: LLaVA-OneVision cuts an image into tiles only if it is the only one.
        """
        if (size, count) not in self._known_runs:
            self._known_runs[size, count] = self._compute_runs(size, count)
        return self._known_runs[size, count]

    @cached_property
    def _known_runs(self) -> dict[tuple[Size | None, int], list[int]]:
        return _RUNS.setdefault((self.config.fingerprint, self.image_sizes, self.video_frames), {})

    def _compute_runs(self, size: Size | None, count: int) -> list[int]:
        if self.config.kind is Modality.AUDIO_TEXT:
            return [audio_inputs.tokens(self.model)]
        if self.config.kind is not Modality.IMAGE_TEXT:
            return [0]
        features = transformers_releases.image_features(self.model, video=bool(self.video_frames))
        if features is None:
            return [1]  # the model reads images by cross-attention, and one token stands for each
        pixels = self._pixels([[size] * count])
        if "pixel_values_videos" not in inspect.signature(features).parameters:  # LLaVA-NeXT-Video's own name
            pixels = {name.removesuffix("_videos"): values for name, values in pixels.items()}
        from predictor.trace import flash_attention

        packaged = self.model.config._attn_implementation == "flash_attention_2"
        with flash_attention.on_meta() if packaged else nullcontext():  # the real package does not take meta tensors
            output = call_on_meta(features, self._fitting(pixels, features))
        parts = output if isinstance(output, (tuple, list)) else [output]
        tokens = sum(part.numel() // part.shape[-1] for part in parts) // count
        runs = int(pixels["video_grid_thw"][0, 0]) if self.video_frames and self._has_timestamps else 1
        return [tokens // runs] * runs

    @property
    def _has_timestamps(self) -> bool:
        """Whether each frame of a video is followed by a timestamp as text (transformers 5.17,
        models/qwen3_vl/processing_qwen3_vl.py, replace_video_token)."""
        return self.config.document["model_type"].startswith("qwen3_vl")

    def batch(self, shape: Shape, padding: str, loss: str = "") -> dict[str, torch.Tensor]:
        """The model's inputs, by name: integers on the CPU with real values, floats on meta.

        Token ids and labels are int64 [batch, sequence]. Each sample has one text token, then its images with a text
        token after each if the sequence is long enough, then text. If images do not divide evenly, the first samples
        have one more. Packed samples form one row; position ids begin at 0 for each sample, as transformers'
        DataCollatorWithFlattening makes them.
        """
        if self.config.kind is Modality.IMAGE:
            return self._pixels([[None] * shape.images]) | {"labels": torch.zeros(shape.batch, dtype=torch.int64)}
        if self.config.kind is Modality.SPEECH:
            labels = torch.ones(shape.batch, shape.sequence, dtype=torch.int64)
            if padding == "right":
                labels[:, -1] = -100
            clips = audio_inputs.clips(self.model, shape.batch)
            return self._fitting(clips, type(self.model).forward) | {"labels": labels}
        samples = self._samples(shape)
        batch = self._text(shape, samples)
        pixels = self._fitting(self._pixels(samples), type(self.model).forward) if shape.images else {}
        if pixels and "cross_attention_mask" in self._arguments:
            images_and_tiles = pixels["pixel_values"].shape[1:3]
            batch["cross_attention_mask"] = torch.ones(shape.batch, shape.sequence, *images_and_tiles,
                                                       dtype=torch.int64)
        if loss == TRL_SFT:  # processors make pictures of fp32, which no loop of TRL's casts
            return _collated(batch, padding) | {
                name: values.float() if values.is_floating_point() else values for name, values in pixels.items()}
        return _padded(batch, padding) | pixels

    def _text(self, shape: Shape, samples: list[list[Size | None]]) -> dict[str, torch.Tensor]:
        """Token ids, labels, and token types if the model takes them."""
        token = self._placeholder
        runs_of = [[tokens for size in sizes for tokens in self._runs(size, len(sizes))] for sizes in samples]
        length = shape.sequence
        if merges := transformers_releases.merges_images(self.model):
            lengths = {length - sum(runs) + len(runs) for runs in runs_of}
            if len(lengths) > 1:
                raise InputError("images do not divide evenly among the samples of a batch: not predicted where the "
                                 "model inserts the tokens of images itself: use transformers 4.46 or later")
            length, runs_of = lengths.pop(), [[1] * len(runs) for runs in runs_of]
        ids = torch.full((shape.batch, length), 1 if token != 1 else 0)
        for row, runs in enumerate(runs_of):
            start, room = 1, sum(runs) + len(runs) < length
            for tokens in runs:
                ids[row, start : start + tokens] = token
                start += tokens + room
        batch = {"input_ids": ids, "labels": torch.where(ids == token, -100, ids)}
        if merges:
            batch["attention_mask"] = torch.ones_like(ids)
        for name in ("mm_token_type_ids", "token_type_ids"):
            if shape.images and name in self._arguments:
                batch[name] = (ids == token).to(torch.int64) * (2 if self.video_frames else 1)
        return batch

    @property
    def options(self) -> dict[str, bool]:
        """Further keyword arguments with which the reference loop calls the model."""
        takes = "use_cache" in self._arguments or self.config.kind is not Modality.IMAGE
        return {"use_cache": False} if takes else {}

    @cached_property
    def _arguments(self) -> set[str]:
        return set(inspect.signature(type(self.model).forward).parameters)  # mixed precision wraps the model's own

    @property
    def _placeholder(self) -> int:
        """The placeholder token id of images, videos or audio; -1 if the model has none."""
        names: tuple[str, ...] = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index")
        if self.video_frames:
            names = ("video_token_id", "video_token_index")
        tokens = [getattr(self.model.config, name, None) for name in names]
        return next((token for token in tokens if token is not None), -1)

    @cached_property
    def _processor(self):
        return image_inputs.processor(self.config, self.model.config)

    def _pixels(self, samples: list[list[Size | None]]) -> dict[str, torch.Tensor]:
        """Inputs for the images, videos or audio clips of all samples; floats are on meta, in the model's dtype."""
        count = sum(map(len, samples))
        if self.config.kind is Modality.AUDIO_TEXT:
            return audio_inputs.clips(self.model, count)
        config, dtype, size = self.model.config, self.model.dtype, next(iter(self.image_sizes), None)
        if self.video_frames:
            videos = image_inputs.videos(self.config, config, count, self.video_frames, size)
            return {name: values.to(dtype) if values.is_meta else values for name, values in videos.items()}
        fixed = self.config.image_size
        if fixed is None and self.config.kind is Modality.IMAGE_TEXT:
            self.config.check_image_size(self.image_sizes)
            sizes = [[image for image in sample if image is not None] for sample in samples]
            images = image_inputs.processed(self._processor, sizes)
            return {name: torch.empty(values.shape, dtype=dtype, device="meta") if values.is_floating_point()
                    else values for name, values in images.items()}
        vision = getattr(config, "vision_config", config)
        side = fixed or getattr(vision, "image_size", None) or 224
        size = size or (tuple(side) if isinstance(side, (tuple, list)) else (side, side))
        return {"pixel_values": torch.empty(count, vision.num_channels, *size, dtype=dtype, device="meta")}

    @staticmethod
    def _fitting(tensors: dict[str, torch.Tensor], function) -> dict[str, torch.Tensor]:
        """The tensors that are parameters of a function."""
        parameters = inspect.signature(function).parameters
        return {name: values for name, values in tensors.items() if name in parameters}


def inputs_of(config: ModelConfig, model: Any, image_sizes: tuple[tuple[int, int], ...], video_frames: int | None,
              dtype: str) -> Any:
    """The object that makes a model's batches: from its configuration, or by the user's own function."""
    if isinstance(config, CodeModel):
        return CodeInputs(config, layout(model), dtype)
    return Inputs(config, model, image_sizes, video_frames)
