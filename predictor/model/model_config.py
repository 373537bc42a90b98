"""A Hugging Face configuration, and what it says of a model before the model is built."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

FIXED = ("llava", "paligemma", "gemma3")
"""``model_type`` of models whose processors resize every picture to the side that the vision tower takes."""
ANY_SIZE = ("pixtral",)
"""``model_type`` of vision towers that take pictures of any size, whatever the model around them."""


ROUTED = ("aria", "aria_text", "dbrx", "jetmoe", "longcat_flash", "nllb-moe", "step3p5", "step3p7",
          "switch_transformers")
"""``model_type`` of mixtures whose experts run one after another, each over the tokens that chose it (transformers
5.17, their modeling files): what is allocated depends on data. All others multiply them in groups, in buffers of the
same size wherever tokens go (integrations/moe.py, grouped_mm_experts_forward)."""


class Kind(str, Enum):
    """What a sample has."""

    IMAGE_TEXT = "image_text"
    TEXT = "text"
    IMAGE = "image"
    AUDIO_TEXT = "audio_text"
    SPEECH = "speech"

    @property
    def has_media(self) -> bool:
        """Whether samples have some number of images or clips of sound, which ``Shape.images`` counts."""
        return self not in (Kind.TEXT, Kind.SPEECH)  # speech: one clip is heard for every sample, tokens are written


@dataclass(frozen=True)
class ModelConfig:
    """A Hugging Face configuration.

    Attributes:
        name: what the user called it.
        document: the parsed ``config.json``.
        preprocessor: the parsed ``preprocessor_config.json`` beside it, as far as it differs from what follows from
            the configuration.
    """

    name: str
    document: dict[str, Any]
    preprocessor: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """What a sample has, by what the configuration describes."""
        if "vision_config" in self.document:
            return Kind.IMAGE_TEXT
        if "audio_config" in self.document:
            return Kind.AUDIO_TEXT
        if "num_mel_bins" in self.document and "vocab_size" in self.document:
            return Kind.SPEECH
        named = self.document.get("architectures")
        classifies = any(str(name).endswith("ForImageClassification") for name in named or ())
        sees = "num_channels" in self.document or ("image_size" in self.document and "vocab_size" not in self.document)
        return Kind.IMAGE if classifies or sees else Kind.TEXT

    @property
    def routes_by_data(self) -> bool:
        """Whether what it allocates depends on which expert each token goes to."""
        text = self.document.get("text_config")
        return bool({self.document["model_type"], text.get("model_type") if isinstance(text, dict) else ""} & {*ROUTED})

    @property
    def windows(self) -> list[int]:
        """Sequence lengths from which attention takes another path: sliding windows and chunks."""
        text = self.document.get("text_config")
        text = text if isinstance(text, dict) else self.document
        found = [text.get(name) for name in ("sliding_window", "attention_chunk_size")]
        return sorted(value for value in found if isinstance(value, int) and value > 0)

    @property
    def image_size(self) -> int | None:
        """Side of the pictures that the model always takes; None where it takes others."""
        vision = self.document.get("vision_config")
        if self.document["model_type"] not in FIXED or not isinstance(vision, dict):
            return None
        return None if vision.get("model_type") in ANY_SIZE else vision.get("image_size")

    @property
    def fingerprint(self) -> str:
        """Hash of the content; key order and white space do not matter."""
        whole = self.document | ({"preprocessor": self.preprocessor} if self.preprocessor else {})
        canonical = json.dumps(whole, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]
