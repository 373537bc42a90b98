"""``torch.randperm`` on the CPU without torch: the order in which a seeded sampler draws samples."""

from __future__ import annotations

import numpy as np

LARGEST = (2**32 - 1) // 20
"""Longest permutation that PyTorch draws with 32-bit numbers (2.11, ATen/native/TensorFactories.cpp, randperm_cpu)."""


def randperm(count: int, seed: int) -> np.ndarray:
    """``torch.randperm(count, generator=torch.Generator().manual_seed(seed))``, ``int64[count]``.

    A Fisher-Yates shuffle by remainders of 32-bit numbers of the Mersenne Twister (PyTorch 2.11, randperm_cpu;
    ATen/core/MT19937RNGEngine.h seeds it with the lower 32 bits, as numpy's older generator does).

    Raises:
        ValueError: ``count`` is above :data:`LARGEST`.
    """
    if count >= LARGEST:
        raise ValueError(f"at most {LARGEST - 1:,} samples")
    if count < 2:
        return np.arange(count)
    numbers = np.random.RandomState(seed & 0xFFFFFFFF).randint(0, 2**32, count - 1, dtype=np.uint32)
    chosen = (numbers % np.arange(count, 1, -1, dtype=np.uint32)).tolist()
    order = list(range(count))
    for place, offset in enumerate(chosen):
        order[place], order[place + offset] = order[place + offset], order[place]
    return np.array(order, dtype=np.int64)
