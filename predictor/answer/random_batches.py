"""Random batches of a dataset: which is the largest, and how likely a batch stays within limits. Exact, not sampled.

A batch is drawn without replacement; it is as long as its longest sample and has the images of all of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from predictor.workload.samples import Samples


def largest(samples: Samples, size: int) -> list[tuple[int, int]]:
    """Tokens and images of the batches that no other batch exceeds in both, the longest first."""
    order = np.argsort(samples.tokens, kind="stable")
    tokens, images = samples.tokens[order].tolist(), samples.images[order].tolist()
    most: list[int] = []  # images of the samples up to here that have the most
    found: dict[int, int] = {}
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
        if index >= size - 1:  # this one, and the others with the most images
            found[length] = max(found.get(length, 0), count + beside)
    front: list[tuple[int, int]] = []
    for length, count in sorted(found.items(), reverse=True):
        if not front or count > front[-1][1]:
            front.append((length, count))
    return front


def probability(samples: Samples, size: int, limits: Sequence[int]) -> float:
    """Of a batch whose longest sample has at most ``limits[i]`` tokens, where ``i`` are its images together.

    A limit of 0 is out of any batch's reach; more images than limits too. Sums products of binomial coefficients:
    of the samples within a limit, so many of each number of images.
    """
    limits = np.asarray(limits)
    counts = np.unique(samples.images)
    lengths = [np.sort(samples.tokens[samples.images == count]) for count in counts]
    scale = len(samples) / size  # keeps the coefficients within the range of floats
    together = 0.0
    for limit in np.unique(limits[limits > 0]):
        ways = np.zeros((size + 1, len(limits)))  # by samples taken and their images
        ways[0, 0] = 1.0
        for count, of_this in zip(counts.tolist(), lengths):
            known = int(np.searchsorted(of_this, limit, side="right"))
            ways = _taken(ways, count, _choices(known, size, scale))
        together += ways[size, limits == limit].sum()
    return min(1.0, together / _choices(len(samples), size, scale)[size])


def _taken(ways: np.ndarray, images: int, choices: np.ndarray) -> np.ndarray:
    """Ways with any number of samples of so many images taken besides."""
    result = np.zeros_like(ways)
    size, most = ways.shape
    for number, factor in enumerate(choices):
        shift = number * images
        if factor and shift < most:
            result[number:, shift:] += factor * ways[: size - number, : most - shift]
    return result


def _choices(of: int, size: int, scale: float) -> np.ndarray:
    """Binomial coefficients ``C(of, n) / scale**n`` for ``n`` up to ``size``."""
    result = np.zeros(size + 1)
    value = 1.0
    for number in range(min(of, size) + 1):
        result[number] = value
        value *= (of - number) / (number + 1) / scale
    return result
