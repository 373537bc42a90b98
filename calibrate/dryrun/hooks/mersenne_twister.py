"""Moves PyTorch's random generator of the CPU on by a number of draws, without drawing.

The generator is MT19937, a linear recurrence of words over GF(2): t^n modulo its characteristic polynomial says which
of its next words to add up for the word n places on (Haramoto and others, Efficient jump ahead for F2-linear random
number generators, 2008). A polynomial is an integer here, whose bit k is the coefficient of t^k.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

WORDS, MIDDLE, WORD_BITS, LOWER_BITS = 624, 397, 32, 31
MATRIX = 0x9908B0DF
DEGREE = WORDS * WORD_BITS - LOWER_BITS
LEFT, NEXT, STATE = slice(8, 12), slice(16, 24), slice(24, 24 + 8 * WORDS)
"""Bytes of the generator's state: words left in this block plus one, index of the next, and the block (torch 2.11,
ATen/CPUGeneratorImpl.cpp, ``CPUGeneratorImplStateLegacy``)."""


def skip(generator: torch.Generator, draws: int) -> None:
    """Moves the generator on by this many words of 32 bits. It must have drawn a block of :data:`WORDS` before, because
    a seed is not in the recurrence."""
    state = generator.get_state()
    fields = state.numpy()
    words = fields[STATE].view(np.uint64)
    used = WORDS + 1 - int(fields[LEFT].view(np.int32)[0])
    blocks, last = divmod(used + draws - 1, WORDS)  # PyTorch makes a new block only when it draws from it
    words[:] = _after(words.astype(np.uint32), blocks)
    fields[LEFT].view(np.int32)[0], fields[NEXT].view(np.uint64)[0] = WORDS - last, last + 1
    generator.set_state(state)


def _after(block: np.ndarray, blocks: int) -> np.ndarray:
    """The block of words (shape ``WORDS``) that comes so many blocks later."""
    following = [block]
    source = np.random.MT19937()
    source.state = {"bit_generator": "MT19937", "state": {"key": block, "pos": WORDS}}
    for _ in range(DEGREE // WORDS + 1):
        source.random_raw(WORDS, output=False)
        following.append(source.state["state"]["key"])
    starts = np.lib.stride_tricks.sliding_window_view(np.concatenate(following), WORDS)
    return np.bitwise_xor.reduce(starts[_exponents(_power(blocks * WORDS))], axis=0)


@functools.lru_cache(maxsize=256)  # layers have weights of the same shapes
def _power(exponent: int) -> int:
    """t to this power, modulo the characteristic polynomial."""
    lower = _exponents(_characteristic())[:-1]
    power = 1
    for bit in format(exponent, "b"):
        power = int("0".join(format(power, "b")), 2) << int(bit)  # squared
        while high := power >> DEGREE:
            power &= (1 << DEGREE) - 1
            for exponent_of_term in lower:
                power ^= high << exponent_of_term
    return power


@functools.cache
def _characteristic() -> int:
    """The characteristic polynomial (Matsumoto and Nishimura, Mersenne Twister, 1998, appendix A)."""
    result = 1
    for bit in range(WORD_BITS):
        shorter = bit < LOWER_BITS
        result = result << WORDS - shorter ^ result << MIDDLE - shorter ^ MATRIX >> bit & 1
    return result


def _exponents(polynomial: int) -> list[int]:
    return [exponent for exponent, bit in enumerate(reversed(format(polynomial, "b"))) if bit == "1"]
