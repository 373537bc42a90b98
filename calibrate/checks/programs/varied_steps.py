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
    from transformers import LlamaConfig, LlamaForCausalLM

    from calibrate.checks.programs import counters

    config = LlamaConfig(hidden_size=1024, intermediate_size=4096, num_hidden_layers=6, num_attention_heads=16,
                         num_key_value_heads=4, vocab_size=32000)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    steps = []
    for batch, length in shapes():
        torch.cuda.reset_peak_memory_stats()
        tokens = torch.randint(0, 32000, (batch, length)).to("cuda")
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        steps.append([batch, length, stats["requested_bytes.all.peak"], stats["allocated_bytes.all.peak"],
                      stats["reserved_bytes.all.current"]])
    return counters.about() | counters.counted() | {"steps": steps}


if __name__ == "__main__":
    device_query.print_answer(trained)
