"""Limits of what is predicted: the largest workloads and the oldest releases."""

from __future__ import annotations

OLDEST_DEEPSPEED = (0, 13, 2)  # earlier releases allocate Adam's states at start-up
OLDEST_FSDP1 = (2, 11, 0)
OLDEST_FSDP2 = (2, 6, 0)
OLDEST_QUANTIZING = {"transformers": (4, 57, 0), "bitsandbytes": (0, 48, 0)}  # the oldest that were compared
MOST_SAMPLES = 65_536
MOST_STEPS = 1 << 20
MOST_TOKENS = 1 << 30  # in one micro batch; keeps every byte count far inside 64 bits
MOST_IMAGES = 1 << 20
MOST = {"per_device_train_batch_size": MOST_SAMPLES, "gradient_accumulation_steps": MOST_STEPS}
"""Key of a workload -> its largest value."""
