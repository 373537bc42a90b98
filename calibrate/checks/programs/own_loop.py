"""Training loops that no engine of the predictor describes; ``peakcast learn`` makes formulas of them.

    peakcast learn --gpu h200 --batches 2,4 --sequences 128,256,512 -o adafactor.npz -- \\
        python -m calibrate.checks.programs.own_loop adafactor {batch} {sequence}
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from calibrate.probes import device_query

STEPS = 3


def trained(kind: str, batch: int, length: int) -> dict[str, Any]:
    """Trains for three steps and returns the peaks.

    Args:
        kind: ``adafactor``: GPT-2 with transformers' Adafactor; ``contrastive``: a CLIP with its contrastive loss and
            RAdam.
    """
    import torch
    import transformers

    from calibrate.checks.programs import counters

    torch.manual_seed(0)
    model: Any
    optimizer: torch.optim.Optimizer
    if kind == "adafactor":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=6, n_positions=2048))
        model = model.to("cuda")
        optimizer = transformers.Adafactor(model.parameters())
    else:
        text = {"vocab_size": 49408, "max_position_embeddings": 2048, "eos_token_id": 2}
        model = transformers.CLIPModel(transformers.CLIPConfig(text_config=text))
        model = model.to("cuda", torch.bfloat16)
        optimizer = torch.optim.RAdam(model.parameters())
    for _ in range(STEPS):
        tokens = torch.randint(3, 40000, (batch, length)).to("cuda")
        if kind == "adafactor":
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        else:
            tokens[:, -1] = 2
            pixels = torch.randn(batch, 3, 224, 224, dtype=torch.bfloat16).to("cuda")
            loss = model(input_ids=tokens, pixel_values=pixels, return_loss=True).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return counters.about() | counters.counted()


if __name__ == "__main__":
    device_query.print_answer(partial(trained, sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
