"""Three steps of a small language model, with and without ``torch.compile``: only to know."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from calibrate.probes import device_query


def trained(way: str) -> dict[str, Any]:
    """Trains ``eager`` or ``compiled`` and returns the peaks."""
    import torch

    from calibrate.checks.programs import counters, language_model

    model = language_model.made(2048, 5632, 4)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    run = torch.compile(model) if way == "compiled" else model
    for _ in range(3):
        language_model.step(run, optimizer, 4, 1024)
    return counters.about() | counters.counted()


if __name__ == "__main__":
    device_query.print_answer(partial(trained, sys.argv[1]))
