"""Figures of the known models, for ``peakcast models``. They are shipped, so that the list needs no torch."""

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
from predictor.common.installing import pip_install
from predictor.common.json_dataclasses import from_plain
from predictor.events.model_facts import modality
from predictor.model import models
from predictor.model.code_models import CodeModel
from predictor.model.model_config import Modality, ModelConfig

TABLE = "model_facts.json"
"""The shipped figures; ``scripts/list_models.py`` writes the file."""
STATED = (672, 672)
"""Height and width of the reference picture, for models that take pictures of any size."""


@dataclass(frozen=True)
class Known:
    """Figures of one model.

    Attributes:
        architecture: name of the class in transformers.
        takes: parts of a sample: ``images``, ``text``, ``sound``.
        parameters: number of parameters, shared ones counted once; 0 if the table does not have the model.
        modules: the same by modality module.
        tokens_per_image: by the picture's ``HEIGHTxWIDTH``; empty if images do not become tokens.
        cross_attention: whether images reach the language model by cross-attention instead of as tokens.
    """

    architecture: str
    model_type: str
    takes: tuple[str, ...]
    parameters: int = 0
    modules: Mapping[str, int] = field(default_factory=dict)
    tokens_per_image: Mapping[str, int] = field(default_factory=dict)
    cross_attention: bool = False


TAKES = {Modality.IMAGE_TEXT: ("images", "text"), Modality.TEXT: ("text",), Modality.IMAGE: ("images",),
         Modality.AUDIO_TEXT: ("sound", "text"), Modality.SPEECH: ("sound", "text")}
"""Parts of a sample, by the model's modality type."""


def listed() -> dict[str, Known]:
    """The figures of every known name. Models that the table lacks have only what their configuration says."""
    table = shipped()
    return {name: table.get(name) or _unbuilt(models.find(name)) for name in models.known_names()}


def _unbuilt(config: ModelConfig) -> Known:
    architectures = config.document.get("architectures") or [""]
    return Known(architectures[0], config.document["model_type"], TAKES[config.kind])


@lru_cache(maxsize=1)
def shipped() -> Mapping[str, Known]:
    """The table of figures that comes with the package."""
    document = json.loads((Path(str(resources.files("predictor.answer"))) / TABLE).read_text("utf-8"))
    return {name: from_plain(Known, row, f"{TABLE}: {name}") for name, row in document.items()}


def built(config: ModelConfig, model: Any, *sizes: tuple[int, int]) -> Known:
    """The figures of a built model.

    Args:
        sizes: heights and widths of pictures; without any, the reference picture. Ignored if the model has one size.

    Raises:
        InputError: the model's processor refuses a picture of that size.
    """
    modules: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        modules[modality(name)] = modules.get(modality(name), 0) + parameter.numel()
    tokens = tokens_of(config, model, *(sizes or (STATED,)))
    return Known(type(model).__name__, config.document["model_type"], TAKES[config.kind], sum(modules.values()),
                 modules, tokens, config.kind is Modality.IMAGE_TEXT and not isinstance(config, CodeModel)
                 and not hasattr(model, "get_image_features"))


def tokens_of(config: ModelConfig, model: Any, *sizes: tuple[int, int]) -> dict[str, int]:
    """Number of tokens that a picture becomes, by ``HEIGHTxWIDTH``. A model of one picture size has only that size.

    Raises:
        InputError: the model's processor refuses a picture of that size.
    """
    from predictor.trace.inputs import Inputs

    if config.kind is not Modality.IMAGE_TEXT or isinstance(config, CodeModel):
        return {}
    if config.image_size:
        sizes = ((config.image_size, config.image_size),)
    return {f"{size[0]}x{size[1]}": Inputs(config, model, () if config.image_size else (size,)).tokens_per_image
            for size in sizes}


@contextlib.contextmanager
def building(config: ModelConfig) -> Iterator[None]:
    """A context for building a model: silences warnings, and turns exceptions of torch or transformers into one line.

    Raises:
        InputError: torch or transformers is missing, or the model cannot be built.
    """
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise InputError(f"model {config.name}: its page builds the model, and {error.name} is not installed: "
                         f"{pip_install('peakcast[trace]')} (peakcast models without a name lists figures)") from None
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
