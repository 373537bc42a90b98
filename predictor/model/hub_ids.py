"""Ids of models on the Hugging Face hub: which known name has the same configuration, and where the local cache has it.

Nothing is downloaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

ALIASES = {
    "llava-v1.5-7b": "llava-1.5-7b", "llava-v1.5-13b": "llava-1.5-13b", "llava-v1.6-vicuna-7b": "llava-next-vicuna-7b",
    "llava-v1.6-vicuna-13b": "llava-next-vicuna-13b", "llava-v1.6-mistral-7b": "llava-next-mistral-7b",
    "meta-llama-3.1-8b": "llama-3.1-8b", "paligemma-3b-pt-224": "paligemma-3b", "bert-base-uncased": "bert-base",
    "bert-base-cased": "bert-base", "vit-base-patch16-224": "vit-base", "swin-tiny-patch4-window7-224": "swin-tiny",
    "convnext-tiny-224": "convnext-tiny", "mistral-7b-v0.1": "mistral-7b", "mistral-7b-instruct-v0.1": "mistral-7b",
    "mistral-7b-instruct-v0.3": "mistral-7b-v0.3",
}
"""Last part of a hub id, in lower case -> known name, for ids that do not become a known name without a suffix."""
SUFFIXES = ("hf", "instruct", "chat", "base", "it", "pt", "ov", "si", "lora", "2409", "2506", "merged")
"""Suffixes of checkpoint names; the checkpoint has the same configuration as the name without the suffix."""
ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?")
"""An id: the owner and the name, or a name alone."""


def last(name: str) -> str:
    """The last part of an id or a path, in lower case."""
    return name.rstrip("/").rpartition("/")[2].lower()


def without_suffixes(name: str) -> list[str]:
    """The last part of an id, and what is left of it after each of its suffixes, one by one."""
    names = [last(name)]
    while (shorter := re.sub(rf"-(?:{'|'.join(SUFFIXES)})$", "", names[-1])) != names[-1]:
        names.append(shorter)
    return names


def known_name(name: str, names: Collection[str]) -> str | None:
    """The name among ``names`` that has the configuration of a hub id; None without one.

    Example: ``liuhaotian/llava-v1.5-7b`` and ``./checkpoints/llava-v1.5-7b`` are ``llava-1.5-7b``.
    """
    return next((candidate for candidate in (ALIASES.get(part, part) for part in without_suffixes(name) if part)
                 if candidate in names), None)


def cached(model: str) -> Path | None:
    """The folder of a model in the local cache of huggingface_hub; None if it has no ``config.json`` there.

    huggingface_hub 1.0, file_download.py, ``try_to_load_from_cache``; constants.py, ``HF_HUB_CACHE``.
    """
    if not ID.fullmatch(model):
        return None
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    try:
        folder = Path(os.path.expandvars(hub)).expanduser() / f"models--{model.replace('/', '--')}"
        main = folder / "refs" / "main"
        snapshots = [folder / "snapshots" / main.read_text()[:80].strip()] if main.is_file() else \
            sorted((folder / "snapshots").iterdir()) if (folder / "snapshots").is_dir() else []
        return next((snapshot for snapshot in snapshots if (snapshot / "config.json").is_file()), None)
    except (OSError, RuntimeError, ValueError):  # an unreadable folder, no home directory, text that is not UTF-8
        return None
