"""The store of formulas: shipped with the package, in the user's cache, or traced now and then cached."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from predictor.common.errors import InputError
from predictor.common.storage import cache_directory
from predictor.events.regimes import NotOneRegime, Regime
from predictor.events.sizes import Shape
from predictor.formula import formula, shipped_sums
from predictor.formula.formula import Formula
from predictor.model.fsdp import FlatUnits
from predictor.model.lora import Adapters
from predictor.model.quantization import Quantized
from predictor.workload.generation import Generation

TRACER_VERSION = 6
"""Increased whenever the same workload would trace differently. Cached formulas of older versions are then unused."""


@dataclass(frozen=True)
class Key:
    """Everything that decides the list of events, except the shape within its regime.

    Its JSON document (:meth:`document`) leaves out every field but ``tracer`` that has its default value.

    Attributes:
        recipe, trainable, frozen: which parameters train.
        regime: the regime of shapes; its three names in the document.
        checkpointing: ``off``, ``on`` or ``reentrant``.
        checkpointing_kwargs: further options of activation checkpointing, and the modules that have it.
        sdpa_backend: the kernel of SDPA attention; empty if the model has none.
        dtype: dtype of the weights.
        mixed_precision: autocast's dtype, or ``none``.
        sharded: whether the step is traced with the hooks of ZeRO-3.
        evaluation: ``trainer`` if only the forward of Hugging Face's evaluation is traced, without gradients.
        lora: adapters.
        liger: release of liger-kernel, if its kernels run.
        wrapped: modules that FSDP wraps (``predictor.model.fsdp.unit_names``).
        flat: how FSDP1 flattens their parameters; None without it.
        quantization: layers of 4 or 8 bits.
        image_sizes: heights and widths of images, for models that take any size.
        video_frames: number of frames, if videos take the place of images.
        no_grad: patterns of modules that run under ``torch.no_grad``.
        tensor_parallel: number of ranks that share each layer.
        autotp: whether DeepSpeed's AutoTP shards the layers, rather than transformers.
        generation: the call of ``generate`` that is traced; None for a training step.
        loss: who computes the loss, if it is not the model.
        noise: whether NEFTune's noise is added to the embeddings.
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
    loss: str = ""
    flat: FlatUnits | None = None
    noise: bool = False

    def forward_shape(self, shape: Shape) -> Shape:
        """The shape of the first forward's inputs; in a later turn of a conversation, only the turn's new tokens."""
        brings = self.generation.brings if self.generation else 0
        return replace(shape, sequence=brings) if brings else shape

    def document(self) -> dict[str, Any]:
        """The key as plain JSON data, without fields that have their default value (``tracer`` is always there)."""
        document = asdict(self) | {"regime": self.regime.names()}
        for entry in fields(self):
            if entry.name != "tracer" and document[entry.name] == entry.default:
                del document[entry.name]
        if self.lora is not None and not self.lora.target_parameters:  # older keys are without
            del document["lora"]["target_parameters"]
        return json.loads(json.dumps(document))

    def filename(self) -> str:
        """A file name that depends on the content only: the same workload has the same name on every machine."""
        text = json.dumps(self.document(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20] + ".npz"


@cache
def shipped_directory() -> Path:
    """The directory of the formulas that come with the package."""
    return Path(str(resources.files("profiles"))) / "formulas"


SIZES = "sizes.json"
"""File of the shipped formulas: file name of a key without sizes of pictures -> the sizes that it is shipped with."""


def shipped_sizes(key: Key) -> list[list[int]]:
    """Heights and widths of pictures for which there are shipped formulas with the other settings of a key.

    Sizes that the model's processor treats the same are one (:mod:`predictor.model.equal_pictures`).
    """
    path = shipped_directory() / SIZES
    return json.loads(path.read_text()).get(replace(key, image_sizes=()).filename(), []) if path.is_file() else []


_SPLIT: set[str] = set()
"""File names of keys that this process found to span several regimes. A search would trace them again at each size."""
SPLIT_SUFFIX = ".split"
"""Of empty files in the cache, which stand for the formulas of such keys."""

_NOT_KEPT: dict[str, Formula] = {}
"""File name -> formula, for formulas that this process traced and could not write to the cache."""


NO_FORMULA = "there is no formula yet, and tracing was switched off"


class NotTraced(InputError):
    """A formula is neither shipped nor cached, and :func:`existing_only` forbids to trace it."""


_EXISTING_ONLY = ContextVar("_EXISTING_ONLY", default=False)


@contextlib.contextmanager
def existing_only(switched_on: bool = True) -> Iterator[None]:
    """Inside this context :func:`get` traces nothing, and raises :class:`NotTraced` instead.

    A context inside another one that is switched on cannot switch it off.
    """
    token = _EXISTING_ONLY.set(switched_on or _EXISTING_ONLY.get())
    try:
        yield
    finally:
        _EXISTING_ONLY.reset(token)


class Asked(Enum):
    """What else is asked about a formula's workload: nothing that is known; no other shape; other shapes, too."""

    UNKNOWN = "unknown"
    ONE_SHAPE = "one shape"
    SEVERAL_SHAPES = "several shapes"


_ASKED = ContextVar("_ASKED", default=Asked.UNKNOWN)


@contextlib.contextmanager
def asked(about: Asked) -> Iterator[None]:
    """Inside this context :func:`get` knows what else is asked.

    For one shape it traces only the last of its keys, which is the fastest. For several shapes it takes a formula of
    the last key, of a single shape, only if no other key is one regime.
    """
    token = _ASKED.set(about)
    try:
        yield
    finally:
        _ASKED.reset(token)


def get(keys: Sequence[Key], trace: Callable[[Key], Formula]) -> Formula:
    """The formula of the first of these keys that is shipped or cached.

    If none is, ``trace`` makes the formula of the first key that is one regime, and it is cached.

    Raises:
        NotTraced: there is no formula, inside :func:`existing_only`.
    """
    wider, about = keys[:-1], _ASKED.get()
    waits = wider and about is Asked.SEVERAL_SHAPES and not _EXISTING_ONLY.get()
    for key in wider if waits else keys:
        existing = _existing(key)
        if existing is not None:
            return existing
    if _EXISTING_ONLY.get():
        raise NotTraced(NO_FORMULA)
    for key in wider:
        if about is Asked.ONE_SHAPE or _is_split(key):
            continue
        try:
            return _kept(key, trace(key))
        except NotOneRegime as error:
            _SPLIT.add(key.filename())
            if error.__cause__ is None:  # else the model failed, which may be different the next time
                _remember_split(key)
    return _existing(keys[-1]) or _kept(keys[-1], trace(keys[-1]))


def _existing(key: Key) -> Formula | None:
    """The formula of a key that is shipped or cached; None if there is none."""
    shipped = shipped_directory() / key.filename()
    if shipped.is_file():
        return _load(shipped, shipped.stat().st_mtime_ns)
    cached = _cached(key)
    if cached is not None:
        with contextlib.suppress(OSError, InputError):  # a damaged file is traced again
            found = _load(cached, cached.stat().st_mtime_ns)
            if found.provenance.get("key") == key.document():  # else another's file has its name
                return found
    return _NOT_KEPT.get(key.filename())


def has(keys: Iterable[Key]) -> bool:
    """Whether the formula of one of these keys is shipped or cached."""
    return any((shipped_directory() / key.filename()).is_file() or key.filename() in _NOT_KEPT
               or os.path.isfile(_cached(key) or "") for key in keys)


def _is_split(key: Key) -> bool:
    cached = _cached(key)
    return key.filename() in _SPLIT or (
        cached is not None and os.path.isfile(cached.with_suffix(SPLIT_SUFFIX)))


def _remember_split(key: Key) -> None:
    cached = _cached(key)
    if cached is not None:
        with contextlib.suppress(OSError):  # a cache that cannot be written is only slower
            cached.parent.mkdir(parents=True, exist_ok=True)
            cached.with_suffix(SPLIT_SUFFIX).touch()


def _cached(key: Key) -> Path | None:
    directory = cache_directory()
    return directory and directory / "formulas" / key.filename()


def _kept(key: Key, traced: Formula) -> Formula:
    cached = _cached(key)
    try:
        if cached is not None:
            save(traced, cached)
            return traced
    except OSError:  # a cache that cannot be written is only slower
        pass
    _NOT_KEPT[key.filename()] = traced
    return traced


@lru_cache(maxsize=32)
def _load(path: Path, _modified: int) -> Formula:
    """The formula of a file; its provenance says whether it is shipped."""
    is_shipped = path.parent == shipped_directory()
    if is_shipped:
        shipped_sums.check(path)
    loaded = formula.load(path)
    return replace(loaded, provenance={**loaded.provenance, "shipped": True}) if is_shipped else loaded


def save(traced: Formula, path: Path) -> None:
    """Writes a formula's file, whole or not at all.

    Raises:
        OSError: the directory cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False)  # noqa: SIM115
    try:
        with part:
            part.write(formula.to_bytes(traced))
        os.chmod(part.name, 0o644)
        os.replace(part.name, path)  # after closing it: Windows renames no open file
    except BaseException:
        os.unlink(part.name)
        raise
