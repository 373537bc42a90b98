"""Facts of a traced model that engines and reports need: its parameters, buffers and token counts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

MODALITIES = {
    "vision_tower": "vision_tower", "vision_model": "vision_tower", "visual": "vision_tower",
    **dict.fromkeys(("high_res_vision_model", "high_res_vision_neck", "high_res_vision_proj"), "vision_tower"),
    "audio_tower": "audio_tower",
    "multi_modal_projector": "projector", "connector": "projector", "merger": "projector", "aligner": "projector",
    **dict.fromkeys(("projector", "visual_embeddings_table", "embed_vision", "embed_audio"), "projector"),
    "deepstack_merger_list": "projector", "image_newline": "projector",
    "language_model": "language_model", "text_model": "language_model",
    "lm_head": "head",
}
"""Submodule names of transformers' multimodal models -> part of the model (tower, projector, language model, head)."""
MODEL = "model"
"""The part that all other paths belong to."""
EMBEDDINGS = ("embed_tokens", "position_embedding")
"""Names of embedding modules in transformers' language models and vision towers."""

TOWERS = ("vision_tower", "audio_tower")
"""Parts of a model that encode images or audio."""
POSITIONS = ("wpe", "position_embeddings", "embed_positions")
"""Names of learned position embeddings in transformers' language models."""


@dataclass(frozen=True)
class Parameter:
    """One parameter or buffer of a model.

    Attributes:
        itemsize: bytes of an element.
        decay: whether it belongs to the optimizer's weight-decay group.
        buffer: whether it is a buffer, which never trains.
        embedding: whether it belongs to an ``nn.Embedding``; None in older formula files, which did not record it.
        sharded: whether it is one rank's part of a parameter under tensor parallelism.
    """

    name: str
    shape: tuple[int, ...]
    itemsize: int
    trainable: bool
    decay: bool = True
    buffer: bool = False
    embedding: bool | None = None
    sharded: bool = False

    @cached_property
    def module(self) -> str:
        """Path of the module that it belongs to."""
        return self.name.rpartition(".")[0]

    @property
    def quantized(self) -> bool:
        """Whether its weights have 4 or 8 bits."""
        return self.itemsize == 1 and not self.buffer

    @property
    def packed(self) -> bool:
        """Whether it holds 4-bit weights, two in each byte, in one column."""
        return self.quantized and self.shape[-1] == 1

    @property
    def is_embedding(self) -> bool:
        """Whether it belongs to an ``nn.Embedding``; older files do not record that, so its name decides there."""
        return self.module.rpartition(".")[2] in EMBEDDINGS if self.embedding is None else self.embedding

    @cached_property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @cached_property
    def bytes(self) -> int:
        """Size of the tensor in bytes."""
        return self.numel * self.itemsize


@dataclass(frozen=True)
class ModelFacts:
    """Facts of one model.

    Attributes:
        hidden_size: hidden size of the language model; 0 if unknown.
        tokens_per_image: placeholder tokens of an image; of the largest image if sizes are mixed.
        parameters: parameters in the order of ``named_parameters``, then buffers.
        image_tokens: tokens that the images of each sample fill, if the formula is for one fixed number of samples and
            images; otherwise empty.
    """

    model_type: str
    hidden_size: int
    tokens_per_image: int
    parameters: tuple[Parameter, ...]
    image_tokens: tuple[int, ...] = ()

    def room(self, images: int) -> int:
        """Tokens that ``images`` images of a sample fill; the most of any sample."""
        return max(self.image_tokens, default=images * self.tokens_per_image)

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the weights; adapters on top of them may be wider."""
        return self.parameters[0].itemsize

    @property
    def positions(self) -> int | None:
        """The longest sequence for which the language model has learned positions; None if it has none."""
        tables = [p for p in self.parameters if p.is_embedding and p.module.rpartition(".")[2] in POSITIONS
                  and modality(p.name) not in TOWERS]
        # In an encoder-decoder, the encoder's positions may belong to audio: only the decoder's limit the tokens.
        of_decoder = [table for table in tables if "decoder" in table.module.split(".")]
        return min((table.shape[0] for table in of_decoder or tables), default=None)

    @cached_property
    def moved(self) -> list[int]:
        """Indices of the tensors in the order in which ``model.to(device)`` moves them: children first
        (``nn.Module._apply``)."""
        tree: dict = {}
        for index, tensor in enumerate(self.parameters):
            node = tree
            for part in tensor.module.split(".") if tensor.module else ():
                node = node.setdefault(part, {})
            node.setdefault(None, []).append(index)

        def walk(node: dict) -> Iterator[int]:
            for name, child in node.items():
                if name is not None:
                    yield from walk(child)
            yield from node.get(None, ())

        return list(walk(tree))


@lru_cache(maxsize=1 << 16)
def modality(path: str) -> str:
    """Part of the model that a parameter or module path belongs to: a tower, the projector, the language model, the
    head; ``model`` if none of its names is in :data:`MODALITIES`."""
    parts = [MODALITIES[part] for part in path.split(".") if part in MODALITIES]
    return ("projector" if "projector" in parts else parts[0]) if parts else MODEL


def has_modality(path: str) -> bool:
    """Whether one of a path's names is in :data:`MODALITIES`."""
    return any(part in MODALITIES for part in path.split("."))


def first_names(path: str) -> str:
    """The first two names of a path, cut before a layer's number: ``transformer.h``, ``classifier``."""
    parts = path.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdecimal()), len(parts))
    return ".".join(parts[:min(2, number)]) or MODEL
