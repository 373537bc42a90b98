"""Three steps of a small language model, with and without ``torch.compile``: only to know."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from calibrate.probes import device_query


def trained(way: str) -> dict[str, Any]:
    """Trains ``eager`` or ``compiled`` and returns the peaks."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from calibrate.checks.programs import counters

    config = LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=4, num_attention_heads=16,
                         num_key_value_heads=4, vocab_size=32000)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    step = torch.compile(model) if way == "compiled" else model
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(0, 32000, (4, 1024)).to("cuda")
    for _ in range(3):
        loss = step(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return counters.about() | counters.counted()


if __name__ == "__main__":
    device_query.print_answer(partial(trained, sys.argv[1]))
