"""What is known of a model by name: the figures of ``peakcast models``, shipped so that the list needs no torch."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from predictor.common.errors import InputError
from predictor.common.json_dataclasses import from_plain
from predictor.events.model_facts import modality
from predictor.model import models
from predictor.model.code_models import CodeModel
from predictor.model.model_config import Kind, ModelConfig

TABLE = "model_facts.json"
"""Written by ``scripts/list_models.py``."""
STATED = (672, 672)
"""Height and width of the picture that models of any size are asked about."""


@dataclass(frozen=True)
class Known:
    """One model in figures.

    Attributes:
        architecture: transformers' class.
        takes: what a sample has: ``images``, ``text``.
        parameters: each once, where several modules share one; 0 where nobody built the model yet.
        modules: the same by modality module.
        tokens_per_image: by the picture's ``HEIGHTxWIDTH``; empty without images among tokens.
        cross_attention: whether the language model looks at images that are no tokens of its own.
    """

    architecture: str
    model_type: str
    takes: tuple[str, ...]
    parameters: int = 0
    modules: Mapping[str, int] = field(default_factory=dict)
    tokens_per_image: Mapping[str, int] = field(default_factory=dict)
    cross_attention: bool = False


TAKES = {Kind.IMAGE_TEXT: ("images", "text"), Kind.TEXT: ("text",), Kind.IMAGE: ("images",),
         Kind.AUDIO_TEXT: ("sound", "text"), Kind.SPEECH: ("sound", "text")}
"""What a sample of a model has."""


def listed() -> dict[str, Known]:
    """Every known name; those that the table lacks have what their configuration says."""
    table = shipped()
    return {name: table.get(name) or _unbuilt(models.find(name)) for name in models.known_names()}


def _unbuilt(config: ModelConfig) -> Known:
    named = config.document.get("architectures") or [""]
    return Known(named[0], config.document["model_type"], TAKES[config.kind])


@lru_cache(maxsize=1)
def shipped() -> Mapping[str, Known]:
    """The table that comes with the package."""
    document = json.loads((Path(str(resources.files("predictor.answer"))) / TABLE).read_text())
    return {name: from_plain(Known, one, f"{TABLE}: {name}") for name, one in document.items()}


def built(config: ModelConfig, model: Any, *sizes: tuple[int, int]) -> Known:
    """The figures of a model that was built; ``sizes`` are of its pictures, where it takes any.

    Raises:
        InputError: its processor takes no such picture.
    """
    modules: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        modules[modality(name)] = modules.get(modality(name), 0) + parameter.numel()
    tokens = tokens_of(config, model, *(sizes or (STATED,)))
    return Known(type(model).__name__, config.document["model_type"], TAKES[config.kind], sum(modules.values()),
                 modules, tokens, config.kind is Kind.IMAGE_TEXT and not isinstance(config, CodeModel)
                 and not hasattr(model, "get_image_features"))


def tokens_of(config: ModelConfig, model: Any, *sizes: tuple[int, int]) -> dict[str, int]:
    """Tokens that a picture becomes, by size; a model of one size has that one only.

    Raises:
        InputError: its processor takes no such picture.
    """
    from predictor.trace.inputs import Inputs

    if config.kind is not Kind.IMAGE_TEXT or isinstance(config, CodeModel):
        return {}
    if config.image_size:
        sizes = ((config.image_size,) * 2,)
    return {f"{size[0]}x{size[1]}": Inputs(config, model, () if config.image_size else (size,)).tokens_per_image
            for size in sizes}


@contextlib.contextmanager
def building(config: ModelConfig) -> Iterator[None]:
    """Builds and asks quietly, and turns whatever a configuration leads torch and transformers to into one line.

    Raises:
        InputError: torch or transformers is missing, or the model cannot be built.
    """
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise InputError(f"model {config.name}: its page builds the model, and {error.name} is not installed: "
                         "pip install 'peakcast[trace]' (peakcast models without a name lists figures)") from None
    transformers.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except InputError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"model {config.name}: cannot be built: {type(error).__name__}: {reason}") from error
