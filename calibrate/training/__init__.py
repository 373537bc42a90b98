"""peakcast inside the user's own training: predicts at the start, warns before memory runs out, records the peaks.

This package does not allocate on the GPU, does not reset PyTorch's peak counters, and lets none of its own exceptions
reach the training.

Known limitations:

- Models outside transformers, and trainers of TRL, need a Workload or ``peakcast learn``.
- FSDP and ``nn.DataParallel`` are not read from the training arguments.
- Batches with ``pixel_values_videos`` or ``inputs_embeds``, and packed samples of different lengths, are not read.
- Several peft adapters at once, adapters other than LoRA, and quantisation other than bitsandbytes' 4 bits are not
  predicted.
- A moment gets a row only if it raised a peak counter above its largest value so far, because the counters are never
  reset.
- There is no record if memory ran out before the training started.
"""
