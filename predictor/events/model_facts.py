"""What the engines and the reports need to know of a model once it is gone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

MODALITIES = {
    "vision_tower": "vision_tower", "vision_model": "vision_tower", "visual": "vision_tower",
    "audio_tower": "audio_tower",
    "multi_modal_projector": "projector", "connector": "projector", "merger": "projector",
    "deepstack_merger_list": "projector", "image_newline": "projector",
    "language_model": "language_model", "text_model": "language_model",
    "lm_head": "head",
}
"""Submodule names of transformers' multimodal models -> modality module."""
EMBEDDINGS = ("embed_tokens", "position_embedding")
"""Names that transformers' language models and vision towers give to theirs."""

TOWERS = ("vision_tower", "audio_tower")
"""Modality modules that see and hear."""
POSITIONS = ("wpe", "position_embeddings", "embed_positions")
"""Names that transformers' language models give to learned positions."""


@dataclass(frozen=True)
class Parameter:
    """One tensor of the model; a ``buffer`` never trains, ``decay`` says its optimizer group.

    ``embedding``: whether an ``nn.Embedding`` has it; None where that was not looked at (older formula files).
    ``sharded``: whether it is the part that one of the ranks of tensor parallelism holds.
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
        """Path of the module that has it."""
        return self.name.rpartition(".")[0]

    @property
    def quantized(self) -> bool:
        """Whether its weights have 4 or 8 bits."""
        return self.itemsize == 1 and not self.buffer

    @property
    def packed(self) -> bool:
        """Whether it holds two weights of 4 bits a byte, in one column."""
        return self.quantized and self.shape[-1] == 1

    @property
    def is_embedding(self) -> bool:
        """Whether an ``nn.Embedding`` has it; by its name where nobody looked."""
        return self.module.rpartition(".")[2] in EMBEDDINGS if self.embedding is None else self.embedding

    @cached_property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @cached_property
    def bytes(self) -> int:
        """Size of the tensor."""
        return self.numel * self.itemsize


@dataclass(frozen=True)
class ModelFacts:
    """Parameters in the order of ``named_parameters``, then buffers; sizes of one image and sample.

    Attributes:
        tokens_per_image: of the largest picture, where several sizes are mixed.
        image_tokens: of each sample, where a formula is of one number of samples and images; else none.
    """

    model_type: str
    hidden_size: int
    tokens_per_image: int
    parameters: tuple[Parameter, ...]
    image_tokens: tuple[int, ...] = ()

    def room(self, images: int) -> int:
        """Tokens that the images of a sample with so many fill, of the sample with most."""
        return max(self.image_tokens, default=images * self.tokens_per_image)

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the weights; adapters over them may be wider."""
        return self.parameters[0].itemsize

    @property
    def positions(self) -> int | None:
        """Tokens that learned positions of the language model reach; None without such."""
        tables = [p for p in self.parameters if p.is_embedding and p.module.rpartition(".")[2] in POSITIONS
                  and modality(p.name) not in TOWERS]
        writes = [table for table in tables if "decoder" in table.module.split(".")]  # an encoder may hear instead
        return min((table.shape[0] for table in writes or tables), default=None)

    @cached_property
    def moved(self) -> list[int]:
        """Indices of the tensors in the order of ``model.to(device)``: children first (``nn.Module._apply``)."""
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


def modality(path: str) -> str:
    """Modality module of a parameter or module path; ``model`` for what lies between them."""
    found = [MODALITIES[part] for part in path.split(".") if part in MODALITIES]
    return ("projector" if "projector" in found else found[0]) if found else "model"
