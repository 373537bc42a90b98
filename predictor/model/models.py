"""Finds a model's configuration: by a known name, in a directory, in a ``config.json``, by the user's own function, or
by its id on the Hugging Face hub.

It needs no torch: the configuration selects the formula, and its hash is part of the cache key.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from predictor.common.errors import InputError, NotPredicted
from predictor.common.files import read_text
from predictor.common.suggestions import nearest, quoted
from predictor.model import config_numbers, configs, hub_ids
from predictor.model.model_config import ModelConfig
from predictor.workload import code_names


@lru_cache(maxsize=1)
def known_names() -> tuple[str, ...]:
    """Names of the models whose configurations are shipped."""
    names = [entry.name for entry in resources.files(configs).iterdir()]
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def find(model: str) -> ModelConfig:
    """The configuration of a known name, a local directory, a ``config.json``, a function of the user's own code, or
    a model's id on the Hugging Face hub.

    Raises:
        InputError: ``model`` is neither a known name nor a readable configuration or function.
    """
    if model.lower() in known_names():
        return _shipped(model.lower())
    from predictor.model import code_models

    if code_names.is_code_name(model):
        return code_models.find(model)
    try:
        path = Path(model).expanduser()
        if path.is_dir() and not (path / "config.json").is_file():
            raise InputError(f"model {model[:200]!r}: the directory has no config.json")
        path = path / "config.json" if path.is_dir() else path
        is_file = path.is_file()
    except (OSError, RuntimeError, ValueError):  # an unknown home directory, a name that is too long, a zero byte
        is_file = False
    return _in_folder(model, path) if is_file else _of_hub(model)


def _shipped(name: str) -> ModelConfig:
    """The configuration of a known name."""
    files = resources.files(configs)
    processor = files / "preprocessors" / f"{name}.json"
    return ModelConfig(name, json.loads((files / f"{name}.json").read_text("utf-8")),
                       json.loads(processor.read_text("utf-8")) if processor.is_file() else {})


def _in_folder(model: str, path: Path) -> ModelConfig:
    return ModelConfig(model, _read_config(path), _preprocessor(path.parent))


def _of_hub(model: str) -> ModelConfig:
    """The configuration of a hub id: that of a known name, or the one in the local cache.

    The cached one counts if a number in it differs from the known name's: then the id only resembles the name.

    Raises:
        InputError: no known name has that id, and the cache does not have it.
    """
    is_id = bool(hub_ids.ID.fullmatch(model)) and not ("/" in model and Path(model).parent.is_dir())
    name = hub_ids.known_name(model, known_names()) if is_id else None
    folder = hub_ids.cached(model) if is_id else None
    if folder is not None:
        found = _in_folder(model, folder / "config.json")
        if name is None or not _agree(found.document, _shipped(name).document):
            return found
    if name is None:
        of_owner = is_id and "/" in model
        part = hub_ids.without_suffixes(model)[-1] if of_owner else model
        near = nearest(part, known_names()) if len(part) > 3 or not of_owner else ""
        where = ", no such directory or config.json, and not in the local Hugging Face cache" if of_owner else \
            " and no such directory or config.json"
        raise InputError(f"model {model[:200]!r}: not a known name{near}{where}; peakcast models lists the names")
    return _shipped(name)


def _agree(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """True if the sizes that two configurations share are the same."""
    return all(_agree(one[key], other[key]) if isinstance(one[key], dict) and isinstance(other[key], dict) else
               one[key] == other[key] or not isinstance(one[key], int) for key in one.keys() & other.keys()
               if not key.endswith("_token_id"))


NOT_SETTINGS = ("processor_class", "image_processor_type", "video_processor_type", "feature_extractor_type", "auto_map")


def _preprocessor(folder: Path) -> dict[str, Any]:
    """Settings of images, and of videos under the key ``video``.

    As in transformers 5 (image_processing_base.py, get_image_processor_dict), ``processor_config.json`` takes
    precedence over the older files.
    """
    whole, older_images, older_videos = (folder / f"{stem}_config.json" for stem in (
        "processor", "preprocessor", "video_preprocessor"))
    document = _object(whole) if whole.is_file() else {}
    images, videos = (document[key] if isinstance(document.get(key), dict) else _object(older) if older.is_file()
                      else {} for key, older in (("image_processor", older_images), ("video_processor", older_videos)))
    return _settings(images) | ({"video": _settings(videos)} if videos else {})


def _object(path: Path) -> dict[str, Any]:
    document = _read(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: must be an object, not {quoted(document, 60)}")
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
    _check_types(document, path)
    config_numbers.check(document, str(path))
    if "quantization_config" in document:
        raise NotPredicted(f"{path}: quantization_config is not supported yet: remove it to predict the model in bf16")
    return _as_loaded(document)


TIED_BY_CLASS = ("internvl", "mistral3", "deepseek_vl", "deepseek_vl_hybrid", "janus", "got_ocr2", "lighton_ocr")
"""``model_type`` of models whose class ties the head to the embedding if their configuration does not say (transformers
5.17, their ``configuration_*.py``)."""
UNTIED_BY_CLASS = ("llama", "mistral", "ministral3", "qwen2", "qwen3")
"""``model_type`` of their language models whose class does not."""


def _as_loaded(document: dict[str, Any]) -> dict[str, Any]:
    """The configuration of what ``from_pretrained`` loads and a trainer trains.

    Of a model that also speaks it is the part that reads (``thinker_config``), which ms-swift and LLaMA-Factory train.
    A head and an embedding that a checkpoint has both are not tied, whatever a newer class says (transformers 5.17,
    modeling_utils.py, ``tie_weights``); the configuration of the language model tells.
    """
    thinker = document.get("thinker_config")
    if isinstance(thinker, dict) and isinstance(thinker.get("model_type"), str):
        document = {name: value for name, value in thinker.items() if name != "architectures"}
    text = document.get("text_config")
    if document["model_type"] in TIED_BY_CLASS and isinstance(text, dict) and "tie_word_embeddings" not in document:
        tied = text.get("tie_word_embeddings", text.get("model_type") not in UNTIED_BY_CLASS)
        document = {**document, "tie_word_embeddings": tied}
    return document


TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "model_type": ((str,), "text"), "architectures": ((list,), "a list"), "image_size": ((int, list, dict), "a number")}
"""Key of a configuration, or of a section of it, that is looked at here -> its types, and what messages call them."""


def _check_types(document: dict[str, Any], path: Path, section: str = "") -> None:
    """Raises an InputError that names a key whose value has another type than transformers writes."""
    for name, value in document.items():
        if isinstance(value, dict) and name.endswith("_config") and not section:
            _check_types(value, path, f"{name}.")
        elif name in TYPES and value is not None and not isinstance(value, TYPES[name][0]):
            raise InputError(f"{path}: {section}{name} must be {TYPES[name][1]}, not {quoted(value)}")
