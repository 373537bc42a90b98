"""A training with Hugging Face's Trainer and peakcast's callback."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

from calibrate import PeakcastCallback

model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2"), dtype=torch.bfloat16)
sample = dict.fromkeys(("input_ids", "labels"), torch.ones(512, dtype=torch.int64))
Trainer(model=model, args=TrainingArguments("out", per_device_train_batch_size=8, max_steps=3, save_strategy="no"),
        train_dataset=[sample] * 64, callbacks=[PeakcastCallback(record="run.json")]).train()
