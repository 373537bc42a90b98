"""The small language model of several programs, and one step of its training."""

from __future__ import annotations

from typing import Any

import torch

VOCABULARY = 32000


def made(width: int, intermediate: int, layers: int) -> Any:
    """A Llama in bf16 on the GPU, with 16 query heads and 4 key heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=width, intermediate_size=intermediate, num_hidden_layers=layers,
                         num_attention_heads=16, num_key_value_heads=4, vocab_size=VOCABULARY)
    with torch.device("cuda"):
        model: Any = LlamaForCausalLM(config)
    return model.to(torch.bfloat16)


def step(model: Any, optimizer: torch.optim.Optimizer, batch: int, length: int) -> None:
    """Forward, backward and update with random tokens ``[batch, length]``."""
    tokens = torch.randint(0, VOCABULARY, (batch, length)).to("cuda")
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
