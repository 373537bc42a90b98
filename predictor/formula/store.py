"""Finds the formula of a workload: shipped with the package, in the user's cache, or traced now."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from predictor.common.errors import InputError
from predictor.common.storage import cache_directory
from predictor.events.regimes import NotOneRegime, Regime
from predictor.events.sizes import Shape
from predictor.formula import formula
from predictor.formula.formula import Formula
from predictor.model.lora import Adapters
from predictor.model.quantization import Quantized
from predictor.workload.conversation import Generation

TRACER_VERSION = 4
"""Raised whenever the same workload would trace differently; older cached formulas are then left alone."""


@dataclass(frozen=True)
class Key:
    """Everything that decides the list of events, except the shape within its regime.

    Attributes:
        regime: in the document, its three names.
        checkpointing: ``off``, ``on`` or ``reentrant``.
        checkpointing_kwargs: what else transformers is told of it, and which modules have it; left out where nothing.
        sdpa_backend: what attention resolves to; empty for eager attention.
        dtype: of the weights; left out of the document if ``bf16``.
        mixed_precision: autocast's dtype; left out of the document if ``none``.
        sharded: traced as under ZeRO-3; left out of the document where not.
        evaluation: whose evaluation, a forward without gradients, is all that is traced (``trainer``: Hugging Face's);
            left out of the document otherwise.
        lora: adapters, if there are; left out of the document otherwise.
        liger: release of liger-kernel, if its kernels run; left out of the document otherwise.
        wrapped: what FSDP2 wraps (``predictor.workload.fsdp.units``); left out of the document without FSDP2.
        quantization: layers of 4 or 8 bits, likewise.
        image_sizes: heights and widths of pictures, where a model takes any; left out of the document elsewhere.
        video_frames: of the videos that stand for pictures, if they do; left out of the document otherwise.
        no_grad: patterns of modules that run under ``torch.no_grad``, likewise.
        tensor_parallel: ranks that share each layer; left out of the document where one has all of it.
        autotp: DeepSpeed shards them, not transformers; left out of the document where not.
        generation: the call of ``generate`` that is traced; left out of the document of a training step.
    """

    fingerprint: str
    recipe: str
    trainable: tuple[str, ...]
    frozen: tuple[str, ...]
    padding: str
    checkpointing: str
    attn_implementation: str
    sdpa_backend: str
    regime: Regime
    torch: str
    transformers: str
    tracer: int = TRACER_VERSION
    sharded: bool = False
    lora: Adapters | None = None
    checkpointing_kwargs: tuple[tuple[str, Any], ...] = ()
    evaluation: str = ""
    liger: str = ""
    wrapped: tuple[str, ...] = ()
    dtype: str = "bf16"
    mixed_precision: str = "none"
    quantization: Quantized | None = None
    image_sizes: tuple[tuple[int, int], ...] = ()
    video_frames: int | None = None
    no_grad: tuple[str, ...] = ()
    tensor_parallel: int = 1
    autotp: bool = False
    generation: Generation | None = None

    def new(self, shape: Shape) -> Shape:
        """What the model sees at once: of a later turn of a conversation, the tokens that it brings."""
        brings = self.generation.brings if self.generation else 0
        return replace(shape, sequence=brings) if brings else shape

    def document(self) -> dict[str, Any]:
        """The key as plain JSON data; what not every formula has is left out where it says nothing."""
        document = asdict(self) | {"regime": self.regime.names()}
        for entry in fields(self):
            if entry.name != "tracer" and document[entry.name] == entry.default:
                del document[entry.name]
        return json.loads(json.dumps(document))

    def filename(self) -> str:
        """Name by content: the same workload gives the same file on every machine."""
        text = json.dumps(self.document(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20] + ".npz"


def shipped_directory() -> Path:
    """Formulas that come with the package."""
    return Path(str(resources.files("profiles"))) / "formulas"


_SPLIT: set[str] = set()
"""Files of keys that this process found not to be one regime: a search would trace them again at each size."""

_NOT_KEPT: dict[str, Formula] = {}
"""Formulas by their files' names that this process made, and had no place for."""


def get(keys: Sequence[Key], trace: Callable[[Key], Formula]) -> Formula:
    """The formula of the first of these keys that somebody has; else ``trace`` makes it, of the first key that is one
    regime, and it is kept for the next time."""
    for key in keys:
        shipped = shipped_directory() / key.filename()
        cached = _cached(key)
        if shipped.is_file():
            return _load(shipped, shipped.stat().st_mtime_ns)
        if cached is not None:
            with contextlib.suppress(OSError, InputError):  # a damaged cache is made again
                return _load(cached, cached.stat().st_mtime_ns)
        if key.filename() in _NOT_KEPT:
            return _NOT_KEPT[key.filename()]
    for key in keys[:-1]:
        if key.filename() in _SPLIT:
            continue
        try:
            return _kept(key, trace(key))
        except NotOneRegime:
            _SPLIT.add(key.filename())
    return _kept(keys[-1], trace(keys[-1]))


def has(keys: Iterable[Key]) -> bool:
    """Whether somebody has the formula of one of these keys."""
    return any((shipped_directory() / key.filename()).is_file() or key.filename() in _NOT_KEPT
               or os.path.isfile(_cached(key) or "") for key in keys)


def _cached(key: Key) -> Path | None:
    directory = cache_directory()
    return directory and directory / "formulas" / key.filename()


def _kept(key: Key, made: Formula) -> Formula:
    cached = _cached(key)
    try:
        if cached is not None:
            save(made, cached)
            return made
    except OSError:  # a cache that cannot be written is only slower
        pass
    _NOT_KEPT[key.filename()] = made
    return made


@lru_cache(maxsize=32)
def _load(path: Path, _modified: int) -> Formula:
    return formula.load(path)


def save(made: Formula, path: Path) -> None:
    """Write a formula file whole or not at all.

    Raises:
        OSError: the directory cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as part:
        try:
            part.write(formula.to_bytes(made))
            part.flush()
            os.chmod(part.name, 0o644)
            os.replace(part.name, path)
        except BaseException:
            os.unlink(part.name)
            raise
