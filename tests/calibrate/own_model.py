"""A small model outside transformers, as a user would write it: a CNN for pictures, attention for text."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, SIDE = 300, 64, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                 nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden):
        batch, length, _ = hidden.shape
        q, k, v = self.qkv(self.norm(hidden)).view(batch, length, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return hidden + self.mlp(hidden)


class Model(nn.Module):
    """The mean of a sample's pictures is its first token; the head has the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.eyes = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                                  nn.Conv2d(16, WIDTH, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.register_buffer("places", torch.arange(4096))
        self.register_buffer("waves", torch.sin(torch.arange(4096)[:, None] / torch.arange(1, WIDTH + 1)))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.words.weight

    def forward(self, pictures, owners, ids):
        seen = self.eyes(pictures).flatten(1)
        first = torch.zeros(len(ids), WIDTH, dtype=seen.dtype, device=seen.device).index_add(0, owners, seen)
        hidden = torch.cat([first[:, None], self.words(ids)], 1) + self.waves[self.places[: ids.shape[1] + 1]].to(seen)
        for block in self.blocks:
            hidden = block(hidden)
        return functional.cross_entropy(self.head(hidden[:, :-1]).flatten(0, 1).float(), ids.flatten())


def train(batch, sequence, images):
    """Each picture belongs to a sample."""
    return Model(), {"pictures": torch.zeros(images, 3, SIDE, SIDE), "owners": torch.arange(images) % batch,
                     "ids": torch.ones(batch, sequence, dtype=torch.int64)}


def loops(batch, sequence, images):
    """A model that looks at each sample alone: a list of events for each number of them."""
    class Looping(Model):
        def forward(self, pictures, owners, ids):
            parts = [Model.forward(self, pictures[owners == row], owners[owners == row] * 0, ids[row : row + 1])
                     for row in range(len(ids))]
            return torch.stack(parts).mean()

    return Looping(), train(batch, sequence, images)[1]


def learned_places(batch, sequence):
    """Parameters as long as the text: another model at each length."""
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.zeros(sequence, WIDTH))
            self.head = nn.Linear(WIDTH, VOCABULARY)

        def forward(self, ids):
            return functional.cross_entropy(self.head(self.words(ids) + self.places).flatten(0, 1), ids.flatten())

    return Placed(), {"ids": torch.ones(batch, sequence, dtype=torch.int64)}


def cuts(batch, sequence):
    """Text beyond 400 tokens is cut off."""
    model, _ = learned_places(batch, 1)
    return model, {"ids": torch.ones(batch, min(sequence, 400), dtype=torch.int64)}


def pictures(batch):
    """A plain CNN with a frozen stem, whose loss is an output's."""
    from types import SimpleNamespace

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 32, 3, stride=2).requires_grad_(False)
            self.body = nn.Sequential(nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.Dropout(0.1))
            self.head = nn.Linear(64, 10)

        def forward(self, x, labels):
            return SimpleNamespace(loss=functional.cross_entropy(self.head(self.body(self.stem(x)).mean((2, 3))),
                                                                 labels))

    return Plain(), {"x": torch.randn(batch, 3, 64, 64), "labels": torch.zeros(batch, dtype=torch.int64)}


def rotary(batch, sequence):
    """Positions by rotation, rates of dropout by line, a mask by a value that lies on the host: as many write them."""
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.qkv = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
            self.drop = nn.Dropout(torch.linspace(0, 0.1, 3)[-1].item())
            self.head, self.scale = nn.Linear(WIDTH, VOCABULARY), nn.Parameter(torch.ones([]) * torch.tensor(2.6))
            angles = torch.outer(torch.arange(512), torch.tensor(10000.0) ** -(torch.arange(0, WIDTH, 2) / WIDTH)).float()
            self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

        def turned(self, values):
            pairs = torch.view_as_complex(values.float().unflatten(-1, (-1, 2)))
            return torch.view_as_real(pairs * self.turns[: values.shape[1]]).flatten(2).type_as(values)

        def forward(self, ids):
            q, k, v = self.qkv(self.words(ids)).chunk(3, -1)
            scores = self.turned(q) @ self.turned(k).transpose(1, 2) * self.scale.exp()
            later = torch.ones(scores.shape[1:], dtype=torch.bool, device=ids.device).triu(1)
            mixed = self.drop(functional.softmax(scores.masked_fill(later, torch.tensor(-1e4)), -1)) @ v
            return functional.cross_entropy(self.head(mixed).flatten(0, 1).float(), ids.flatten())

    return Rotary(), {"ids": torch.ones(batch, sequence, dtype=torch.int64)}


def masked(batch, sequence):
    """The mask is a plain attribute of the module."""
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
            self.mask = torch.triu(torch.full((512, 512), float("-inf")), diagonal=1)

        def forward(self, ids):
            hidden = self.words(ids)
            scores = hidden @ hidden.transpose(1, 2) + self.mask[: ids.shape[1], : ids.shape[1]].to(ids.device)
            return functional.cross_entropy(self.head(functional.softmax(scores, -1) @ hidden).flatten(0, 1).float(),
                                            ids.flatten())

    return Masked(), {"ids": torch.ones(batch, sequence, dtype=torch.int64)}
