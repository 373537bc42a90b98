"""A hundred steps of a small language model, each with another batch and length: what is reserved after each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from calibrate.probes import device_query

STEPS, SEED = 100, 7
LARGEST_BATCH, SHORTEST, LONGEST = 6, 64, 2048


def shapes() -> Iterator[tuple[int, int]]:
    """Batch and length in tokens of each step."""
    numbers = random.Random(SEED)
    for _ in range(STEPS):
        yield numbers.randint(1, LARGEST_BATCH), numbers.randint(SHORTEST, LONGEST)


def trained() -> dict[str, Any]:
    """Trains, and returns the allocated peak and the reserved bytes of each step."""
    import torch

    from calibrate.checks.programs import counters, language_model

    model = language_model.made(1024, 4096, 6)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    steps = []
    for batch, length in shapes():
        torch.cuda.reset_peak_memory_stats()
        language_model.step(model, optimizer, batch, length)
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        steps.append([batch, length, stats["requested_bytes.all.peak"], stats["allocated_bytes.all.peak"],
                      stats["reserved_bytes.all.current"]])
    return counters.about() | counters.counted() | {"steps": steps}


if __name__ == "__main__":
    device_query.print_answer(trained)
