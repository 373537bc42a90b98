"""Hugging Face's Trainer with peakcast's callback: a small LLaVA in bf16 autocast, five steps."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from calibrate.probes import device_query

LENGTH, IMAGE_TOKENS, SAMPLES, BATCH, STEPS = 1024, 576, 64, 4, 5


def trained(precision: str) -> dict[str, Any]:
    """Trains with fp32 weights under ``bf16`` or ``fp16`` autocast. Returns the callback's record and the peaks."""
    import torch
    from transformers import AutoConfig, LlavaForConditionalGeneration, Trainer, TrainingArguments

    from calibrate import PeakcastCallback
    from calibrate.checks.programs import counters

    config = AutoConfig.from_pretrained(Path(__file__).parents[2] / "campaign/models/llava-1.5-7b-2-2.json")
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlavaForConditionalGeneration(config)
    tokens = torch.arange(LENGTH) % 1000 + 10
    tokens[5:5 + IMAGE_TOKENS] = config.image_token_id
    sample = {"input_ids": tokens, "attention_mask": torch.ones(LENGTH, dtype=torch.int64), "labels": tokens,
              "pixel_values": torch.ones(3, 336, 336)}
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            output_dir=directory, per_device_train_batch_size=BATCH, max_steps=STEPS, report_to="none",
            save_strategy="no", logging_strategy="no", bf16=precision == "bf16", fp16=precision == "fp16",
            gradient_checkpointing=True, remove_unused_columns=False)
        record = Path(directory) / "record.json"
        callback = PeakcastCallback(record=str(record))
        Trainer(model=model, args=arguments, train_dataset=[sample] * SAMPLES, callbacks=[callback]).train()
        return counters.about() | counters.counted() | {
            "record": record.read_text() if record.is_file() else None}


if __name__ == "__main__":
    device_query.print_answer(partial(trained, sys.argv[1]))
