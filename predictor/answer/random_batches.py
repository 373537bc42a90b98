"""Random batches of a dataset: the largest ones, and the exact probability that a batch stays within limits.

Samples of a batch are drawn without replacement. A batch is as long as its longest sample, and its images are those of
all its samples together.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from predictor.workload.samples import Samples


def largest(samples: Samples, size: int) -> list[tuple[int, int]]:
    """Tokens and images of the batches that no other batch exceeds in both, longest first.

    Args:
        size: number of samples in a batch.
    """
    order = np.argsort(samples.tokens, kind="stable")
    tokens, images = samples.tokens[order].tolist(), samples.images[order].tolist()
    most: list[int] = []  # a heap: image counts of the size - 1 shorter samples with the most images
    by_length: dict[int, int] = {}
    total = 0
    for index, (length, count) in enumerate(zip(tokens, images)):
        if len(most) < size - 1:
            heapq.heappush(most, count)
            beside = total
            total += count
        else:
            beside = total
            if most:
                total += count - heapq.heappushpop(most, count)
        if index >= size - 1:  # a batch of this sample and of those with the most images before it
            by_length[length] = max(by_length.get(length, 0), count + beside)
    front: list[tuple[int, int]] = []
    for length, count in sorted(by_length.items(), reverse=True):
        if not front or count > front[-1][1]:
            front.append((length, count))
    return front


def probability(samples: Samples, size: int, limits: Sequence[int] | np.ndarray) -> float:
    """Probability that a batch's longest sample has at most ``limits[i]`` tokens, where ``i`` is its number of images.

    No batch stays within a limit of 0, and none that has more images than there are limits. The probability is a sum of
    products of binomial coefficients: the ways to choose samples within a limit, by their number of images.
    """
    limits = np.asarray(limits)
    counts = np.unique(samples.images)
    lengths = [np.sort(samples.tokens[samples.images == count]) for count in counts]
    scale = len(samples) / size  # keeps the coefficients within the range of floats
    total = 0.0
    for limit in np.unique(limits[limits > 0]):
        ways = np.zeros((size + 1, len(limits)))  # by number of samples taken, and by their images
        ways[0, 0] = 1.0
        for count, sorted_lengths in zip(counts.tolist(), lengths):
            within = int(np.searchsorted(sorted_lengths, limit, side="right"))
            ways = _taken(ways, count, _choices(within, size, scale))
        total += ways[size, limits == limit].sum()
    return min(1.0, total / _choices(len(samples), size, scale)[size])


def _taken(ways: np.ndarray, images: int, choices: np.ndarray) -> np.ndarray:
    """``ways`` after also taking any number of the samples that have ``images`` images each.

    Args:
        choices: ways to take 0, 1, 2 … of these samples.
    """
    result = np.zeros_like(ways)
    size, most = ways.shape
    for number, factor in enumerate(choices):
        shift = number * images
        if factor and shift < most:
            result[number:, shift:] += factor * ways[: size - number, : most - shift]
    return result


def _choices(total: int, size: int, scale: float) -> np.ndarray:
    """Binomial coefficients ``C(total, n) / scale**n`` for ``n`` from 0 to ``size``."""
    result = np.zeros(size + 1)
    value = 1.0
    for number in range(min(total, size) + 1):
        result[number] = value
        value *= (total - number) / (number + 1) / scale
    return result
