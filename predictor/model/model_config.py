"""A Hugging Face configuration, and the facts of a model that follow from it without building the model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from predictor.common.errors import InputError

FIXED = ("llava", "paligemma", "gemma3")
"""``model_type`` of models whose processors resize every image to the size that the vision tower takes."""
ANY_SIZE = ("pixtral",)
"""``model_type`` of vision towers that take images of any size, in any model."""

POSITIONS = ("max_position_embeddings", "n_positions")
"""Keys of a model's configuration that give the number of its positions."""
ROUTED = ("aria", "aria_text", "dbrx", "jetmoe", "longcat_flash", "nllb-moe", "step3p5", "step3p7",
          "switch_transformers")
"""``model_type`` of mixture-of-experts models that run their experts one after another, each on the tokens routed to it
(transformers 5.17, their modeling files): their allocations depend on the data. All other models use grouped products,
whose buffers have the same size for any routing (integrations/moe.py, grouped_mm_experts_forward)."""


class Modality(str, Enum):
    """The modality of a model's samples."""

    IMAGE_TEXT = "image_text"
    TEXT = "text"
    IMAGE = "image"
    AUDIO_TEXT = "audio_text"
    SPEECH = "speech"

    @property
    def has_media(self) -> bool:
        """Whether ``Shape.images`` counts the images or audio clips of samples."""
        return self not in (Modality.TEXT, Modality.SPEECH)  # in speech recognition, every sample has exactly one clip


@dataclass(frozen=True)
class ModelConfig:
    """A Hugging Face configuration.

    Attributes:
        name: the user's name for the model.
        document: the parsed ``config.json``.
        preprocessor: settings of the parsed ``preprocessor_config.json`` beside it that do not follow from the
            configuration.
    """

    name: str
    document: dict[str, Any]
    preprocessor: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> Modality:
        """The modality of samples, derived from the configuration."""
        if "vision_config" in self.document:
            return Modality.IMAGE_TEXT
        if "audio_config" in self.document:
            return Modality.AUDIO_TEXT
        if "num_mel_bins" in self.document and "vocab_size" in self.document:
            return Modality.SPEECH
        architectures = self.document.get("architectures")
        classifies = any(str(name).endswith("ForImageClassification") for name in architectures or ())
        takes_images = "num_channels" in self.document or (
            "image_size" in self.document and "vocab_size" not in self.document)
        return Modality.IMAGE if classifies or takes_images else Modality.TEXT

    @property
    def routes_by_data(self) -> bool:
        """Whether allocations depend on the routing of tokens to experts."""
        text = self.document.get("text_config")
        return bool({self.document["model_type"], text.get("model_type") if isinstance(text, dict) else ""} & {*ROUTED})

    @property
    def windows(self) -> list[int]:
        """Sliding windows and attention chunks in tokens, ascending; a sequence that reaches one has another attention
        path."""
        text = self._language
        windows = [text.get(name) for name in ("sliding_window", "attention_chunk_size")]
        return sorted(value for value in windows if isinstance(value, int) and value > 0)

    @property
    def positions(self) -> int | None:
        """Positions of the language model, in tokens; None if the configuration does not say."""
        return next((self._language[key] for key in POSITIONS if isinstance(self._language.get(key), int)), None)

    @property
    def image_size(self) -> int | None:
        """Side in pixels of the square images that the model always takes; None if it takes other sizes."""
        vision = self.document.get("vision_config")
        if self.document["model_type"] not in FIXED or not isinstance(vision, dict):
            return None
        return None if vision.get("model_type") in ANY_SIZE else vision.get("image_size")

    def check_image_size(self, sizes: Collection[object]) -> None:
        """Asks for the size of images where the model takes any and none is given.

        Raises:
            InputError: it is missing.
        """
        tower = self.document.get("vision_config")  # of a wrong type, no model can be built
        if self.kind is Modality.IMAGE_TEXT and isinstance(tower, dict) and self.image_size is None and not sizes:
            raise InputError(f"image_size is not given: {self.name} takes images of any size: give one with "
                             "--image-size, such as 1024 or 768x1024 (height x width)")

    @property
    def fingerprint(self) -> str:
        """Hash of the configuration and the preprocessor settings; key order and white space do not matter."""
        whole = self.document | ({"preprocessor": self.preprocessor} if self.preprocessor else {})
        canonical = json.dumps(whole, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @property
    def _language(self) -> dict[str, Any]:
        """The configuration of the language model, which is a section of its own beside towers."""
        text = self.document.get("text_config")
        return text if isinstance(text, dict) else self.document
