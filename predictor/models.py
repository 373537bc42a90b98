"""Where a model's configuration comes from: a known name, a directory or a ``config.json``.

Needs no torch: the configuration decides which formula answers, and its hash is the cache key.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from predictor.errors import InputError
from predictor.files import read_text
from predictor.suggest import nearest, show

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


@lru_cache(maxsize=1)
def known_names() -> tuple[str, ...]:
    """Names that need no file."""
    return tuple(sorted(entry.name.removesuffix(".json") for entry in resources.files("predictor.configs").iterdir()
                        if entry.name.endswith(".json")))


def find(model: str) -> ModelConfig:
    """The configuration of a known name, a local directory, or a path of a ``config.json``; or the user's own code.

    Raises:
        InputError: neither a known name nor a readable configuration.
    """
    if model.lower() in known_names():
        name = model.lower()
        files = resources.files("predictor.configs")
        processor = files / "preprocessors" / f"{name}.json"
        return ModelConfig(name, json.loads((files / f"{name}.json").read_text()),
                           json.loads(processor.read_text()) if processor.is_file() else {})
    from predictor import code_models

    if code_models.is_named(model):
        return code_models.find(model)
    try:
        path = Path(model).expanduser()
        if path.is_dir() and not (path / "config.json").is_file():
            raise InputError(f"model {model[:200]!r}: the directory has no config.json")
        path = path / "config.json" if path.is_dir() else path
        found = path.is_file()
    except (OSError, RuntimeError, ValueError):  # no such home, a name too long, a zero byte
        found = False
    if not found:
        raise InputError(f"model {model[:200]!r}: not a known name{nearest(model, known_names())} "
                         "and no such directory or config.json; peakcast models lists the names")
    return ModelConfig(model, _read_config(path), _preprocessor(path.parent))


NOT_SETTINGS = ("processor_class", "image_processor_type", "video_processor_type", "feature_extractor_type", "auto_map")


def _preprocessor(folder: Path) -> dict[str, Any]:
    """Settings of images, and of videos under ``video``: what ``processor_config.json`` has of them comes first, as in
    transformers 5 (image_processing_base.py, get_image_processor_dict), then the older files."""
    whole, beside, video = (folder / f"{kind}_config.json" for kind in (
        "processor", "preprocessor", "video_preprocessor"))
    found = _object(whole) if whole.is_file() else {}
    images, videos = (found[key] if isinstance(found.get(key), dict) else _object(older) if older.is_file() else {}
                      for key, older in (("image_processor", beside), ("video_processor", video)))
    return _settings(images) | ({"video": _settings(videos)} if videos else {})


def _object(path: Path) -> dict[str, Any]:
    document = _read(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: must be an object, not {show(document, 60)}")
    return document


def _settings(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in NOT_SETTINGS}


def _read(path: Path) -> Any:
    text = read_text(path, "a model's configuration")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({' '.join(str(error).split())})") from None


def _read_config(path: Path) -> dict[str, Any]:
    document = _read(path)
    if not isinstance(document, dict) or not isinstance(document.get("model_type"), str):
        raise InputError(f"{path}: no \"model_type\": this is not a Hugging Face model configuration")
    if "quantization_config" in document:
        raise InputError(f"{path}: quantization_config is not supported yet: remove it to predict the model in bf16")
    return document
