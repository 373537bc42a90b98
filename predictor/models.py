"""Where a model's configuration comes from: a known name, a directory or a ``config.json``.

Needs no torch: the configuration decides which formula answers, and its hash is the cache key.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from predictor.errors import InputError
from predictor.suggest import nearest

SUPPORTED = ("llava",)
"""``model_type`` of the architectures that can be traced."""


@dataclass(frozen=True)
class ModelConfig:
    """A Hugging Face configuration.

    Attributes:
        name: what the user called it.
        document: the parsed ``config.json``.
    """

    name: str
    document: dict[str, Any]

    @property
    def windows(self) -> list[int]:
        """Sequence lengths from which attention takes another path: sliding windows and chunks."""
        text = self.document.get("text_config")
        names = ("sliding_window", "attention_chunk_size")
        found = [text.get(name) for name in names] if isinstance(text, dict) else []
        return sorted(value for value in found if isinstance(value, int) and value > 0)

    @property
    def image_size(self) -> int | None:
        """Side of the image that the vision tower takes, if the configuration says so."""
        vision = self.document.get("vision_config")
        return vision.get("image_size") if isinstance(vision, dict) else None

    @property
    def fingerprint(self) -> str:
        """Hash of the content; key order and white space do not matter."""
        canonical = json.dumps(self.document, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def known_names() -> list[str]:
    """Names that need no file."""
    return sorted(entry.name.removesuffix(".json") for entry in resources.files("predictor.configs").iterdir()
                  if entry.name.endswith(".json"))


def find(model: str) -> ModelConfig:
    """The configuration of a known name, a local directory, or a path of a ``config.json``.

    Raises:
        InputError: neither a known name nor a readable configuration.
    """
    if model.lower() in known_names():
        text = (resources.files("predictor.configs") / f"{model.lower()}.json").read_text()
        return ModelConfig(model.lower(), json.loads(text))
    try:
        path = Path(model).expanduser()
        path = path / "config.json" if path.is_dir() else path
        found = path.is_file()
    except (OSError, RuntimeError, ValueError):  # no such home, a name too long, a zero byte
        found = False
    if not found:
        raise InputError(f"model {model[:200]!r}: not a known name{nearest(model, known_names())} "
                         f"and no such directory or config.json; known: {', '.join(known_names())}")
    return ModelConfig(model, _read(path))


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({type(error).__name__}): give a readable config.json") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({' '.join(str(error).split())})") from None
    if not isinstance(document, dict) or not isinstance(document.get("model_type"), str):
        raise InputError(f"{path}: no \"model_type\": this is not a Hugging Face model configuration")
    if document["model_type"] not in SUPPORTED:
        raise InputError(f"{path}: model_type {document['model_type']!r} is not supported yet "
                         f"(supported: {', '.join(SUPPORTED)})")
    if "quantization_config" in document:
        raise InputError(f"{path}: quantization_config is not supported yet: remove it to predict the model in bf16")
    return document
